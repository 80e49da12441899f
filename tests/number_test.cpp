// The number formats, against values computed another way: the formula of the format in double arithmetic.
#include "rules/number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "random.h"

namespace mlaverify::rules {
namespace {

// The value of a code with `e_bits` exponent and `m_bits` mantissa bits, by the definition.
double value_of(uint32_t code, int e_bits, int m_bits, bool finite) {
  const auto e = static_cast<int>((code >> m_bits) & ((1u << e_bits) - 1));
  const auto m = static_cast<int>(code & ((1u << m_bits) - 1));
  const int top = (1 << e_bits) - 1, bias = (1 << (e_bits - 1)) - 1;
  const double sign = (code >> (e_bits + m_bits)) & 1 ? -1 : 1;
  if (finite && e == top && m == (1 << m_bits) - 1) return std::nan("");
  if (!finite && e == top) return m == 0 ? sign * HUGE_VAL : std::nan("");
  const double fraction = std::ldexp(m, -m_bits);
  return e == 0 ? sign * std::ldexp(fraction, 1 - bias) : sign * std::ldexp(1 + fraction, e - bias);
}

void expect_same(double got, double want, uint32_t code) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << code;
  } else {
    EXPECT_EQ(got, want) << code;
    EXPECT_EQ(std::signbit(got), std::signbit(want)) << code;
  }
}

struct Format {
  int e_bits, m_bits;
  bool finite;
  float (*to_float)(uint32_t);
  uint32_t (*from_float)(float);
  uint32_t codes() const { return 1u << (1 + e_bits + m_bits); }
  double value(uint32_t code) const { return value_of(code, e_bits, m_bits, finite); }
};

constexpr Format kBf16 = {8, 7, false, [](uint32_t x) { return bf16_to_float(static_cast<uint16_t>(x)); },
                          [](float x) -> uint32_t { return float_to_bf16(x); }};
constexpr Format kF16 = {5, 10, false, [](uint32_t x) { return f16_to_float(static_cast<uint16_t>(x)); },
                         [](float x) -> uint32_t { return float_to_f16(x); }};
constexpr Format kE4m3 = {4, 3, true, [](uint32_t x) { return e4m3_to_float(static_cast<uint8_t>(x)); },
                          [](float x) -> uint32_t { return float_to_e4m3(x); }};
constexpr Format kE5m2 = {5, 2, false, [](uint32_t x) { return e5m2_to_float(static_cast<uint8_t>(x)); },
                          [](float x) -> uint32_t { return float_to_e5m2(x); }};

class NumberFormat : public testing::TestWithParam<Format> {};

TEST_P(NumberFormat, EveryCodeHasItsValue) {
  const Format f = GetParam();
  for (uint32_t code = 0; code < f.codes(); ++code) expect_same(static_cast<double>(f.to_float(code)), f.value(code), code);
}

TEST_P(NumberFormat, EveryCodeRoundTrips) {
  const Format f = GetParam();
  for (uint32_t code = 0; code < f.codes(); ++code) {
    const uint32_t back = f.from_float(f.to_float(code));
    if (std::isnan(f.value(code))) {
      EXPECT_TRUE(std::isnan(f.value(back))) << code;
      EXPECT_EQ(back >> (f.e_bits + f.m_bits), code >> (f.e_bits + f.m_bits)) << "sign of NaN " << code;
    } else {
      EXPECT_EQ(back, code);
    }
  }
}

// Nearest value, ties to the even code, by looking at the neighbours in double arithmetic.
uint32_t nearest(const Format &f, float x) {
  const uint32_t sign = std::signbit(x) ? f.codes() / 2 : 0;
  uint32_t last = 0;  // largest finite code
  for (uint32_t code = f.codes() / 2; code-- > 0 && last == 0;) last = std::isfinite(f.value(code)) ? code : 0;
  const double a = std::fabs(static_cast<double>(x));
  // What follows the largest value in the format, were there more exponents, decides where overflow begins.
  const double step = f.value(last) - f.value(last - 1);
  if (a >= f.value(last) + step / 2) return sign | (f.finite ? last : last + 1);
  uint32_t low = 0, high = last;
  while (low < high) {  // the largest code whose value is <= a
    const uint32_t middle = (low + high + 1) / 2;
    (f.value(middle) <= a ? low : high) = f.value(middle) <= a ? middle : middle - 1;
  }
  if (low == last) return sign | last;
  const double below = a - f.value(low), above = f.value(low + 1) - a;
  return sign | (below < above || (below == above && low % 2 == 0) ? low : low + 1);
}

TEST_P(NumberFormat, RoundsToNearestTiesToEven) {
  const Format f = GetParam();
  const auto expect = [&](float x) { ASSERT_EQ(f.from_float(x), nearest(f, x)) << x; };
  // Around every tie and every value (bf16 and f16: a stride of them), to both sides.
  const uint32_t stride = f.codes() > 256 ? 7 : 1;
  for (uint32_t code = 0; code + 1 < f.codes() / 2; code += stride) {
    if (!std::isfinite(f.value(code + 1))) continue;
    const double middle = (f.value(code) + f.value(code + 1)) / 2;
    for (const double x : {f.value(code), middle}) {
      const auto at = static_cast<float>(x);
      for (const float near : {at, std::nextafter(at, -1.0f), std::nextafter(at, HUGE_VALF)}) {
        if (!std::isfinite(near)) continue;
        expect(near);
        expect(-near);
      }
    }
  }
  cli::Random random(7);
  for (int i = 0; i < 20000; ++i) {
    const float x = float_from_bits(static_cast<uint32_t>(random.next()));
    if (!std::isnan(x)) expect(x);
    expect(random.normal());
  }
  for (const float x :
       {0.0f, -0.0f, HUGE_VALF, -HUGE_VALF, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()})
    expect(x);
}

std::string format_name(const testing::TestParamInfo<Format> &i) {
  return i.param.m_bits == 7 ? "bf16" : i.param.m_bits == 10 ? "f16" : i.param.finite ? "e4m3" : "e5m2";
}
INSTANTIATE_TEST_SUITE_P(All, NumberFormat, testing::Values(kBf16, kF16, kE4m3, kE5m2), format_name);

TEST(Number, LoadAndStoreByType) {
  alignas(4) unsigned char memory[16];
  for (const DType t : {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2}) {
    cli::poison(memory, sizeof memory);
    EXPECT_TRUE(std::isnan(load_float(t, memory, 1)));
    store_float(t, memory, 1, -1.5f);
    EXPECT_EQ(load_float(t, memory, 1), -1.5f);
    EXPECT_TRUE(std::isnan(load_float(t, memory, 0)));
    EXPECT_TRUE(std::isnan(load_float(t, memory, 2)));
    EXPECT_EQ(dtype_bytes(t), t == DType::f32 ? 4 : is_fp8(t) ? 1 : 2);
  }
  for (const DType none : {DType::i32, DType::f8_ds_mla}) EXPECT_TRUE(std::isnan(load_float(none, memory, 0)));
}

}  // namespace
}  // namespace mlaverify::rules
