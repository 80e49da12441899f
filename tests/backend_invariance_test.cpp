// The same bits, always: whatever the batch mates, qlen, heads, splits, threads, and what else runs.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>

#include "support/test_call.h"

namespace mlaverify::test {
namespace {

// Few numbers a key, so that long requests are cheap.
TestCase long_case(std::vector<int32_t> lens) {
  TestCase c;
  c.heads = 1;
  c.lk = c.lv = 128;
  c.qlen = 1;
  c.page_size = 16;
  c.lens = std::move(lens);
  return c;
}

TEST(Deterministic, ForcedSplitsAndRepeats) {
  TestCase c = long_case({1100, 513, 1, 0});
  c.heads = 4;
  c.qlen = 3;
  TestCall call(c);
  call.args.num_threads = 2;
  ASSERT_EQ(call.run_and_compare(), "");
  const TestCall::Bits bits = call.bits();
  for (int32_t splits = 0; splits <= 128; ++splits) {
    call.args.num_kv_splits = splits;
    ASSERT_EQ(call.run(), "");
    ASSERT_EQ(call.bits(), bits) << splits;
  }
  call.args.num_kv_splits = 0;
  for (int32_t repeat = 0; repeat < 100; ++repeat) {
    ASSERT_EQ(call.run(), "");
    ASSERT_EQ(call.bits(), bits) << repeat;
  }
}

TEST(Invariant, BatchMates) {
  for (const int32_t len : {1, 300, 1500}) {
    TestCase c = long_case({len});
    c.qlen = 2;
    c.streams = {77};
    TestCall alone(c);
    ASSERT_EQ(alone.run_and_compare(), "");
    for (const int32_t mates : {3, 63, 127}) {
      for (const int32_t place : {0, mates / 2, mates}) {
        TestCase many = c;
        many.lens.clear();
        many.streams.clear();
        for (int32_t b = 0; b <= mates; ++b) {
          many.lens.push_back(b == place ? len : b == 1 ? 100000 / mates : 1 + b * 37 % 2000);
          many.streams.push_back(b == place ? 77 : b + 1000);
        }
        TestCall call(many);
        call.args.num_threads = 1 + mates % 3;
        ASSERT_EQ(call.run(), "");
        for (int32_t t = 0; t < 2; ++t) ASSERT_EQ(call.row_bits(place, t, 0), alone.row_bits(0, t, 0)) << mates << " " << place;
      }
    }
  }
}

// Work is cut between threads in the middle of requests: every count of them cuts at other chunks.
TEST(Invariant, Threads) {
  for (const std::vector<int32_t> &lens :
       std::vector<std::vector<int32_t>>{{9000}, {5000, 0, 1, 5000}, {511, 512, 513, 7000, 700}, {0, 0, 8000, 0}}) {
    TestCase c = long_case(lens);
    for (const int32_t rows : {1, 3, 70}) {  // 70: two row tiles
      c.heads = rows;
      TestCall call(c);
      ASSERT_EQ(call.run_and_compare(rows == 70 ? 7 : 1), "");
      const TestCall::Bits bits = call.bits();
      for (const int32_t threads : {2, 3, 4, 5, 7, 16}) {
        call.args.num_threads = threads;
        ASSERT_EQ(call.run(), "");
        ASSERT_EQ(call.bits(), bits) << threads << " threads, " << c;
      }
      call.args.num_threads = 0;
      ASSERT_EQ(call.run(), "");
      ASSERT_EQ(call.bits(), bits);
    }
  }
}

// The caller's threads: one after the other, backwards; or each task on a thread of its own.
struct Pool {
  static void backwards(void *pool, int32_t count, void (*task)(void *, int32_t), void *context) {
    for (int32_t i = count; i-- > 0;) task(context, i);
    static_cast<Pool *>(pool)->tasks += count;
  }
  static void at_once(void *pool, int32_t count, void (*task)(void *, int32_t), void *context) {
    std::vector<std::thread> threads;
    for (int32_t i = 0; i < count; ++i) threads.emplace_back(task, context, i);
    for (std::thread &t : threads) t.join();
    static_cast<Pool *>(pool)->tasks += count;
  }
  std::atomic<int32_t> tasks = 0;
};

TEST(Invariant, ThreadsOfTheCaller) {
  TestCase c = long_case({5000, 0, 1, 5000});
  c.heads = 3;
  TestCall call(c);
  ASSERT_EQ(call.run_and_compare(), "");
  const TestCall::Bits bits = call.bits();
  for (const mlaverify_parallel_for parallel_for : {&Pool::backwards, &Pool::at_once}) {
    for (const int32_t pieces : {1, 2, 3, 5, 16}) {
      Pool pool;
      call.args.parallel_for = parallel_for;
      call.args.parallel_context = &pool;
      call.args.num_threads = pieces;
      ASSERT_EQ(call.run(), "");
      ASSERT_EQ(call.bits(), bits) << pieces << " pieces";
      EXPECT_EQ(pool.tasks > 0, pieces > 1);
      EXPECT_LE(pool.tasks, 2 * pieces);
      const int32_t qlens[] = {c.qlen};
      EXPECT_EQ(mlaverify_warmup_decode_attention_fwd_verify(&call.args, qlens, 1), MLAVERIFY_OK);
    }
  }
}

// Each head is the call with that head alone.
TEST(Invariant, HeadCounts) {
  for (const auto &[lk, lv] : {std::pair{40, 24}, {160, 128}}) {
    TestCase c;
    c.lk = lk;
    c.lv = lv;
    c.qlen = 2;
    c.lens = {75, 5};
    for (const int32_t heads : {1, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128}) {
      c.heads = heads;
      TestCall all(c);
      ASSERT_EQ(all.run_and_compare(heads), "");
      TestCase single = c;
      single.heads = 1;
      TestCall one(single);
      for (int32_t h = 0; h < heads; ++h) {
        for (int32_t row = 0; row < c.rows(); ++row) {
          std::memcpy(one.query(row / 2, row % 2, 0), all.query(row / 2, row % 2, h), static_cast<std::size_t>(c.lk) * 2);
        }
        ASSERT_EQ(one.run(), "");
        for (int32_t row = 0; row < c.rows(); ++row)
          ASSERT_EQ(one.row_bits(row / 2, row % 2, 0), all.row_bits(row / 2, row % 2, h)) << h << " of " << heads;
      }
    }
  }
}

// Few rows are computed in other ways than many (which depends on how many lanes they fill), with the same sums.
TEST(Invariant, RowCounts) {
  struct Types {
    DType q, kv;
    float q_sigma;  // 30: scores of f32 queries that are summed in f64
  };
  for (const Types &t :
       {Types{DType::f32, DType::f32, 1}, Types{DType::f32, DType::f32, 30}, Types{DType::f32, DType::bf16, 30},
        Types{DType::bf16, DType::bf16, 1}, Types{DType::f16, DType::f16, 1}, Types{DType::f16, DType::f8_e4m3, 1},
        Types{DType::bf16, DType::f8_e5m2, 1}, Types{DType::bf16, DType::f8_ds_mla, 1}}) {
    TestCase c;
    c.q_dtype = t.q;
    c.kv_dtype = t.kv;
    c.q_sigma = t.q_sigma;
    c.qlen = 1;
    c.lens = {75, 33, 7};  // a whole tile of keys and a part of one, whole vectors and one more key, less than a vector
    const bool records = rules::is_record(t.kv);
    for (const auto &[lk, lv] : records ? std::vector{std::pair{576, 512}} : std::vector{std::pair{40, 24}, {160, 128}}) {
      c.lk = lk;
      c.lv = lv;
      c.heads = 64;
      TestCall all(c);
      ASSERT_EQ(all.run_and_compare(), "");
      for (int32_t heads = 1; heads < 64; heads += heads < 34 ? 1 : 5) {
        c.heads = heads;
        TestCall few(c);
        for (int32_t b = 0; b < c.batch(); ++b) {
          for (int32_t h = 0; h < heads; ++h) {
            std::memcpy(few.query(b, 0, h), all.query(b, 0, h), static_cast<std::size_t>(c.lk) * (t.q == DType::f32 ? 4 : 2));
          }
        }
        ASSERT_EQ(few.run(), "");
        for (int32_t b = 0; b < c.batch(); ++b) {
          for (int32_t h = 0; h < heads; ++h)
            ASSERT_EQ(few.row_bits(b, 0, h), all.row_bits(b, 0, h))
                << "row " << h << " of " << heads << ", request " << b << ", " << c;
        }
      }
    }
  }
}

// A token has the same bits in a call with any qlen, in whatever row tile it falls.
TEST(Invariant, QueryLengths) {
  TestCase c;
  c.heads = 5;
  c.lk = c.lv = 128;
  c.lens = {600, 20};
  c.qlen = 40;
  TestCall all(c);
  ASSERT_EQ(all.run_and_compare(3), "");
  for (const int32_t qlen : {1, 2, 3, 7, 13, 14, 26}) {
    c.qlen = qlen;
    TestCall call(c);
    ASSERT_EQ(call.run(), "");
    for (int32_t b = 0; b < 2; ++b) {
      for (int32_t t = 0; t < qlen; ++t) {
        for (int32_t h = 0; h < 5; ++h)
          ASSERT_EQ(call.row_bits(b, t, h), all.row_bits(b, 40 - qlen + t, h)) << "token " << t << " of " << qlen;
      }
    }
  }
}

// A longer cache adds keys that the row does not see: more chunks in the tree, no other bit.
TEST(Invariant, KeysBeyondTheMask) {
  for (const int32_t n : {100, 512, 1500}) {
    TestCase c = long_case({n});
    TestCall shorter(c);
    ASSERT_EQ(shorter.run(), "");
    for (const int32_t more : {1, 500, 900}) {
      c.qlen = more + 1;
      c.lens = {n + more};
      TestCall longer(c);
      ASSERT_EQ(longer.run(), "");
      EXPECT_EQ(longer.row_bits(0, 0, 0), shorter.row_bits(0, 0, 0)) << n << " + " << more;
    }
  }
}

// Keys that later tokens see hold NaN, in the middle of row tiles too.
TEST(Invariant, KeysBeyondTheMaskThatAreNoNumbers) {
  for (const int32_t heads : {1, 3, 16, 20}) {
    for (const int32_t len : {9, 65, 260, 514}) {
      TestCase c;
      c.heads = heads;
      c.lk = c.lv = 128;
      c.lens = {len};
      c.qlen = 4;
      TestCall call(c);
      ASSERT_EQ(call.run_and_compare(), "");
      std::vector<TestCall::Bits> before;
      for (int32_t t = 0; t < 2; ++t) {
        for (int32_t h = 0; h < heads; ++h) before.push_back(call.row_bits(0, t, h));
      }
      for (const float value : {100.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        call.fill_key(0, len - 2, value);
        ASSERT_EQ(call.run_and_compare(), "");
        std::size_t i = 0;
        for (int32_t t = 0; t < 2; ++t) {
          for (int32_t h = 0; h < heads; ++h)
            ASSERT_EQ(call.row_bits(0, t, h), before[i++]) << heads << " heads, " << len << " keys, " << value;
        }
      }
    }
  }
}

TEST(Deterministic, ConcurrentCallsWithWorkspacesOfTheirOwn) {
  constexpr std::size_t kCallers = 4;
  std::vector<std::unique_ptr<TestCall>> calls;
  std::vector<TestCall::Bits> want;
  Pool pool;
  for (std::size_t i = 0; i < kCallers; ++i) {
    TestCase c = long_case({2000 + 700 * static_cast<int32_t>(i), 5});
    c.heads = 4;
    c.seed = i + 1;
    calls.push_back(std::make_unique<TestCall>(c));
    calls.back()->args.num_threads = 1 + static_cast<int32_t>(i) % 3;
    if (i % 2 == 1) {
      calls.back()->args.parallel_for = &Pool::at_once;
      calls.back()->args.parallel_context = &pool;
    }
    ASSERT_EQ(calls.back()->run_and_compare(), "");
    want.push_back(calls.back()->bits());
  }
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (std::size_t i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        if (!calls[i]->run().empty() || calls[i]->bits() != want[i]) ++wrong;
      }
    });
  }
  for (std::thread &t : callers) t.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace mlaverify::test
