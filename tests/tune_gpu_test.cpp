// Rows of the config table on the GPU: every configuration is right, and the tune file reaches calls. Needs a GPU: label gpu.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "backends/launch_facts.h"
#include "backends/tuning.h"
#include "cuda/tune_file.h"
#include "support/test_call.h"

namespace mlaverify::test {
namespace {

using rules::GpuKernel;
using rules::GpuRow;

TestCase small(int32_t heads, int32_t page_size) {
  TestCase c;
  c.heads = heads;
  c.qlen = 2;
  c.lk = 576;
  c.lv = 512;
  c.page_size = page_size;
  c.lens = {3000, 64, 700, 2};
  c.sm_scale = 1 / 24.0f;
  return c;
}

cudaDeviceProp properties() {
  cudaDeviceProp p;
  EXPECT_EQ(cudaGetDeviceProperties(&p, 0), cudaSuccess);
  return p;
}

// Not asked of the library, which would then have looked for a tune file already.
rules::Arch here() {
  const cudaDeviceProp p = properties();
  return rules::gpu_arch(p.major * 10 + p.minor, static_cast<int32_t>(p.sharedMemPerBlockOptin));
}

GpuRow row_for_all(GpuKernel kernel, int32_t shares) {
  return {here(), 0, rules::kMostRows, rules::kAnyTypes, rules::kAnyPages, kernel, shares};
}

Call call_of(const mlaverify_verify_args &args) {
  Call call = {};
  EXPECT_TRUE(validate(&args, true, &call).ok());
  return call;
}

TEST(CudaTune, EveryConfigurationIsRightAndRepeats) {
  for (const int32_t heads : {8, 16, 64}) {
    for (const int32_t page_size : {64, 48}) {
      for (int32_t k = 0; k < rules::kNumGpuKernels; ++k) {
        for (const int32_t shares : {rules::kLeastShares, 32, rules::kMostShares}) {
          const GpuRow row = row_for_all(static_cast<GpuKernel>(k), shares);
          SCOPED_TRACE(cuda::tune_row(row) + ", " + std::to_string(heads) + " heads");
          TestCall host(small(heads, page_size));
          DeviceCall device(&host);
          RowFacts facts = {};
          ASSERT_TRUE(row_facts(call_of(device.args), &row, &facts).ok());
          io::DeviceMemory workspace(facts.workspace_bytes, 0);
          mlaverify_verify_args args = device.args;
          args.workspace = workspace.data();
          args.workspace_bytes = workspace.bytes();
          TestCall::Bits first;
          for (int repeat = 0; repeat < 5; ++repeat) {
            device.poison_outputs();
            workspace.poison();
            const Status s = run_with_row(call_of(args), row);
            ASSERT_TRUE(s.ok()) << s.message;
            ASSERT_EQ(device.fetch(), "");
            if (repeat == 0) first = host.bits();
            ASSERT_EQ(host.bits(), first);
          }
          EXPECT_EQ(host.mismatch(3), "");
        }
      }
    }
  }
}

// A tune file in a directory of its own that is for the first GPU, with one row.
class TuneFileOfThisCard {
 public:
  explicit TuneFileOfThisCard(const GpuRow &row, const std::string &multiprocessors = "") {
    const cudaDeviceProp p = properties();
    std::string text =
        cuda::tune_head({p.name, std::to_string(p.major) + "." + std::to_string(p.minor), row.arch, p.multiProcessorCount});
    if (!multiprocessors.empty()) text.replace(text.rfind(' ') + 1, std::string::npos, multiprocessors + "\n");
    path_ = testing::TempDir() + "mlaverify_tune_XXXXXX";
    const int fd = mkstemp(path_.data());
    EXPECT_GE(fd, 0);
    close(fd);
    std::ofstream(path_) << text << cuda::tune_row(row) << "\n";
  }
  ~TuneFileOfThisCard() { unlink(path_.c_str()); }
  TuneFileOfThisCard(const TuneFileOfThisCard &) = delete;
  TuneFileOfThisCard &operator=(const TuneFileOfThisCard &) = delete;
  const std::string &path() const { return path_; }

 private:
  std::string path_;
};

// In a process of its own, which reads the file: the status of a size query is the exit code; on success the deciding row is printed.
[[noreturn]] void ask_with(const std::string &path, uint32_t flags) {
  setenv("MLAVERIFY_TUNE_FILE", path.c_str(), 1);
  TestCall host(small(8, 64));
  host.args.flags = flags;
  try {
    DeviceCall device(&host);
    RowFacts facts = {};
    const Status s = row_facts(call_of(device.args), nullptr, &facts);
    const bool right = mlaverify_decode_attention_fwd_verify(&device.args) == MLAVERIFY_OK && device.fetch().empty() &&
                       host.mismatch(3).empty();
    std::fprintf(stderr, "%s\n", !s.ok() ? s.message.c_str() : right ? cuda::tune_row(facts.row).c_str() : "wrong result");
    _exit(MLAVERIFY_OK);
  } catch (const std::exception &) {  // the size query was refused
    std::size_t bytes = 0;
    const mlaverify_status status = mlaverify_workspace_size(&host.args, &bytes);
    mlaverify_backend_info info = {};
    info.size = sizeof info;
    mlaverify_get_backend_info(0, &info);
    std::fprintf(stderr, "%s: %s\n", status == MLAVERIFY_OK ? "host call" : "host call refused", info.detail);
    _exit(info.available != 0 ? MLAVERIFY_OK : MLAVERIFY_ERR_INVALID_ARGUMENT);
  }
}

class CudaTuneDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }  // a forked child could not use the device
};

TEST_F(CudaTuneDeathTest, TheFileReachesCallsButNotTheBatchInvariantMode) {
  const TuneFileOfThisCard file(row_for_all(GpuKernel::portable_16, 128));
  const testing::ExitedWithCode ok(MLAVERIFY_OK);
  EXPECT_EXIT(ask_with(file.path(), 0), ok, "kernel=portable_16 shares=128");
  if (here() == rules::Arch::sm_90) {
    EXPECT_EXIT(ask_with(file.path(), MLAVERIFY_FLAG_BATCH_INVARIANT), ok, "kernel=hopper shares=32");
  }
}

// Calls on the host go on; the cuda backend says what is wrong.
TEST_F(CudaTuneDeathTest, ABadFileIsRefused) {
  const testing::ExitedWithCode refused(MLAVERIFY_ERR_INVALID_ARGUMENT);
  const TuneFileOfThisCard file(row_for_all(GpuKernel::portable_16, 128), "1");
  EXPECT_EXIT(ask_with(file.path(), 0), refused, "host call: MLAVERIFY_TUNE_FILE: .*:6: multiprocessors: got '1', must be '");
  EXPECT_EXIT(ask_with(file.path() + ".missing", 0), refused, "host call: MLAVERIFY_TUNE_FILE: .*does not exist");
}

}  // namespace
}  // namespace mlaverify::test
