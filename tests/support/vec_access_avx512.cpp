#include "cpu/vec_avx512.h"
#include "support/vec_access.h"

namespace mlaverify::test {

const VecAccess &avx512_vec() {
  static constexpr VecAccess access = vec_access<cpu::Vec>("avx512");
  return access;
}

}  // namespace mlaverify::test
