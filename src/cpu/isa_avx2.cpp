#include <type_traits>

#include "cpu/vec_avx2.h"
// clang-format off: kernel.h needs Vec
#include "cpu/kernel.h"
// clang-format on

namespace mlaverify::cpu {

const Isa &isa_avx2() {
  static constexpr Isa isa = {"avx2", load_queries, chunk, merge, finish};
  return isa;
}

}  // namespace mlaverify::cpu
