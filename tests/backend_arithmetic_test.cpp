// FP8 caches and their scale, and special numbers: NaN and infinity where the oracle has them and nowhere else.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "rules/number.h"
#include "support/test_call.h"

namespace mlaverify::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Fp8, Scales) {
  for (const DType type : {DType::f8_e4m3, DType::f8_e5m2}) {
    for (const float scale : {1.0f, 0.25f, 7.3f, 0x1p-10f, -2.0f, 0.0f}) {
      for (const DType q : {DType::bf16, DType::f16, DType::f32}) {
        TestCase c;
        c.lens = {70, 3, 0};
        c.lk = c.lv = 128;
        c.q_dtype = q;
        c.kv_dtype = type;
        c.kv_sigma = 4;
        c.sm_scale = 0.05f;
        c.k_scale = scale;
        EXPECT_EQ(check(c), "");
      }
    }
  }
}

TEST(Fp8, NoScaleMeansOne) {
  TestCase c;
  c.kv_dtype = DType::f8_e4m3;
  TestCall without(c);
  ASSERT_EQ(without.run_and_compare(), "");
  c.k_scale = 1;
  TestCall with(c);
  ASSERT_EQ(with.run(), "");
  EXPECT_EQ(with.bits(), without.bits());
}

// A power of two times an FP8 number is a bf16 number: the dequantised cache as bf16 gives the same result.
TEST(Fp8, EqualsTheDequantisedCache) {
  TestCase c;
  c.lens = {70, 3};
  c.kv_dtype = DType::f8_e5m2;
  c.k_scale = 0.25f;
  c.q_dtype = DType::f32;
  TestCall packed(c);
  ASSERT_EQ(packed.run_and_compare(), "");
  c.kv_dtype = DType::bf16;
  TestCall wide(c);
  for (int32_t b = 0; b < 2; ++b) {
    for (int32_t k = 0; k < c.lens[static_cast<std::size_t>(b)]; ++k) {
      for (int32_t d = 0; d < c.lk; ++d) wide.set_key(b, k, d, 0.25f * rules::load_float(DType::f8_e5m2, packed.key(b, k), d));
    }
  }
  ASSERT_EQ(wide.run_and_compare(), "");
  for (int32_t h = 0; h < c.heads; ++h) {
    EXPECT_NEAR(wide.lse(0, 1, h), packed.lse(0, 1, h), 1e-5);
    for (int32_t column = 0; column < c.lv; ++column) EXPECT_NEAR(wide.out(0, 1, h, column), packed.out(0, 1, h, column), 1e-5);
  }
}

// bf16 queries over an FP8 cache, of the widths that kernels are made for.
TestCase fp8_case(DType type, int32_t heads, int32_t qlen, std::vector<int32_t> lens) {
  TestCase c;
  c.q_dtype = DType::bf16;
  c.kv_dtype = type;
  c.lk = 576;
  c.lv = 512;
  c.heads = heads;
  c.qlen = qlen;
  c.lens = std::move(lens);
  return c;
}

// A row with one key is its value: each of the 256 codes in each column, for rows that tiles of any size hold.
TEST(Fp8, EveryCodeIsItsNumber) {
  for (const DType type : {DType::f8_e4m3, DType::f8_e5m2}) {
    for (const int32_t heads : {1, 20, 40}) {
      TestCase c = fp8_case(type, heads, 1, std::vector<int32_t>(256, 1));
      c.k_scale = 0.5f;
      TestCall call(c);
      const auto number = [type](int32_t code) {
        const auto x = static_cast<uint8_t>(code);
        return type == DType::f8_e4m3 ? rules::e4m3_to_float(x) : rules::e5m2_to_float(x);
      };
      const auto code_in = [&](int32_t request, int32_t column) {
        const int32_t code = (request + column) % 256;
        return std::isfinite(number(code)) ? code : 1;
      };
      for (int32_t b = 0; b < 256; ++b) {
        auto *key = static_cast<uint8_t *>(call.key(b, 0));
        for (int32_t d = 0; d < c.lk; ++d) key[d] = static_cast<uint8_t>(code_in(b, d));
      }
      call.fill_queries(0.0f);
      ASSERT_EQ(call.run(), "");
      for (int32_t b = 0; b < 256; ++b) {
        for (int32_t h = 0; h < heads; ++h) {
          for (int32_t d = 0; d < c.lv; ++d)
            ASSERT_EQ(call.out(b, 0, h, d), 0.5f * number(code_in(b, d)))
                << "code " << code_in(b, d) << ", request " << b << ", head " << h << ", column " << d;
        }
      }
    }
  }
}

// Codes that are no numbers: rows that see one are NaN, in whatever column it is, and other requests don't notice.
TEST(Fp8, CodesThatAreNoNumbers) {
  for (const auto &[type, code] : {std::pair{DType::f8_e4m3, 0x7f},
                                   {DType::f8_e4m3, 0xff},
                                   {DType::f8_e5m2, 0x7d},
                                   {DType::f8_e5m2, 0xfe},
                                   {DType::f8_e5m2, 0x7c},
                                   {DType::f8_e5m2, 0xfc}}) {
    for (const int32_t dim : {0, 33, 300, 511, 512, 575}) {
      for (const int32_t heads : {3, 20, 40}) {
        TestCase c = fp8_case(type, heads, 2, {300, 40});
        c.sm_scale = 0.05f;
        TestCall call(c);
        static_cast<uint8_t *>(call.key(0, 100))[dim] = static_cast<uint8_t>(code);
        ASSERT_EQ(call.run_and_compare(), "") << "code " << code << ", column " << dim << ", heads " << heads;
      }
    }
  }
}

TEST(Fp8, TheScaleOfOtherCachesIsIgnored) {
  for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
    TestCase c;
    c.kv_dtype = type;
    TestCall without(c);
    ASSERT_EQ(without.run(), "");
    for (const float scale : {7.3f, kNan}) {
      c.k_scale = scale;
      TestCall with(c);
      ASSERT_EQ(with.run_and_compare(), "");
      EXPECT_EQ(with.bits(), without.bits());
    }
  }
}

// Every combination of types.
TEST(Types, All) {
  for (const DType q : {DType::bf16, DType::f16, DType::f32}) {
    for (const DType kv : {DType::bf16, DType::f16, DType::f32, DType::f8_e4m3, DType::f8_e5m2}) {
      for (const int32_t lv : {32, 128}) {  // narrower and as wide as bf16 products take
        TestCase c;
        c.lens = {77, 130};
        c.lk = 128;
        c.lv = lv;
        c.q_dtype = q;
        c.kv_dtype = kv;
        EXPECT_EQ(check(c), "");
      }
    }
  }
}

// Widths at the limits, and those whose vectors don't come in pairs.
TEST(Types, Widths) {
  for (const auto &[lk, lv] : std::vector<std::pair<int32_t, int32_t>>{
           {8, 8}, {16, 8}, {24, 24}, {40, 8}, {288, 256}, {576, 512}, {1024, 1024}, {1024, 8}, {1000, 968}}) {
    TestCase c;
    c.lk = lk;
    c.lv = lv;
    c.lens = {70};
    c.sm_scale = 0.05f;
    EXPECT_EQ(check(c), "");
  }
}

// ---- Special numbers --------------------------------------------------------------------------------------------------

class Special : public testing::TestWithParam<DType> {
 protected:
  // bf16: widths that bf16 products take. A number of a key that is no value.
  static bool wide() { return GetParam() == DType::bf16; }
  static int32_t beside_the_value() { return wide() ? 159 : 23; }

  // Lengths below, at and beyond a chunk of keys.
  void expect_as_oracle(const std::function<void(TestCall &)> &change) const {
    TestCase c;
    c.lens = {9, 70, 600, 1100};
    c.qlen = 2;
    c.lk = wide() ? 160 : 24;
    c.lv = wide() ? 128 : 16;
    c.q_dtype = GetParam();
    c.kv_dtype = GetParam();
    TestCall call(c);
    change(call);
    for (const int32_t threads : {1, 3}) {
      call.args.num_threads = threads;
      EXPECT_EQ(call.run_and_compare(), "");
    }
  }
};

TEST_P(Special, Scales) {
  for (const float scale : {-0.2f, 0.0f, -0.0f, kNan, kInf, -kInf, 1e-40f}) {
    SCOPED_TRACE(scale);
    expect_as_oracle([=](TestCall &call) { call.args.sm_scale = scale; });
  }
}

TEST_P(Special, Queries) {
  for (const float value : {kNan, kInf, -kInf}) {
    SCOPED_TRACE(value);
    expect_as_oracle([=](TestCall &call) {
      for (int32_t b = 0; b < 4; ++b) call.set_query(b, 1, 2, 20, value);
    });
  }
}

// A key that every row sees, in the first, a middle and the last place; its first number is part of the value, its last not.
TEST_P(Special, Keys) {
  for (const float value : {kNan, kInf, -kInf}) {
    for (const int32_t dim : {0, beside_the_value()}) {
      for (const int32_t place : {0, 1, 2}) {
        SCOPED_TRACE(std::to_string(value) + " in number " + std::to_string(dim) + ", place " + std::to_string(place));
        expect_as_oracle([=](TestCall &call) {
          const int32_t lens[] = {9, 70, 600, 1100};
          for (int32_t b = 0; b < 4; ++b) call.set_key(b, place == 0 ? 0 : place == 1 ? lens[b] / 2 : lens[b] - 2, dim, value);
        });
      }
    }
  }
}

// All scores -inf: the softmax is undefined, unlike that of a row without keys.
TEST_P(Special, AllScoresMinusInfinity) {
  expect_as_oracle([](TestCall &call) {
    const int32_t lens[] = {9, 70, 600, 1100};
    for (int32_t b = 0; b < 4; ++b) {
      for (int32_t k = 0; k < lens[b]; ++k) call.set_key(b, k, beside_the_value(), 1);
      for (int32_t t = 0; t < 2; ++t) {
        for (int32_t h = 0; h < 3; ++h) call.set_query(b, t, h, beside_the_value(), -kInf);
      }
    }
  });
}

// The first keys have scores -inf, the rest not. Infinite values among them give 0 * inf = NaN (number 0), except where a whole
// chunk of keys weighs nothing: then what its values are does not show (rules/merge.h).
TEST_P(Special, SomeScoresMinusInfinity) {
  const int32_t beside = beside_the_value();
  for (const auto &[dim, count] : {std::pair{0, 5}, {0, 64}, {beside, 5}, {beside, 64}, {beside, 512}, {beside, 590}}) {
    SCOPED_TRACE(std::to_string(count) + " keys, number " + std::to_string(dim));
    expect_as_oracle([dim = dim, count = count](TestCall &call) {
      const int32_t lens[] = {9, 70, 600, 1100};
      for (int32_t b = 0; b < 4; ++b) {
        for (int32_t k = 0; k < std::min(count, lens[b] - 2); ++k) call.set_key(b, k, dim, kInf);
        for (int32_t t = 0; t < 2; ++t) {
          for (int32_t h = 0; h < 3; ++h) call.set_query(b, t, h, dim, -1);
        }
      }
    });
  }
}

std::string type_name(const testing::TestParamInfo<DType> &i) {
  const char *const names[] = {"f32", "f16", "bf16"};
  return names[static_cast<int32_t>(i.param)];
}
INSTANTIATE_TEST_SUITE_P(Type, Special, testing::Values(DType::f32, DType::f16, DType::bf16), type_name);

TEST(Arithmetic, SharpSoftmax) {
  for (const float sigma : {20.0f, 200.0f}) {
    TestCase c;
    c.lens = {700, 90};
    c.lk = c.lv = 128;
    c.q_sigma = sigma;
    EXPECT_EQ(check(c), "");
  }
}

// A score of 1000 known to 24 bits moves its weight by more than the tolerance of f32: as if f32 arithmetic had no such limit.
TEST(Arithmetic, LargeScoresOfF32Queries) {
  for (const DType kv : {DType::f32, DType::bf16, DType::f8_e5m2}) {
    for (const float sigma : {60.0f, 400.0f, 3e4f}) {
      for (const int32_t splits : {0, 3}) {
        TestCase c;
        c.lens = {320, 1100, 7};
        c.lk = 288;
        c.lv = 256;
        c.heads = 5;
        c.q_dtype = DType::f32;
        c.kv_dtype = kv;
        c.q_sigma = sigma;
        c.num_kv_splits = splits;
        EXPECT_EQ(check(c), "");
      }
    }
  }
}

// Beyond any use, but numbers: one key decides, and its weight is 1.
TEST(Arithmetic, HugeScoresOfF32Queries) {
  for (const float scale : {1e6f, 1e8f, 2e8f, 4e8f, 1e9f, 3e9f, 1e10f, 1e15f, 1e25f, 1e35f, -1e9f, -1e20f}) {
    for (const int32_t len : {1, 5, 700}) {
      SCOPED_TRACE(scale);
      TestCase c;
      c.lens = {len, 3};
      c.q_dtype = c.kv_dtype = DType::f32;
      c.sm_scale = scale;
      EXPECT_EQ(check(c), "");
    }
  }
}

// Terms of one sign: their rounding does not average out. Keys differ in numbers that are no values.
TEST(Arithmetic, OneSidedSumsOfF32Queries) {
  for (const auto &[lk, lv] : {std::pair{1024, 256}, {1024, 8}, {768, 256}, {576, 8}, {576, 256}, {576, 512}, {320, 8}}) {
    for (const float bound : {30.0f, 46.0f, 60.0f, 100.0f, 126.0f}) {
      TestCase c;
      c.lens = {300};
      c.qlen = 1;
      c.lk = lk;
      c.lv = lv;
      c.q_dtype = c.kv_dtype = DType::f32;
      TestCall call(c);
      call.fill_queries(0.77f);
      for (int32_t k = 0; k < 300; ++k) {
        const float value = 0.5f + 0.001f * static_cast<float>(k % 37);
        for (int32_t d = lv; d < lk; ++d) call.set_key(0, k, d, value);
      }
      call.args.sm_scale = bound / (0.77f * 0.52f * static_cast<float>(lk));
      EXPECT_EQ(call.run_and_compare(), "") << lk << " " << lv << " " << bound;
    }
  }
}

// The terms of the products are larger than the scores by five orders of magnitude and cancel.
TEST(Arithmetic, CancellingScoresOfF32Queries) {
  TestCase c;
  c.lens = {150, 5};
  c.lk = 64;
  c.q_dtype = c.kv_dtype = DType::f32;
  TestCall call(c);
  for (int32_t b = 0; b < c.batch(); ++b) {
    for (int32_t k = 0; k < c.lens[static_cast<std::size_t>(b)]; ++k) {
      for (const int32_t d : {40, 61}) call.set_key(b, k, d, 700.0f);
    }
    for (int32_t t = 0; t < c.qlen; ++t) {
      for (int32_t h = 0; h < c.heads; ++h) {
        call.set_query(b, t, h, 40, 1000.0f);
        call.set_query(b, t, h, 61, -1000.0f);
      }
    }
  }
  EXPECT_EQ(call.run_and_compare(), "");
}

// Products beyond the range of f32, up or down, with a scale that brings the scores back.
TEST(Arithmetic, ProductsBeyondF32OfF32Queries) {
  struct Magnitudes {
    float q, kv, scale;
  };
  for (const Magnitudes m : {Magnitudes{1e20f, 1e20f, 1e-38f},
                             {1e-25f, 1e-20f, 1e38f},
                             {1e-20f, 1e-20f, 3e38f},
                             {1e30f, 1e-30f, 0.3f},
                             {1e38f, 1e-5f, 1e-33f},
                             {1e-30f, 1e30f, 0.3f},
                             {1e38f, 3.0f, 0.0f}}) {
    SCOPED_TRACE(m.q);
    TestCase c;
    c.lens = {150, 5};
    c.q_dtype = c.kv_dtype = DType::f32;
    c.q_sigma = m.q;
    c.kv_sigma = m.kv;
    c.sm_scale = m.scale;
    EXPECT_EQ(check(c), "");
  }
}

// Values whose average is beyond the largest f16.
TEST(Arithmetic, F16OutputsOverflowToInfinity) {
  TestCase c;
  c.kv_dtype = DType::f32;
  c.q_dtype = DType::f16;
  TestCall call(c);
  call.fill_queries(0);
  for (int32_t k = 0; k < 9; ++k) call.set_key(0, k, 3, 1e6f);
  ASSERT_EQ(call.run_and_compare(), "");
  EXPECT_EQ(call.out(0, 0, 0, 3), kInf);
}

}  // namespace
}  // namespace mlaverify::test
