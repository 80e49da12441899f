// The conversions of each instruction set against rules/number.h, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/features.h"
#include "random.h"
#include "rules/number.h"
#include "support/bf16_access.h"
#include "support/vec_access.h"

namespace mlaverify::test {
namespace {

using rules::bits_from_float;

constexpr uint32_t kMost = 32;  // numbers of two vectors

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

#if defined(MLAVERIFY_X86)
void skip_without(cpu::IsaKind kind) {
  if (const std::string missing = missing_for(kind); !missing.empty()) GTEST_SKIP() << "this machine lacks " << missing;
}
#endif

class VecTest : public testing::TestWithParam<const VecAccess *> {
 protected:
  void SetUp() override {
#if defined(MLAVERIFY_X86)
    if (GetParam() == &avx2_vec()) skip_without(cpu::IsaKind::avx2);
    if (GetParam() == &avx512_vec()) skip_without(cpu::IsaKind::avx512);
#endif
  }
};

TEST_P(VecTest, LoadsEveryCode) {
  const VecAccess &v = *GetParam();
  const auto width = static_cast<uint32_t>(v.width);
  expect_all_codes<uint16_t>(width, v.load_f16, [](uint16_t x) { return rules::f16_to_float(x); });
  expect_all_codes<uint16_t>(width, v.load_bf16, [](uint16_t x) { return rules::bf16_to_float(x); });
  expect_all_codes<uint16_t>(2 * width, v.load_bf16_pairs, [](uint16_t x) { return rules::bf16_to_float(x); });
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

// ---- AVX512-BF16, and the operands of AMX, which it packs --------------------------------------------------------------------

constexpr uint16_t kNanCode = 0x7fc0, kInfCode = 0x7f80;

class Bf16Test : public testing::Test {
 protected:
  void SetUp() override { skip_without(cpu::IsaKind::avx512_bf16); }
  const Bf16Access &b = bf16_access();
};

// As the rule, but denormals become zeros of their sign.
TEST_F(Bf16Test, RoundsToNearestEven) {
  const auto expect = [&](const float(&x)[32]) {
    uint16_t got[32];
    b.round(x, got);
    for (int i = 0; i < 32; ++i) {
      const uint32_t bits = bits_from_float(x[i]);
      if (std::isnan(x[i])) {
        ASSERT_TRUE(std::isnan(rules::bf16_to_float(got[i]))) << bits;
      } else {
        ASSERT_EQ(got[i], (bits & 0x7f800000) == 0 ? bits >> 31 << 15 : rules::float_to_bf16(x[i])) << bits;
      }
    }
  };
  for (uint32_t code = 0; code < 0x10000; ++code) {
    float x[32];
    for (uint32_t i = 0; i < 32; ++i) {  // a number, the middle to the next, and what lies beside both
      const uint32_t at = (code << 16) + (i % 6 < 3 ? 0 : 0x8000);
      x[(i + code) % 32] = rules::float_from_bits(at + i % 3 - 1);
    }
    expect(x);
    if (HasFatalFailure()) return;
  }
}

TEST_F(Bf16Test, ConvertsEveryFp8Code) {
  for (const DType type : {DType::f8_e4m3, DType::f8_e5m2}) {
    for (const int32_t n : {32, 64, 96, 256}) {
      for (int32_t first = 0; first < 256; first += 7) {
        std::vector<uint8_t> codes(static_cast<std::size_t>(n));  // exactly, so that a sanitiser sees a read behind
        for (int32_t i = 0; i < n; ++i) codes[static_cast<std::size_t>(i)] = static_cast<uint8_t>(first + i);
        std::vector<uint16_t> got(static_cast<std::size_t>(n) + 1, 0x1234);
        b.fp8_to_bf16(type, codes.data(), n, got.data());
        for (int32_t i = 0; i < n; ++i) {
          const float want = rules::load_float(type, codes.data(), i);
          expect_same(rules::bf16_to_float(got[static_cast<std::size_t>(i)]), want, codes[static_cast<std::size_t>(i)]);
        }
        EXPECT_EQ(got.back(), 0x1234);
      }
    }
  }
}

// Every e4m3 number times scales of all kinds, as the values of records.
TEST_F(Bf16Test, ScalesAndRounds) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float scale : {1.0f, 0.25f, 7.3f, 0x1p-10f, 0.0123f, -2.7f, 0.0f, 0x1p119f, inf, -inf, std::nanf("")}) {
    for (uint32_t first = 0; first < 256; first += 32) {
      uint16_t codes[32], got[32];
      for (uint32_t i = 0; i < 32; ++i) codes[i] = rules::float_to_bf16(rules::e4m3_to_float(static_cast<uint8_t>(first + i)));
      b.scaled(codes, scale, got);
      for (uint32_t i = 0; i < 32; ++i) {
        const float want = rules::bf16_to_float(rules::float_to_bf16(rules::bf16_to_float(codes[i]) * scale));
        expect_same(rules::bf16_to_float(got[i]), want, first + i);
      }
    }
  }
}

TEST_F(Bf16Test, PairsNumbersInTheSamePlace) {
  uint16_t x[32], y[32], first[32], last[32];
  for (uint16_t i = 0; i < 32; ++i) {
    x[i] = static_cast<uint16_t>(i % 5 == 0 ? kNanCode + i : 1 + i);
    y[i] = static_cast<uint16_t>(100 + i);
  }
  b.pairs(x, y, first, last);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(first[2 * i], x[i]);
    EXPECT_EQ(first[2 * i + 1], y[i]);
    EXPECT_EQ(last[2 * i], x[16 + i]);
    EXPECT_EQ(last[2 * i + 1], y[16 + i]);
  }
}

// A key without a partner is paired with zeros, and its weight with 0. NaN stays in its lane.
TEST_F(Bf16Test, MultipliesPairs) {
  uint16_t key[32], zeros[32] = {}, keys[32], rest[32], weights[32];
  float c[16], got[16];
  for (int i = 0; i < 16; ++i) {
    key[i] = i == 3 ? kNanCode : i == 5 ? kInfCode : rules::float_to_bf16(static_cast<float>(i));
    key[16 + i] = 0;
    weights[2 * i] = rules::float_to_bf16(0.5f);
    weights[2 * i + 1] = 0;
    c[i] = 8;
  }
  b.pairs(key, zeros, keys, rest);
  b.multiply_add(weights, keys, c, got);
  for (int i = 0; i < 16; ++i) expect_same(got[i], 8 + 0.5f * rules::bf16_to_float(key[i]), static_cast<uint32_t>(i));
  b.pairs(key, key, keys, rest);
  for (int i = 0; i < 16; ++i) weights[2 * i + 1] = rules::float_to_bf16(2);
  b.multiply_add(weights, keys, c, got);
  for (int i = 0; i < 16; ++i) expect_same(got[i], 8 + 2.5f * rules::bf16_to_float(key[i]), static_cast<uint32_t>(i));
}

// Number i of row r is 32 r + i, but for rows that are not there.
TEST_F(Bf16Test, PacksRowsInPairsAlongTheWidth) {
  constexpr int32_t width = 96;
  std::vector<uint16_t> rows(16 * width);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint16_t>(i);
  const uint16_t *row[16];
  for (int r = 0; r < 16; ++r) row[r] = r < 13 ? rows.data() + r * width : nullptr;
  std::vector<uint32_t> packed(width / 32 * 256 + 1, 7);
  b.pack_rows(row, width, packed.data());
  for (int32_t pair = 0; pair < width / 2; ++pair) {
    for (int r = 0; r < 16; ++r) {
      const uint32_t got = packed[static_cast<std::size_t>(pair * 16 + r)];
      EXPECT_EQ(got & 0xffff, r < 13 ? static_cast<uint32_t>(r * width + 2 * pair) : 0);
      EXPECT_EQ(got >> 16, r < 13 ? static_cast<uint32_t>(r * width + 2 * pair + 1) : 0);
    }
  }
  EXPECT_EQ(packed.back(), 7u);
}

TEST_F(Bf16Test, PacksValuesInPairsOfKeysAndClearsOne) {
  constexpr int32_t width = 64;
  std::vector<uint16_t> values(32 * width);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i % 11 == 0 ? kNanCode : i);
  const char *keys[32];
  for (int k = 0; k < 32; ++k) keys[k] = reinterpret_cast<const char *>(values.data() + k * width);
  std::vector<uint32_t> packed(width / 16 * 256 + 1, 7);
  const auto expect = [&](int cleared) {
    for (int32_t c = 0; c < width; ++c) {
      for (int k = 0; k < 32; ++k) {
        const uint32_t pair = packed[static_cast<std::size_t>(c / 16 * 256 + k / 2 * 16 + c % 16)];
        EXPECT_EQ(k % 2 == 0 ? pair & 0xffff : pair >> 16, k >= cleared ? 0u : values[static_cast<std::size_t>(k * width + c)])
            << k << " " << c;
      }
    }
    EXPECT_EQ(packed.back(), 7u);
  };
  b.pack_values(keys, width, packed.data());
  expect(32);
  for (int k = 31; k >= 0; --k) {
    b.clear_packed_key(k, width, packed.data());
    expect(k);
  }
}

TEST_F(Bf16Test, FindsWhatIsNotFinite) {
  std::vector<uint16_t> row(96);
  for (std::size_t i = 0; i < row.size(); ++i)
    row[i] = static_cast<uint16_t>((i % 2 << 15) + 0x7f7f - i);  // the largest, denormals
  row[1] = 1;
  const auto *const bytes = reinterpret_cast<const char *>(row.data());
  EXPECT_TRUE(b.all_finite(bytes, 96));
  for (std::size_t i = 0; i < row.size(); ++i) {
    for (const uint16_t code : {kNanCode, kInfCode, uint16_t{0xff80}, uint16_t{0xffff}}) {
      const uint16_t finite = row[i];
      row[i] = code;
      EXPECT_FALSE(b.all_finite(bytes, 96)) << i;
      EXPECT_EQ(b.all_finite(bytes, 64), i >= 64) << i;
      row[i] = finite;
    }
  }
}

TEST_F(Bf16Test, RoundsWeightsOfTwoKeysInPairs) {
  float x[16], y[16];
  for (int i = 0; i < 16; ++i) {
    x[i] = 1 + static_cast<float>(i) * 0x1p-8f;  // every other one a tie
    y[i] = i == 7 ? std::numeric_limits<float>::quiet_NaN() : -x[i];
  }
  uint16_t got[32];
  b.rounded_pairs(x, y, got);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(got[2 * i], rules::float_to_bf16(x[i]));
    expect_same(rules::bf16_to_float(got[2 * i + 1]), rules::bf16_to_float(rules::float_to_bf16(y[i])),
                static_cast<uint32_t>(i));
  }
}
#endif

}  // namespace
}  // namespace mlaverify::test
