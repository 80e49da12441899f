// The oracle against cases worked by hand, and the tolerance policy. The oracle also agrees with an independent one in NumPy:
// the conformance cases hold its results.
#include "oracle/oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "api/validate.h"
#include "oracle/tolerance.h"
#include "support/test_call.h"

namespace mlaverify::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Row {
  double out[32];
  double lse;
};

Row oracle_row(const TestCall &call, int32_t request, int32_t token, int32_t head) {
  Call c;
  EXPECT_TRUE(validate(&call.args, true, &c).ok());
  Row row = {};
  row.lse = Oracle(c.problem).row(request, token, head, row.out);
  return row;
}

TestCase f32_case(int32_t qlen, int32_t len) {
  TestCase c;
  c.qlen = qlen;
  c.lens = {len};
  c.lk = 40;
  c.q_dtype = c.kv_dtype = DType::f32;
  return c;
}

TEST(Oracle, OneKeyIsItsValue) {
  TestCall call(f32_case(1, 1));
  const Row row = oracle_row(call, 0, 0, 1);
  const auto *q = static_cast<const float *>(call.query(0, 0, 1)), *k = static_cast<const float *>(call.key(0, 0));
  double dot = 0;
  for (int32_t d = 0; d < 40; ++d) dot += static_cast<double>(q[d]) * static_cast<double>(k[d]);
  EXPECT_DOUBLE_EQ(row.lse, dot * static_cast<double>(call.args.sm_scale));
  for (int32_t c = 0; c < 32; ++c) EXPECT_EQ(row.out[c], static_cast<double>(k[c]));
}

TEST(Oracle, UniformAttentionIsTheMean) {
  TestCall call(f32_case(4, 9));
  call.fill_queries(0);
  for (int32_t k = 0; k < 9; ++k) {
    call.fill_key(0, k, 0);
    call.set_key(0, k, k, 1);
  }
  for (int32_t t = 0; t < 4; ++t) {
    const Row row = oracle_row(call, 0, t, 0);
    EXPECT_DOUBLE_EQ(row.lse, std::log(6.0 + t));
    for (int32_t c = 0; c < 32; ++c) EXPECT_DOUBLE_EQ(row.out[c], c < 6 + t ? 1 / (6.0 + t) : 0.0);
  }
}

// Scores 0 and ln 3: weights 1/4 and 3/4, sum 4.
TEST(Oracle, TwoKeysWithKnownWeights) {
  TestCall call(f32_case(1, 2));
  call.fill_queries(0);
  call.set_query(0, 0, 2, 39, 2);
  for (int32_t k = 0; k < 2; ++k) call.fill_key(0, k, 0);
  call.args.sm_scale = 0.5f;
  const auto ln3 = std::log(3.0f);
  call.set_key(0, 1, 39, ln3);
  call.set_key(0, 0, 5, 8);
  call.set_key(0, 1, 5, -4);
  const double weight = std::exp(static_cast<double>(ln3)) / (1 + std::exp(static_cast<double>(ln3)));
  const Row row = oracle_row(call, 0, 0, 2);
  EXPECT_NEAR(weight, 0.75, 1e-7);
  EXPECT_NEAR(row.out[5], 8 * (1 - weight) - 4 * weight, 1e-14);
  EXPECT_DOUBLE_EQ(row.lse, std::log(1 + std::exp(static_cast<double>(ln3))));
}

TEST(Oracle, RowsWithoutKeys) {
  TestCall call(f32_case(4, 2));
  for (int32_t t = 0; t < 4; ++t) {
    const Row row = oracle_row(call, 0, t, 0);
    EXPECT_EQ(row.lse == -kInf, t < 2);
    for (int32_t c = 0; c < 32; ++c) EXPECT_EQ(row.out[c] == 0, t < 2);
  }
}

// The scale multiplies keys and values.
TEST(Oracle, Fp8Scale) {
  TestCase c = f32_case(1, 1);
  c.kv_dtype = DType::f8_e4m3;
  c.k_scale = 3;
  TestCall call(c);
  const Row row = oracle_row(call, 0, 0, 0);
  for (int32_t i = 0; i < 32; ++i)
    EXPECT_DOUBLE_EQ(row.out[i], 3 * static_cast<double>(rules::load_float(c.kv_dtype, call.key(0, 0), i)));
}

// One key: its value is the row, each group with its scale.
TEST(Oracle, Records) {
  TestCase c = f32_case(1, 1);
  c.kv_dtype = DType::f8_ds_mla;
  c.lk = 576;
  c.lv = 512;
  c.k_scale = 5;  // ignored
  TestCall call(c);
  const float scales[] = {0.5f, -3, 0, 0x1p12f};
  for (int32_t g = 0; g < 4; ++g) call.set_group_scale(0, 0, g, scales[g]);
  call.fill_queries(0);
  call.set_query(0, 0, 0, 128, 1);
  call.set_query(0, 0, 0, 575, 2);
  call.set_key(0, 0, 575, 0.25f);
  Call valid;
  ASSERT_TRUE(validate(&call.args, true, &valid).ok());
  double out[512];
  const auto *codes = static_cast<const uint8_t *>(call.key(0, 0));
  const double lse = Oracle(valid.problem).row(0, 0, 0, out);
  EXPECT_DOUBLE_EQ(lse, (-3.0 * static_cast<double>(rules::e4m3_to_float(codes[128])) + 2 * 0.25) * static_cast<double>(0.2f));
  for (int32_t i = 0; i < 512; ++i)
    EXPECT_DOUBLE_EQ(out[i], static_cast<double>(scales[i / 128]) * static_cast<double>(rules::e4m3_to_float(codes[i])));
}

TEST(Oracle, ScoresBeyondTheRangeOfExp) {
  TestCall call(f32_case(1, 3));
  call.fill_queries(100);
  for (int32_t k = 0; k < 3; ++k) call.fill_key(0, k, static_cast<float>(k - 1) * 100);
  call.args.sm_scale = 1;
  const Row row = oracle_row(call, 0, 0, 0);
  EXPECT_DOUBLE_EQ(row.lse, 40 * 100.0 * 100.0);
  EXPECT_DOUBLE_EQ(row.out[0], 100);
}

// The backend is the oracle, rounded.
TEST(Oracle, BacksTheReferenceBackend) {
  TestCase c;
  c.lens = {9, 0, 70};
  c.qlen = 3;
  TestCall call(c);
  call.args.backend = MLAVERIFY_BACKEND_REFERENCE;
  ASSERT_EQ(call.run_and_compare(), "");
  for (int32_t b = 0; b < 3; ++b) {
    const Row row = oracle_row(call, b, 2, 1);
    EXPECT_EQ(call.lse(b, 2, 1), static_cast<float>(row.lse));
    for (int32_t i = 0; i < c.lv; ++i)
      EXPECT_EQ(call.out(b, 2, 1, i), rules::bf16_to_float(rules::float_to_bf16(static_cast<float>(row.out[i]))));
  }
}

// ---- Tolerance --------------------------------------------------------------------------------------------------------

TEST(Tolerance, Limits) {
  EXPECT_EQ(tolerance_for(DType::bf16).out, 4e-3);
  EXPECT_EQ(tolerance_for(DType::f16).lse, 2e-3);
  EXPECT_EQ(tolerance_for(DType::f32).out, 2e-5);
  EXPECT_EQ(tolerance_for(DType::f32).lse, 1e-5);
}

bool agrees(std::initializer_list<float> out, float lse, std::initializer_list<double> want, double want_lse) {
  return compare_row(DType::f32, static_cast<int32_t>(out.size()), out.begin(), lse, want.begin(), want_lse).ok;
}

TEST(Tolerance, IsRelativeToTheRow) {
  EXPECT_TRUE(agrees({100, 1e-3f}, 5, {100, 0}, 5));  // an element near 0 has no relative error of its own
  EXPECT_TRUE(agrees({100.0019f, 0}, 5, {100, 0}, 5));
  EXPECT_FALSE(agrees({100.0021f, 0}, 5, {100, 0}, 5));
  EXPECT_FALSE(agrees({1.1e-3f, 0}, 5, {1e-3, 0}, 5));  // small rows are held to the same
  EXPECT_TRUE(agrees({1}, 1000.009f, {1}, 1000));
  EXPECT_FALSE(agrees({1}, 1000.011f, {1}, 1000));
  EXPECT_FALSE(agrees({1}, 2e-5f, {1}, 0));
}

TEST(Tolerance, SpecialValuesMustMatch) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  const auto minus = -static_cast<double>(inf);
  EXPECT_TRUE(agrees({0, 0}, -inf, {0, 0}, minus));
  EXPECT_FALSE(agrees({0, 1e-30f}, -inf, {0, 0}, minus));
  EXPECT_FALSE(agrees({0, 0}, -1e30f, {0, 0}, minus));
  EXPECT_FALSE(agrees({1, 2}, -inf, {1, 2}, 3));
  EXPECT_FALSE(agrees({nan, 0}, 3, {0, 0}, 3));
  EXPECT_FALSE(agrees({0, 0}, nan, {0, 0}, 3));
  EXPECT_TRUE(agrees({nan, 5}, nan, {std::nan(""), 5}, std::nan("")));
  EXPECT_FALSE(agrees({nan, 6}, nan, {std::nan(""), 5}, std::nan("")));
  EXPECT_FALSE(agrees({5, 5}, nan, {std::nan(""), 5}, std::nan("")));
  EXPECT_FALSE(agrees({inf, 5}, 3, {minus, 5}, 3));
}

}  // namespace
}  // namespace mlaverify::test
