#include "cpu/vec_scalar.h"
#include "support/vec_access.h"

namespace mlaverify::test {

const VecAccess &scalar_vec() {
  static constexpr VecAccess access = vec_access<cpu::Vec>("scalar");
  return access;
}

}  // namespace mlaverify::test
