// Masks, lengths, empty and padded rows, bits that are no part of the sequence, and the log-sum-exp.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "oracle/tolerance.h"
#include "support/test_call.h"

namespace mlaverify::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// f32 throughout and little to compute.
TestCase f32_case(int32_t qlen, std::vector<int32_t> lens) {
  TestCase c;
  c.heads = 1;
  c.lk = 40;
  c.lv = 32;
  c.qlen = qlen;
  c.lens = std::move(lens);
  c.q_dtype = c.kv_dtype = DType::f32;
  return c;
}

// All scores are equal and the value of key k is the unit vector k % 32: a column is the share of its keys among the visible
// ones.
void expect_one_hot(int32_t qlen, int32_t len, mlaverify_backend backend = MLAVERIFY_BACKEND_CPU) {
  const TestCase c = f32_case(qlen, {len});
  TestCall call(c);
  call.args.backend = backend;
  call.fill_queries(0);
  for (int32_t k = 0; k < len; ++k) {
    call.fill_key(0, k, 0);
    call.set_key(0, k, k % c.lv, 1);
  }
  ASSERT_EQ(call.run(), "");
  for (int32_t t = 0; t < qlen; ++t) {
    const int32_t n = std::max(len - qlen + 1 + t, 0);
    SCOPED_TRACE("qlen " + std::to_string(qlen) + ", length " + std::to_string(len) + ", token " + std::to_string(t));
    if (n == 0) {
      ASSERT_EQ(call.lse(0, t, 0), -kInf);
    } else {
      ASSERT_NEAR(call.lse(0, t, 0), std::log(n), 1e-5);
    }
    for (int32_t column = 0; column < c.lv; ++column) {
      const int32_t hits = n / c.lv + (n % c.lv > column ? 1 : 0);
      const double want = n == 0 ? 0.0 : static_cast<double>(hits) / n;
      if (hits == 0) {
        ASSERT_EQ(call.out(0, t, 0, column), 0.0f);
      } else {
        ASSERT_NEAR(call.out(0, t, 0, column), want, 2e-6 * want);
      }
    }
  }
}

TEST(Mask, OneHotValuesShowEveryOffByOne) {
  for (int32_t qlen = 1; qlen <= 17; ++qlen) {
    for (const int32_t border : {0, 4, 8, 64, 128, 512, 1024}) {
      for (int32_t len = std::max(border - 1, 0); len <= border + 1; ++len) expect_one_hot(qlen, len);
      expect_one_hot(qlen, border + qlen - 1);
    }
  }
  for (int32_t qlen = 1; qlen <= 6; ++qlen) {
    for (int32_t len = 0; len <= 9; ++len) expect_one_hot(qlen, len, MLAVERIFY_BACKEND_REFERENCE);
  }
}

TEST(Mask, ARowWithOneKeyIsItsValue) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const int32_t qlen : {1, 4}) {
      TestCase c = f32_case(qlen, {qlen});
      c.q_dtype = c.kv_dtype = type;
      TestCall call(c);
      ASSERT_EQ(call.run_and_compare(), "");
      for (int32_t column = 0; column < c.lv; ++column)
        EXPECT_EQ(call.out(0, 0, 0, column), rules::load_float(type, call.key(0, 0), column));
    }
  }
}

TEST(Mask, MoreQueriesThanKeys) {
  TestCall call(f32_case(4, {2}));
  ASSERT_EQ(call.run_and_compare(), "");
  for (int32_t t = 0; t < 2; ++t) {
    EXPECT_EQ(call.lse(0, t, 0), -kInf);
    for (int32_t column = 0; column < 32; ++column) EXPECT_EQ(call.out(0, t, 0, column), 0.0f);
  }
  EXPECT_TRUE(std::isfinite(call.lse(0, 2, 0)));
}

TEST(Mask, EarlierTokensDoNotSeeLaterKeys) {
  for (const int32_t len : {9, 65, 514}) {
    TestCase c = f32_case(4, {len});
    c.heads = 3;
    TestCall call(c);
    ASSERT_EQ(call.run(), "");
    std::vector<TestCall::Bits> before;
    for (int32_t t = 0; t < 4; ++t) before.push_back(call.row_bits(0, t, 1));
    for (const float value : {100.0f, kInf, std::nanf("")}) {
      call.fill_key(0, len - 1, value);
      ASSERT_EQ(call.run(), "");
      for (int32_t t = 0; t < 3; ++t)
        EXPECT_EQ(call.row_bits(0, t, 1), before[static_cast<std::size_t>(t)]) << len << " " << value;
      EXPECT_NE(call.row_bits(0, 3, 1), before[3]);
    }
  }
}

TEST(Mask, AVerifyStepIsDecodingTokenByToken) {
  for (const int32_t len : {3, 9, 68, 515, 1027}) {
    for (const int32_t qlen : {2, 5, 8}) {
      TestCase c;
      c.lens = {len};
      c.lk = c.lv = qlen == 5 ? 48 : 128;
      c.qlen = qlen;
      TestCall all(c);
      ASSERT_EQ(all.run_and_compare(), "");
      for (int32_t t = 0; t < qlen; ++t) {
        TestCase single = c;
        single.qlen = 1;
        single.lens = {std::max(len - qlen + 1 + t, 0)};
        TestCall one(single);
        ASSERT_EQ(one.run(), "");
        for (int32_t h = 0; h < c.heads; ++h)
          EXPECT_EQ(one.row_bits(0, 0, h), all.row_bits(0, t, h)) << "length " << len << ", token " << t << " of " << qlen;
      }
    }
  }
}

TEST(Mask, PaddedLengths) {
  TestCase c;
  c.qlen = 4;
  c.lens = {40, 40, 40, 40, 40, 40, 3, 0};
  c.real_lens = {40, 38, 37, 36, 0, 200, 2, 5};
  EXPECT_EQ(check(c), "");
  // The rows of a padded request whose mask ends before the padding are those of the call without padding.
  TestCall padded(c);
  ASSERT_EQ(padded.run(), "");
  for (int32_t h = 0; h < c.heads; ++h) {
    EXPECT_EQ(padded.lse(4, 3, h), -kInf);
    EXPECT_EQ(padded.row_bits(3, 0, h), [&] {
      TestCase one = c;
      one.lens = {40};
      one.real_lens = {36};
      one.streams = {3};
      TestCall call(one);
      EXPECT_EQ(call.run(), "");
      return call.row_bits(0, 0, h);
    }());
  }
}

TEST(BlockTable, EntriesPastTheNeedAreNotFollowed) {
  TestCase c;
  c.lens = {9, 4, 1};
  std::vector<TestCall::Bits> results;
  for (const int32_t extra : {0, 1, 2, 5, 1000}) {
    c.table_extra = extra;
    TestCall call(c);
    ASSERT_EQ(call.run_and_compare(), "");
    results.push_back(call.bits());
    EXPECT_EQ(results.back(), results.front()) << extra;
  }
}

TEST(EmptyRows, APadRequestIsZeroAndLeavesTheOthersAlone) {
  TestCase c;
  c.lens = {5, 7, 9, 0};
  c.qlen = 4;
  TestCall call(c);
  ASSERT_EQ(call.run_and_compare(), "");
  c.lens.pop_back();
  TestCall without(c);
  ASSERT_EQ(without.run(), "");
  TestCall::Bits bits = call.bits();
  bits.resize(without.bits().size());
  EXPECT_EQ(bits, without.bits());
}

TEST(EmptyRows, OneLiveRequestAmongMany) {
  TestCase c;
  c.heads = 1;
  c.lk = 16;
  c.lv = 8;
  for (const std::size_t live : {0, 1, 500, 1022, 1023}) {
    c.lens.assign(1024, 0);
    c.lens[live] = 700;
    TestCall call(c);
    call.args.num_threads = 3;
    EXPECT_EQ(call.run_and_compare(), "");
  }
  for (std::size_t i = 0; i < c.lens.size(); ++i) c.lens[i] = i % 3 == 1 ? 5 : 0;
  TestCall call(c);
  call.args.num_threads = 2;
  EXPECT_EQ(call.run_and_compare(), "");
}

// Slots of the last page past the end, page 0, free pages: whatever they hold.
TEST(UnusedSlots, NanInfinityAndZeroGiveTheSame) {
  for (const DType type : {DType::bf16, DType::f16, DType::f32, DType::f8_e4m3, DType::f8_e5m2}) {
    TestCase c;
    c.lens = {13};
    c.lk = c.lv = 128;
    c.qlen = 4;
    c.kv_dtype = type;
    TestCall call(c);
    ASSERT_EQ(call.run_and_compare(), "");
    const TestCall::Bits poisoned = call.bits();
    auto *last_page = static_cast<char *>(call.key(0, 12));
    const auto row = static_cast<std::size_t>(c.lk * rules::dtype_bytes(type));
    for (const float value : {0.0f, kInf, -kInf, 1.0f}) {
      for (std::size_t slot = 1; slot < 4; ++slot) {
        for (int32_t d = 0; d < c.lk; ++d) rules::store_float(type, last_page + slot * row, d, value);
      }
      ASSERT_EQ(call.run(), "");
      EXPECT_EQ(call.bits(), poisoned) << value;
    }
  }
}

// Some splits lie wholly behind the limit of the first rows.
TEST(UnusedSlots, ForcedSplitsBehindTheLimit) {
  TestCase c;
  c.lens = {260};
  c.qlen = 8;
  c.heads = 16;
  TestCall call(c);
  ASSERT_EQ(call.run_and_compare(), "");
  const TestCall::Bits bits = call.bits();
  for (const int32_t splits : {1, 2, 3, 4, 5, 8, 13, 26, 33, 52, 64}) {
    call.args.num_kv_splits = splits;
    ASSERT_EQ(call.run(), "");
    EXPECT_EQ(call.bits(), bits) << splits;
  }
}

TEST(LogSumExp, IsNatural) {
  TestCase c = f32_case(1, {256, 256, 256, 256});
  c.heads = 128;
  c.page_size = 64;
  TestCall call(c);
  call.args.num_threads = 2;
  ASSERT_EQ(call.run(), "");
  for (int32_t b = 0; b < 4; ++b) {
    for (int32_t h = 0; h < c.heads; h += 13) {
      double sum = 0;
      for (int32_t k = 0; k < 256; ++k) {
        double dot = 0;
        for (int32_t d = 0; d < c.lk; ++d)
          dot += static_cast<double>(static_cast<float *>(call.query(b, 0, h))[d] * static_cast<float *>(call.key(b, k))[d]);
        sum += std::exp(dot * static_cast<double>(c.sm_scale));
      }
      EXPECT_NEAR(call.lse(b, 0, h), std::log(sum), 1e-4);
    }
  }
}

// Two calls, each over a part of the keys, merged by the formula of the manual: the result of the whole.
TEST(LogSumExp, MergesShardsOfOneRequest) {
  TestCase c = f32_case(1, {4096});
  c.page_size = 8;
  TestCall call(c);
  ASSERT_EQ(call.run(), "");
  const double whole = static_cast<double>(call.out(0, 0, 0, 5)), whole_lse = static_cast<double>(call.lse(0, 0, 0));
  auto *const table = static_cast<int32_t *>(call.args.block_table.data);
  for (const int32_t cut : {8, 1000, 4088}) {
    double o[2], lse[2];
    for (int32_t shard = 0; shard < 2; ++shard) {
      call.args.block_table.data = table + (shard == 0 ? 0 : cut / 8);
      call.args.block_table.shape[1] = shard == 0 ? cut / 8 : (4096 - cut) / 8;
      *static_cast<int32_t *>(call.args.seq_lens.data) = shard == 0 ? cut : 4096 - cut;
      ASSERT_EQ(call.run(), "");
      o[shard] = static_cast<double>(call.out(0, 0, 0, 5));
      lse[shard] = static_cast<double>(call.lse(0, 0, 0));
    }
    const double m = std::max(lse[0], lse[1]), a = std::exp(lse[0] - m), b = std::exp(lse[1] - m);
    EXPECT_NEAR((a * o[0] + b * o[1]) / (a + b), whole, 1e-6);
    EXPECT_NEAR(m + std::log(a + b), whole_lse, 1e-5);
  }
}

}  // namespace
}  // namespace mlaverify::test
