#include <type_traits>

#include "cpu/vec_avx512.h"
// clang-format off: kernel.h needs Vec
#include "cpu/kernel.h"
// clang-format on

namespace mlaverify::cpu {

const Isa &isa_avx512_bf16() {
  static constexpr Isa isa = {"avx512_bf16", load_queries, chunk, merge, finish};
  return isa;
}

}  // namespace mlaverify::cpu
