// Special, very large and very small numbers on the GPU, as the oracle has them. Needs a GPU: label gpu.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "support/device_case.h"

namespace mlaverify::test {
namespace {

// Scales of any kind, and special numbers in keys and queries, as the oracle has them. FP8: by kernels with tiles of 16, 32 and 64 rows.
void expect_special_numbers(DType cache, int32_t qlen) {
  SCOPED_TRACE("query tokens " + std::to_string(qlen));
  const auto expect_as_oracle = [cache, qlen](const auto &change) {
    TestCase c = deepseek({200, 64, 5}, qlen);
    c.kv_dtype = cache;
    TestCall host(c);
    change(host);
    expect_right(host);
  };
  for (const float scale : {-0.05f, 0.0f, -0.0f, NAN, INFINITY, -INFINITY, 1e-40f, 2.0f}) {
    SCOPED_TRACE("scale " + std::to_string(scale));
    expect_as_oracle([=](TestCall &host) { host.args.sm_scale = scale; });
  }
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    SCOPED_TRACE("value " + std::to_string(value));
    for (const int32_t dim : {0, 300, 575}) {
      expect_as_oracle([=](TestCall &host) { host.set_query(0, qlen - 1, 5, dim, value); });
      expect_as_oracle([=](TestCall &host) { host.set_key(0, 70, dim, value); });
    }
  }
}
TEST(CudaTiles, SpecialNumbers) { expect_special_numbers(DType::bf16, 2); }
TEST(CudaTiles, SpecialNumbersOverFp8) {
  for (const int32_t qlen : {1, 2, 4}) expect_special_numbers(DType::f8_e4m3, qlen);
  expect_special_numbers(DType::f8_e5m2, 1);
}

// Scores that grow along the keys by much, so that the reference of the softmax moves again and again, for some rows of a tile alone; and
// queries of very different sizes.
TEST(CudaTiles, ReferencesThatMoveOverFp8) {
  for (const int32_t qlen : {1, 2, 4}) {
    TestCase c = deepseek({900, 700}, qlen);
    c.kv_dtype = DType::f8_e4m3;
    c.sm_scale = 0.1f;
    TestCall host(c);
    for (int32_t b = 0; b < 2; ++b) {
      for (int32_t key = 0; key < c.lens[static_cast<std::size_t>(b)]; ++key)
        host.set_key(b, key, 575, static_cast<float>(key % 300));
      for (int32_t t = 0; t < qlen; ++t) {
        for (int32_t h = 0; h < c.heads; ++h) {
          if (h % 3 == 0) host.set_query(b, t, h, 575, h % 2 == 0 ? 20.0f : 1.0f);
          if (h == 5) {
            for (int32_t d = 0; d < c.lk; ++d) host.set_query(b, t, h, d, std::ldexp(static_cast<float>(d % 7 - 3), -30));
          }
        }
      }
    }
    expect_right(host);
  }
}

// Partial results keep numbers of every size: the Hopper kernel scales those of a row to fit f16. `spread`: by how much columns differ.
TEST(CudaTiles, PartialResultsOfAnySize) {
  struct Size {
    int exponent, spread;
  };
  for (const Size size : {Size{100, 0}, {-100, 0}, {0, 20}, {90, 20}, {-60, 20}, {-120, 0}}) {
    SCOPED_TRACE("2^" + std::to_string(size.exponent) + ", spread " + std::to_string(size.spread));
    const int32_t keys = 1000;
    TestCase c = deepseek({keys}, 4);
    c.sm_scale = 0;  // all keys weigh the same, whatever their size
    TestCall host(c);
    uint32_t random = 1;
    for (int32_t key = 0; key < keys; ++key) {
      for (int32_t dim = 0; dim < c.lk; ++dim) {
        random = random * 1664525u + 1013904223u;
        const float x = 1.0f + static_cast<float>(random >> 16) / 65536.0f;
        host.set_key(0, key, dim, std::ldexp(x, size.exponent + (size.spread > 0 ? dim % size.spread : 0)));
      }
    }
    host.fill_queries(0.0f);
    expect_right(host);
  }
}

// Sums of values beyond the range of f32 are infinite, in their columns alone. Here those of the first keys are, wherever they end.
void expect_infinite_sums(const TestCase &c, const std::vector<TestCall::Column> &columns, int32_t weight_log2) {
  SCOPED_TRACE("weight 2^" + std::to_string(weight_log2));
  const bool alone = weight_log2 < 0;  // and with that weight: other columns hold zeros
  const int32_t rope = c.lk - 1;
  TestCall host(c);
  for (int32_t key = 0; key < c.lens[0]; ++key) {
    if (alone) host.fill_key(0, key, 0.0f);
    host.set_key(0, key, rope, key < 512 ? 0.0f : static_cast<float>(-weight_log2));
    for (const auto &[column, value] : columns) {
      if (key < (alone ? 512 : 128)) host.set_key(0, key, column, value > 0 ? 3e38f : -3e38f);
    }
  }
  for (int32_t t = 0; t < c.qlen; ++t) {
    for (int32_t h = 0; h < c.heads; ++h) {
      host.set_query(0, t, h, rope, std::log(2.0f) / c.sm_scale);
      for (const auto &[column, value] : columns) host.set_query(0, t, h, column, 0.0f);
    }
  }
  DeviceCall device(&host);
  ASSERT_EQ(call(device), MLAVERIFY_OK) << mlaverify_last_error();
  ASSERT_EQ(device.fetch(), "");
  EXPECT_EQ(host.mismatch(7, columns), "");
}

TEST(CudaTiles, InfinitePartialResults) {
  for (const auto &[heads, qlen] : {std::pair{16, 4}, {32, 1}, {5, 2}}) {
    for (const int32_t page : {64, 48}) {
      for (const int32_t splits : {0, 1, 2, 5}) {
        TestCase c = deepseek({1000}, qlen);
        c.heads = heads;
        c.page_size = page;
        c.num_kv_splits = splits;
        SCOPED_TRACE(c);
        for (const int32_t weight_log2 : {0, -30}) expect_infinite_sums(c, {{5, -INFINITY}, {300, INFINITY}}, weight_log2);
      }
    }
  }
}

}  // namespace
}  // namespace mlaverify::test
