// The environment variables. The library reads each once per process, so every test asks in a process of its own.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "support/test_call.h"

namespace mlaverify::test {
namespace {

// Makes a call with the variable set; exits with its status, its message on standard error or, if there is none, the bytes of
// workspace that it takes.
[[noreturn]] void call_with(const char *name, const char *value, mlaverify_backend backend) {
  setenv(name, value, 1);
  TestCall call{TestCase()};
  call.args.backend = backend;
  std::size_t bytes = 0;
  const mlaverify_status status = mlaverify_workspace_size(&call.args, &bytes);
  if (status == MLAVERIFY_OK && call.run_and_compare().empty())
    std::fprintf(stderr, "%s workspace\n", bytes > 0 ? "some" : "no");
  std::fputs(mlaverify_last_error(), stderr);
  _exit(status);
}

TEST(EnvDeathTest, BackendOfCallsThatAskForNone) {
  const testing::ExitedWithCode ok(MLAVERIFY_OK);
  EXPECT_EXIT(call_with("MLAVERIFY_BACKEND", "reference", MLAVERIFY_BACKEND_AUTO), ok, "^no workspace");
  EXPECT_EXIT(call_with("MLAVERIFY_BACKEND", "cpu", MLAVERIFY_BACKEND_AUTO), ok, "^some workspace");
  EXPECT_EXIT(call_with("MLAVERIFY_BACKEND", "", MLAVERIFY_BACKEND_AUTO), ok, "^some workspace");
  EXPECT_EXIT(call_with("MLAVERIFY_BACKEND", "reference", MLAVERIFY_BACKEND_CPU), ok, "^some workspace");
  EXPECT_EXIT(call_with("MLAVERIFY_BACKEND", "abacus", MLAVERIFY_BACKEND_AUTO),
              testing::ExitedWithCode(MLAVERIFY_ERR_INVALID_ARGUMENT),
              "^MLAVERIFY_BACKEND: got 'abacus', must be cuda, cpu or reference$");
}

TEST(EnvDeathTest, InstructionSetOfTheCpuBackend) {
  EXPECT_EXIT(call_with("MLAVERIFY_CPU_ISA", "scalar", MLAVERIFY_BACKEND_CPU), testing::ExitedWithCode(MLAVERIFY_OK),
              "^some workspace");
  for (const mlaverify_backend backend : {MLAVERIFY_BACKEND_CPU, MLAVERIFY_BACKEND_AUTO}) {
    EXPECT_EXIT(
        call_with("MLAVERIFY_CPU_ISA", "mmx", backend), testing::ExitedWithCode(MLAVERIFY_ERR_INVALID_ARGUMENT),
        "^MLAVERIFY_CPU_ISA: got 'mmx', must be one of amx_bf16, (avx512_bf16, avx512|avx512, avx512_bf16), avx2, scalar$");
  }
  EXPECT_EXIT(call_with("MLAVERIFY_CPU_ISA", "mmx", MLAVERIFY_BACKEND_REFERENCE), testing::ExitedWithCode(MLAVERIFY_OK),
              "^no workspace");
}

}  // namespace
}  // namespace mlaverify::test
