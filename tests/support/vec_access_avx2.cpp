#include "cpu/vec_avx2.h"
#include "support/vec_access.h"

namespace mlaverify::test {

const VecAccess &avx2_vec() {
  static constexpr VecAccess access = vec_access<cpu::Vec>("avx2");
  return access;
}

}  // namespace mlaverify::test
