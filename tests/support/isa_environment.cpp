// Skips all tests of a program whose environment asks for an instruction set on a machine that lacks it; CTest takes that from what is
// printed (mlaverify_isa_test()). Nothing else may keep the cpu backend from running: the portable code runs everywhere, and a name that
// does not exist is a mistake.
#include <gtest/gtest.h>

#include "api/env.h"
#include "mlaverify/mlaverify.h"

namespace mlaverify::test {
namespace {

class IsaEnvironment : public testing::Environment {
 public:
  void SetUp() override {
    mlaverify_backend_info info = {};
    info.size = sizeof(info);
    for (int32_t i = 0; i < mlaverify_backend_count(); ++i) {
      ASSERT_EQ(mlaverify_get_backend_info(i, &info), MLAVERIFY_OK);
      if (info.backend != MLAVERIFY_BACKEND_CPU || info.available != 0) continue;
      const std::string &isa = env_cpu_isa();
      ASSERT_TRUE(isa == "avx2" || isa == "avx512" || isa == "avx512_bf16" || isa == "amx_bf16") << info.detail;
      GTEST_SKIP() << info.detail;
    }
  }
};

const testing::Environment *const environment = testing::AddGlobalTestEnvironment(new IsaEnvironment);

}  // namespace
}  // namespace mlaverify::test
