#include <type_traits>

#include "cpu/vec_scalar.h"
// clang-format off: kernel.h needs Vec
#include "cpu/kernel.h"
// clang-format on

namespace mlaverify::cpu {

const Isa &isa_scalar() {
  static constexpr Isa isa = {"scalar", load_queries, chunk, merge, finish};
  return isa;
}

}  // namespace mlaverify::cpu
