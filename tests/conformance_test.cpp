// The conformance cases through the library, on the cpu backend and the reference: against the results in the files, which an
// independent program computed, and against the oracle. And recorded steps, which have no results in them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "api/validate.h"
#include "io/step.h"
#include "oracle/oracle.h"
#include "oracle/tolerance.h"
#include "random.h"

namespace mlaverify::test {
namespace {

constexpr std::size_t kCases = 40;

std::vector<std::string> case_files(const char *folder = MLAVERIFY_CASES) {
  std::vector<std::string> files;
  for (const auto &entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void expect_row(const io::Step &step, const void *out, float lse, const double *want, double want_lse, const char *whose) {
  const RowError e = compare_row(step.q.dtype(), step.v_head_dim, out, lse, want, want_lse);
  EXPECT_TRUE(e.ok) << "against " << whose << ": " << e.why;
}

void run_case(const std::string &file, mlaverify_backend backend) {
  SCOPED_TRACE(file + ", backend " + std::to_string(backend));
  const io::Step step = io::read_step(file);
  const int64_t rows = step.q.shape()[0], heads = step.q.shape()[1];
  io::TensorBuffer out(step.q.dtype(), {rows, heads, step.v_head_dim}), lse(DType::f32, {rows, heads});
  cli::poison(out.data(), out.bytes());
  cli::poison(lse.data(), lse.bytes());
  mlaverify_verify_args args = step.args();
  args.out = out.view();
  args.lse = lse.view();
  args.backend = backend;
  args.num_threads = 2;
  ASSERT_EQ(mlaverify_workspace_size(&args, &args.workspace_bytes), MLAVERIFY_OK) << mlaverify_last_error();
  const auto size = rules::round_up<std::size_t>(args.workspace_bytes + 1, MLAVERIFY_WORKSPACE_ALIGNMENT);
  const std::unique_ptr<void, decltype(&std::free)> workspace(std::aligned_alloc(MLAVERIFY_WORKSPACE_ALIGNMENT, size),
                                                              &std::free);
  args.workspace = workspace.get();
  ASSERT_EQ(mlaverify_decode_attention_fwd_verify(&args), MLAVERIFY_OK) << mlaverify_last_error();

  Call call;
  ASSERT_TRUE(validate(&args, true, &call).ok());
  Oracle oracle(call.problem);
  std::vector<double> want(static_cast<std::size_t>(step.v_head_dim));
  for (int64_t r = 0; r < rows * heads; ++r) {
    const void *row = out.data<char>() + r * step.v_head_dim * rules::dtype_bytes(step.q.dtype());
    const float row_lse = lse.data<float>()[r];
    if (step.o) {
      for (std::size_t i = 0; i < want.size(); ++i)
        want[i] = static_cast<double>(
            rules::load_float(step.o.dtype(), step.o.data(), r * step.v_head_dim + static_cast<int64_t>(i)));
      expect_row(step, row, row_lse, want.data(), static_cast<double>(step.lse.data<float>()[r]), "the file");
    }
    if (backend == MLAVERIFY_BACKEND_REFERENCE) continue;  // it is the oracle
    const auto token = static_cast<int32_t>(r / heads);
    const double want_lse = oracle.row(token / step.qlen, token % step.qlen, static_cast<int32_t>(r % heads), want.data());
    expect_row(step, row, row_lse, want.data(), want_lse, "the oracle");
  }
}

TEST(Conformance, AllCasesAreThere) {
  EXPECT_EQ(case_files().size(), kCases);
  for (const std::string &file : case_files()) {
    const io::Step step = io::read_step(file);
    EXPECT_TRUE(step.o && step.lse) << file;
  }
}

TEST(Conformance, Cpu) {
  for (const std::string &file : case_files()) run_case(file, MLAVERIFY_BACKEND_CPU);
}

TEST(Conformance, RecordedSteps) {
  const std::vector<std::string> files = case_files(MLAVERIFY_RECORDED);
  EXPECT_EQ(files.size(), 3U);
  for (const std::string &file : files) run_case(file, MLAVERIFY_BACKEND_CPU);
}

TEST(Conformance, Reference) {
  for (const std::string &file : case_files()) run_case(file, MLAVERIFY_BACKEND_REFERENCE);
}

}  // namespace
}  // namespace mlaverify::test
