// The conversions of each instruction set against rules/number.h, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "random.h"
#include "rules/number.h"
#include "support/vec_access.h"

namespace mlaverify::test {
namespace {

using rules::bits_from_float;

constexpr uint32_t kMost = 16;  // lanes

// NaN stays NaN; which one is left to the hardware.
void expect_same(float got, float want, uint32_t code) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << code;
  } else {
    EXPECT_EQ(bits_from_float(got), bits_from_float(want)) << code;
  }
}

// All codes, each in all lanes over time: a code's lane is its place in the array.
template <class Code>
void expect_all_codes(uint32_t width, void (*load)(const Code *, float *), float (*to_float)(Code)) {
  constexpr uint32_t count = 1u << (8 * sizeof(Code));
  std::vector<Code> codes(count + kMost);
  for (uint32_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<Code>(i);
  for (uint32_t first = 0; first < width; ++first) {
    for (uint32_t i = first; i < count; i += width) {
      float got[kMost];
      load(codes.data() + i, got);
      for (uint32_t lane = 0; lane < width; ++lane) expect_same(got[lane], to_float(codes[i + lane]), i + lane);
    }
  }
}

void expect_store(void (*store)(const float *, uint16_t *), uint16_t (*from_float)(float), float (*to_float)(uint16_t),
                  const float (&x)[kMost], int width) {
  uint16_t got[kMost];
  store(x, got);
  for (int lane = 0; lane < width; ++lane) {
    if (std::isnan(x[lane])) {
      EXPECT_TRUE(std::isnan(to_float(got[lane]))) << bits_from_float(x[lane]);
    } else {
      ASSERT_EQ(got[lane], from_float(x[lane])) << bits_from_float(x[lane]);
    }
  }
}

class VecTest : public testing::TestWithParam<const VecAccess *> {
 protected:
  void SetUp() override {
#if defined(MLAVERIFY_X86)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (GetParam() == &avx2_vec() && !avx2) GTEST_SKIP() << "this processor lacks AVX2, FMA or F16C";
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (GetParam() == &avx512_vec() && !(avx2 && avx512))
      GTEST_SKIP() << "this processor lacks AVX-512 F, BW, DQ or VL, AVX2, FMA or F16C";
#endif
  }
};

TEST_P(VecTest, LoadsEveryCode) {
  const VecAccess &v = *GetParam();
  const auto width = static_cast<uint32_t>(v.width);
  expect_all_codes<uint16_t>(width, v.load_f16, [](uint16_t x) { return rules::f16_to_float(x); });
  expect_all_codes<uint16_t>(width, v.load_bf16, [](uint16_t x) { return rules::bf16_to_float(x); });
  expect_all_codes<uint8_t>(width, v.load_e4m3, [](uint8_t x) { return rules::e4m3_to_float(x); });
  expect_all_codes<uint8_t>(width, v.load_e5m2, [](uint8_t x) { return rules::e5m2_to_float(x); });
}

TEST_P(VecTest, StoresAsTheRuleDoes) {
  const VecAccess &v = *GetParam();
  const auto expect = [&](const float(&x)[kMost]) {
    expect_store(
        v.store_f16, [](float y) { return rules::float_to_f16(y); }, [](uint16_t y) { return rules::f16_to_float(y); }, x,
        v.width);
    expect_store(
        v.store_bf16, [](float y) { return rules::float_to_bf16(y); }, [](uint16_t y) { return rules::bf16_to_float(y); }, x,
        v.width);
  };
  // Each 16-bit value, the middle to the next (a tie), and what lies just beside it.
  for (uint32_t code = 0; code < 0x10000; ++code) {
    for (const bool f16 : {true, false}) {
      const auto c = static_cast<uint16_t>(code);
      const uint32_t value = bits_from_float(f16 ? rules::f16_to_float(c) : rules::bf16_to_float(c));
      const uint32_t tie = value + (f16 ? 0x1000u : 0x8000u);
      float x[kMost];
      for (uint32_t i = 0; i < kMost; ++i) x[(i + code) % kMost] = rules::float_from_bits((i < 3 ? value : tie) + i % 3 - 1);
      expect(x);
      if (HasFatalFailure()) return;
    }
  }
  cli::Random random(3);
  for (int i = 0; i < 20000; ++i) {
    float x[kMost];
    for (float &lane : x) lane = rules::float_from_bits(static_cast<uint32_t>(random.next()));
    expect(x);
    if (HasFatalFailure()) return;
  }
}

TEST_P(VecTest, ReducesInTheDocumentedOrder) {
  cli::Random random(5);
  for (int i = 0; i < 1000; ++i) {
    float x[kMost], y[8];
    for (float &lane : x) lane = random.normal();
    for (int lane = 0; lane < 8; ++lane) y[lane] = GetParam()->width == 8 ? x[lane] : x[lane] + x[lane + 8];
    const float sum = ((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]));
    EXPECT_EQ(bits_from_float(GetParam()->sum(x)), bits_from_float(sum));
    EXPECT_EQ(GetParam()->largest(x), *std::max_element(x, x + GetParam()->width));
  }
}

std::string isa_name(const testing::TestParamInfo<const VecAccess *> &i) { return i.param->name; }
INSTANTIATE_TEST_SUITE_P(Scalar, VecTest, testing::Values(&scalar_vec()), isa_name);
#if defined(MLAVERIFY_X86)
INSTANTIATE_TEST_SUITE_P(Avx2, VecTest, testing::Values(&avx2_vec()), isa_name);
INSTANTIATE_TEST_SUITE_P(Avx512, VecTest, testing::Values(&avx512_vec()), isa_name);
#endif

}  // namespace
}  // namespace mlaverify::test
