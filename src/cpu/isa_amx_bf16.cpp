#include <type_traits>

#include "cpu/vec_avx512.h"
// clang-format off: kernel.h needs Vec, amx.h both
#include "cpu/amx.h"
#include "cpu/kernel.h"
// clang-format on

namespace mlaverify::cpu {

const Isa &isa_amx_bf16() {
  static constexpr Isa isa = {"amx_bf16", load_query_tiles, chunk_tiles, merge, finish};
  return isa;
}

}  // namespace mlaverify::cpu
