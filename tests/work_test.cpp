// The work and floor model: bytes, operations, and the time they take at least.
#include "work.h"

#include <gtest/gtest.h>

#include "rules/mask.h"

namespace mlaverify::cli {
namespace {

Shape shape_of(int32_t heads, int32_t qlen, std::vector<int32_t> seq_lens) {
  Shape s;
  s.num_heads = heads;
  s.qlen = qlen;
  s.seq_lens = std::move(seq_lens);
  return s;
}

TEST(Work, OfPlainDecodingByHand) {
  const Work w = work_of(shape_of(16, 1, std::vector<int32_t>(128, 2048)));
  EXPECT_EQ(w.bytes, 128.0 * 2048 * 576 * 2 + 128.0 * 16 * (576 + 512) * 2);
  EXPECT_EQ(w.flops, 128.0 * 16 * 2048 * 2 * (576 + 512));
}

TEST(Work, TypesAndWidthsCount) {
  Shape s = shape_of(4, 1, {100});
  s.qk_dim = 288;
  s.v_dim = 256;
  s.q_dtype = DType::f32;
  s.kv_dtype = DType::f8_e4m3;
  const Work w = work_of(s);
  EXPECT_EQ(w.bytes, 100.0 * 288 + 4.0 * (288 + 256) * 4);
  EXPECT_EQ(w.flops, 4.0 * 100 * 2 * (288 + 256));
}

TEST(Work, PageSizeDoesNot) {
  Shape s = shape_of(16, 4, {1000, 3});
  const Work w = work_of(s);
  s.page_size = 7;
  EXPECT_EQ(work_of(s).bytes, w.bytes);
  EXPECT_EQ(work_of(s).flops, w.flops);
}

// Against the plain element test of the mask rule, key by key; lengths below qlen, where first tokens see nothing, included.
TEST(Work, OperationsAreThoseOfVisibleKeys) {
  for (int32_t qlen = 1; qlen <= 6; ++qlen) {
    for (int32_t len = 1; len <= 9; ++len) {
      double pairs = 0;
      for (int32_t t = 0; t < qlen; ++t) {
        for (int32_t key = 0; key < len; ++key) pairs += rules::sees(len, len, qlen, t, key) ? 1 : 0;
      }
      EXPECT_EQ(work_of(shape_of(3, qlen, {len})).flops, pairs * 3 * 2 * (576 + 512)) << "qlen " << qlen << ", length " << len;
    }
  }
}

TEST(Work, AddsUpOverRequestsAndSteps) {
  Work sum = work_of(shape_of(16, 4, {300}));
  sum += work_of(shape_of(16, 4, {17}));
  const Work both = work_of(shape_of(16, 4, {300, 17}));
  EXPECT_EQ(sum.bytes, both.bytes);
  EXPECT_EQ(sum.flops, both.flops);
}

TEST(Floor, IsTheSlowerOfMemoryAndArithmetic) {
  Work w;
  w.bytes = 200;
  w.flops = 600;
  EXPECT_DOUBLE_EQ(floor_seconds(w, {100, 1000}), 2.0);
  EXPECT_DOUBLE_EQ(floor_seconds(w, {100, 100}), 6.0);
  EXPECT_EQ(floor_seconds(Work(), {100, 100}), 0.0);
}

TEST(Ceilings, AreThoseOfBf16ProductsWhereTheyComputeAShape) {
  const Ceilings machine = {1, 10, 100};
  Shape shape;  // bf16, 576 and 512
  EXPECT_EQ(ceilings_of(shape, machine).flops_per_second, 100);
  EXPECT_EQ(ceilings_of(shape, {1, 10}).flops_per_second, 10);
  for (const DType kv : {DType::f8_e5m2, DType::f8_ds_mla}) {
    shape.kv_dtype = kv;
    EXPECT_EQ(ceilings_of(shape, machine).flops_per_second, 100);
  }
  for (const int32_t narrow : {504, 32}) {
    shape.v_dim = narrow;
    EXPECT_EQ(ceilings_of(shape, machine).flops_per_second, 10);
  }
  shape.v_dim = 512;
  shape.kv_dtype = DType::f16;
  EXPECT_EQ(ceilings_of(shape, machine).flops_per_second, 10);
  shape.kv_dtype = DType::bf16;
  shape.q_dtype = DType::f32;
  EXPECT_EQ(ceilings_of(shape, machine).flops_per_second, 10);
}

// The figures are the machine's own; that there are some, with more threads than cores too, is ours.
TEST(Ceilings, ArePositive) {
  const Ceilings c = measure_cpu_ceilings(5);
  EXPECT_GT(c.bytes_per_second, 0);
  EXPECT_GT(c.flops_per_second, 0);
}

}  // namespace
}  // namespace mlaverify::cli
