// `mlaverify check` notices what it is there to notice: one wrong number, one write outside of the outputs.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "compare.h"
#include "error.h"
#include "self_test.h"
#include "step_call.h"

namespace mlaverify::cli {
namespace {

class CheckTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    step_ = self_test_step(GetParam());
    calls_.push_back(std::make_unique<StepCall>(step_, GetParam(), MLAVERIFY_BACKEND_CPU, 0));
    calls_[0]->run();
  }
  std::string why() const { return compare_step(step_, GetParam(), calls_)[0].why; }

  // The bytes of the output from its first on; negative offsets are in the guard before it.
  char *out() const { return static_cast<char *>(const_cast<void *>(calls_[0]->out())); }
  float *lse() const { return const_cast<float *>(calls_[0]->lse()); }
  std::size_t lse_count() const { return calls_[0]->lse_bytes() / sizeof(float); }

  io::Step step_;
  std::vector<std::unique_ptr<StepCall>> calls_;
};

TEST_P(CheckTest, AcceptsWhatIsRight) { EXPECT_EQ(why(), ""); }

TEST_P(CheckTest, NoticesWritesOutside) {
  for (char *at : {out() - 1, out() + calls_[0]->out_bytes(), reinterpret_cast<char *>(lse()) - 1,
                   reinterpret_cast<char *>(lse()) + calls_[0]->lse_bytes()}) {
    const char before = *at;
    *at = 0;
    EXPECT_EQ(why(), "wrote outside of out or lse");
    *at = before;
  }
  EXPECT_EQ(why(), "");
}

TEST_P(CheckTest, NoticesOneWrongNumber) {
  const std::size_t last = lse_count() - 1;
  const float before = lse()[last];
  for (float wrong : {0.5f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    lse()[last] = wrong;
    EXPECT_NE(why(), "") << wrong;
  }
  lse()[last] = before;
  ASSERT_EQ(why(), "");
  // NaN in place of the last number of the output: not written.
  const int32_t bytes = rules::dtype_bytes(step_.q.dtype());
  for (int32_t i = 1; i <= bytes; ++i) out()[calls_[0]->out_bytes() - static_cast<std::size_t>(i)] = '\xff';
  EXPECT_NE(why(), "");
}

// Rows with keys and f32; a last request without any.
INSTANTIATE_TEST_SUITE_P(Cases, CheckTest, testing::Values("common", "f32", "empty_and_short"),
                         [](const auto &test) { return test.param; });

TEST(SelfTest, SameStepEachTime) {
  for (const std::string &name : self_test_names()) {
    const io::Step a = self_test_step(name);
    const io::Step b = self_test_step(name);
    ASSERT_EQ(a.kv_cache.bytes(), b.kv_cache.bytes());
    EXPECT_EQ(std::memcmp(a.kv_cache.data(), b.kv_cache.data(), a.kv_cache.bytes()), 0) << name;
    EXPECT_EQ(std::memcmp(a.q.data(), b.q.data(), a.q.bytes()), 0) << name;
  }
  EXPECT_THROW(self_test_step("none"), Failure);
}

}  // namespace
}  // namespace mlaverify::cli
