// Caches of 656-byte records: every number of one through both products, scales of all kinds, unused slots.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "support/test_call.h"

namespace mlaverify::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr DType kQueryTypes[] = {DType::bf16, DType::f16, DType::f32};

TestCase record_case(std::vector<int32_t> lens) {
  TestCase c;
  c.lk = rules::kRecordWidth;
  c.lv = rules::kRecordScaled;
  c.kv_dtype = DType::f8_ds_mla;
  c.lens = std::move(lens);
  c.sm_scale = 0.05f;
  return c;
}

// Calls f(request, key) for each key.
template <class F>
void for_keys(const TestCase &c, F f) {
  for (int32_t b = 0; b < c.batch(); ++b) {
    for (int32_t k = 0; k < c.lens[static_cast<std::size_t>(b)]; ++k) f(b, k);
  }
}

void set_scales(TestCall &call, const TestCase &c, std::array<float, 4> scales) {
  for_keys(c, [&](int32_t b, int32_t k) {
    for (int32_t g = 0; g < 4; ++g) call.set_group_scale(b, k, g, scales[static_cast<std::size_t>(g)]);
  });
}

// One key a request, so that a row is its value; a query with one number, so that its score is that number of the key.
TEST(Records, EveryCodeInEveryGroup) {
  for (const float scale : {1.0f, 0.25f, 7.3f, 0x1p-10f, -0.0123f}) {
    for (const DType q : kQueryTypes) {
      TestCase c = record_case({1, 1, 1, 1});
      c.heads = rules::kRecordWidth;
      c.qlen = 1;
      c.q_dtype = q;
      c.sm_scale = 1;
      TestCall call(c);
      call.fill_queries(0);
      for (int32_t b = 0; b < 4; ++b) {
        auto *codes = static_cast<uint8_t *>(call.key(b, 0));
        for (int32_t d = 0; d < rules::kRecordScaled; ++d) {
          const auto code = static_cast<uint8_t>(d + 64 * b);
          codes[d] = (code & 0x7f) == 0x7f ? 1 : code;  // not NaN
        }
        for (int32_t h = 0; h < c.heads; ++h) call.set_query(b, 0, h, h, 1);
      }
      set_scales(call, c, {scale, 2 * scale, 0.7f * scale, scale});
      ASSERT_EQ(call.run_and_compare(17), "");
      const double tolerance = q == DType::f32 ? 1e-6 : 0x1p-7, tiny = q == DType::f16 ? 0x1p-24 : 0;
      for (int32_t b = 0; b < 4; ++b) {
        for (int32_t d = 0; d < c.lk; ++d) {
          const auto want = static_cast<double>(rules::row_number(c.kv_dtype, call.key(b, 0), d));
          // (The weight may be relative to 2^7, whose logarithm is 5. Codes are 1.3e-6 apart.)
          ASSERT_NEAR(call.lse(b, 0, d), want, 1e-6 * std::abs(want) + 5e-7) << scale << " number " << d;
          if (d >= c.lv) continue;
          ASSERT_NEAR(call.out(b, 0, 5, d), want, tolerance * std::abs(want) + tiny) << scale << " number " << d;
        }
      }
    }
  }
}

TEST(Records, Scales) {
  for (const float scale : {1.0f, 0.25f, 7.3f, 0x1p-10f, 0x1p-20f, -2.0f, 0.0f}) {
    for (const DType q : kQueryTypes) {
      if (q == DType::f16 && scale == 0x1p-20f) continue;  // outputs are denormal
      TestCase c = record_case({70, 3, 0, 130});
      c.q_dtype = q;
      TestCall call(c);
      const float s = scale / 16;  // e4m3 numbers of about 16
      set_scales(call, c, {s, 1.37f * s, s, 0.61f * s});
      EXPECT_EQ(call.run_and_compare(), "") << scale;
    }
  }
}

// Neighbouring scales differ by 2^12; queries are as much smaller, so that every group has its part in the scores.
TEST(Records, ScalesThatDiffer) {
  for (const DType q : kQueryTypes) {
    TestCase c = record_case({200, 40});
    c.heads = 16;
    c.q_dtype = q;
    TestCall call(c);
    set_scales(call, c, {0.03f, 0.03f * 4096, 0.03f, 0.03f / 4096});
    for (int32_t b = 0; b < 2; ++b) {
      for (int32_t t = 0; t < 2; ++t) {
        for (int32_t h = 0; h < c.heads; ++h) {
          for (int32_t d = 128; d < 256; ++d)
            call.set_query(b, t, h, d, std::ldexp(static_cast<float>(d * 7 % 13 - 6) / 4, -12));
          if (q == DType::f16) continue;
          for (int32_t d = 384; d < 512; ++d)
            call.set_query(b, t, h, d, std::ldexp(static_cast<float>(d * 5 % 11 - 5) / 4, 12));
        }
      }
    }
    EXPECT_EQ(call.run_and_compare(), "");
  }
}

// In a key that every row sees: as plain arithmetic has it.
TEST(Records, ScalesThatAreNotFinite) {
  for (const DType q : kQueryTypes) {
    for (const float scale : {kNan, kInf, -kInf}) {
      for (const int32_t group : {0, 1, 3}) {
        for (const bool one_sign : {false, true}) {  // all products of the group infinite with the same sign
          TestCase c = record_case({9, 300});
          c.q_dtype = q;
          TestCall call(c);
          for (int32_t b = 0; b < 2; ++b) {
            for (const int32_t k : {0, 5}) {
              call.set_group_scale(b, k, group, scale);
              if (one_sign) std::memset(static_cast<char *>(call.key(b, k)) + 128 * group, 0x3a, 128);
            }
            for (int32_t i = 0; one_sign && i < c.qlen * c.heads; ++i) {
              for (int32_t d = 0; d < c.lk; ++d) call.set_query(b, i / c.heads, i % c.heads, d, i % 2 == 0 ? 0.5f : -0.5f);
            }
          }
          EXPECT_EQ(call.run_and_compare(), "") << scale << " group " << group << " " << one_sign;
        }
      }
    }
  }
}

// f32 numbers are what records stand for: the same cache in f32 gives the same bits.
TEST(Records, EqualTheDequantisedCache) {
  TestCase c = record_case({70, 3, 200});
  c.q_dtype = DType::f32;
  TestCall packed(c);
  ASSERT_EQ(packed.run_and_compare(), "");
  c.kv_dtype = DType::f32;
  TestCall wide(c);
  for_keys(c, [&](int32_t b, int32_t k) {
    for (int32_t d = 0; d < c.lk; ++d) wide.set_key(b, k, d, rules::row_number(DType::f8_ds_mla, packed.key(b, k), d));
  });
  ASSERT_EQ(wide.run_and_compare(), "");
  EXPECT_EQ(wide.bits(), packed.bits());
}

TEST(Records, TheScaleOfOtherCachesIsIgnored) {
  TestCase c = record_case({70});
  TestCall without(c);
  ASSERT_EQ(without.run_and_compare(), "");
  for (const float scale : {7.3f, kNan}) {
    c.k_scale = scale;
    TestCall with(c);
    ASSERT_EQ(with.run_and_compare(), "");
    EXPECT_EQ(with.bits(), without.bits());
  }
}

// Whatever slots past the end hold, in numbers, scales or the rope part: the same bits.
TEST(Records, UnusedSlots) {
  for (const DType q : kQueryTypes) {
    TestCase c = record_case({13});
    c.qlen = 4;
    c.q_dtype = q;
    TestCall call(c);
    ASSERT_EQ(call.run_and_compare(), "");
    const TestCall::Bits poisoned = call.bits();
    auto *const free = static_cast<unsigned char *>(call.key(0, 12)) + rules::kRecordBytes;
    struct Filling {
      int32_t from, to;
      unsigned char byte;
    };
    for (const Filling f : {Filling{0, 656, 0}, {0, 512, 0x7f}, {512, 528, 0xff}, {528, 656, 0xff}, {512, 656, 0x7f}}) {
      std::memset(free, 0x11, 3 * rules::kRecordBytes);
      for (int32_t slot = 0; slot < 3; ++slot)
        std::memset(free + slot * rules::kRecordBytes + f.from, f.byte, static_cast<std::size_t>(f.to - f.from));
      ASSERT_EQ(call.run(), "");
      EXPECT_EQ(call.bits(), poisoned) << f.from;
    }
  }
}

// Rows of records that 16 bytes divide, and those that only 4 do; flat caches, many pages and few; more rows than a tile has.
TEST(Records, Layouts) {
  TestCase plain = record_case({70, 9, 0, 520});
  plain.heads = 7;
  plain.qlen = 3;
  TestCall reference(plain);
  ASSERT_EQ(reference.run_and_compare(), "");
  std::vector<TestCase> layouts;
  const auto add = [&](auto change) {
    layouts.push_back(plain);
    change(layouts.back());
  };
  add([](TestCase &c) { c.page_size = 1; });
  add([](TestCase &c) { c.page_size = 16, c.page_pad = 656; });
  add([](TestCase &c) { c.page_size = 64, c.slot_pad = 112; });
  add([](TestCase &c) { c.page_size = 48, c.flat = true; });
  add([](TestCase &c) { c.q_pad = 8, c.out_pad = 8; });
  for (const TestCase &c : layouts) {
    TestCall call(c);
    ASSERT_EQ(call.run_and_compare(), "");
    EXPECT_EQ(call.bits(), reference.bits()) << c;
  }
  // On a GPU these take another kernel.
  layouts.clear();
  add([](TestCase &c) { c.slot_pad = 4; });
  add([](TestCase &c) { c.page_pad = 12, c.shift = 4; });
  add([](TestCase &c) { c.shift = 8, c.flat = true, c.slot_pad = 20; });
  for (const TestCase &c : layouts) EXPECT_EQ(check(c), "") << c;
}

TEST(Records, ManyRows) {
  for (const DType q : kQueryTypes) {
    TestCase c = record_case({600, 33});
    c.heads = 128;
    c.qlen = 2;
    c.page_size = 64;
    c.q_dtype = q;
    TestCall call(c);
    ASSERT_EQ(call.run(), "");
    EXPECT_EQ(call.mismatch(7), "");
  }
}

TEST(Records, SharpSoftmax) {
  for (const float sigma : {20.0f, 200.0f}) {
    for (const DType q : {DType::bf16, DType::f16}) {
      TestCase c = record_case({700, 90});
      c.q_sigma = sigma;
      c.q_dtype = q;
      EXPECT_EQ(check(c), "");
    }
  }
}

}  // namespace
}  // namespace mlaverify::test
