// Random small calls over all options: the cpu backend against the oracle, and the same bits among other requests.
//
// MLAVERIFY_TEST_CASE='heads=3 qlen=2 ...' repeats one case, as failures of all tests print it.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "support/test_call.h"

namespace mlaverify::test {
namespace {

int32_t between(int32_t lo, int32_t hi) { return *rc::gen::inRange(lo, hi + 1); }
bool one_in(int32_t n) { return between(0, n - 1) == 0; }

int32_t random_length() { return one_in(8) ? between(500, 1100) : one_in(3) ? between(60, 140) : between(0, 24); }

// GPUs have tensor-core kernels for a case, where addresses and strides allow 16-byte copies: in half of the cases all do, in the others
// not every layout that is legal. `cache_step`: what paddings of the cache are to be multiples of.
void make_tensor_core_layout(TestCase &c, int32_t cache_step) {
  const bool copies = one_in(2);
  for (int32_t *pad : {&c.slot_pad, &c.page_pad, &c.shift}) *pad *= copies ? 16 : cache_step;
  for (int32_t *pad : {&c.q_pad, &c.out_pad}) *pad *= copies ? 8 : 1;
}

// Records have one width, and fewer rows and keys for it.
void make_records(TestCase &c) {
  c.lk = rules::kRecordWidth;
  c.lv = rules::kRecordScaled;
  c.heads = std::min(c.heads, 5);
  c.qlen = std::min(c.qlen, 4);
  for (int32_t &len : c.lens) len = std::min(len, 600);
  make_tensor_core_layout(c, 4);
}

// Other caches with a width that tensor-core kernels take, and fewer rows and keys for it.
void make_wide(TestCase &c) {
  std::tie(c.lk, c.lv) = *rc::gen::element(std::pair{576, 512}, std::pair{512, 512}, std::pair{320, 256}, std::pair{288, 256});
  c.heads = one_in(4) ? between(17, 24) : std::min(c.heads, 5);
  c.qlen = std::min(c.qlen, 4);
  for (int32_t &len : c.lens) len = std::min(len, 900);
  make_tensor_core_layout(c, 1);
}
bool has_wide_rows(const TestCase &c) { return c.lv >= 256; }  // records, too

TestCase random_case() {
  TestCase c;
  c.heads = one_in(6) ? between(60, 70) : between(1, 9);
  c.qlen = between(1, 6);
  if (one_in(2)) {  // widths that bf16 products take
    c.lv = 32 * between(4, 5);
    c.lk = c.lv + 32 * between(0, 1);
  } else {
    c.lv = 8 * between(1, 8);
    c.lk = c.lv + 8 * between(0, 4);
  }
  c.page_size = one_in(4) ? between(1, 600) : between(1, 20);
  c.lens.clear();
  for (int32_t b = between(1, 4); b > 0; --b) c.lens.push_back(random_length());
  if (one_in(3)) {
    for (const int32_t len : c.lens) c.real_lens.push_back(std::max(len + between(-9, 4), 0));
  }
  c.q_dtype = *rc::gen::element(DType::bf16, DType::f16, DType::f32);
  c.kv_dtype = *rc::gen::element(DType::bf16, DType::f16, DType::f32, DType::f8_e4m3, DType::f8_e5m2, DType::f8_ds_mla);
  if (one_in(2)) c.k_scale = *rc::gen::element(1.0f, 0.25f, 7.3f, 0x1p-10f);
  c.sm_scale = *rc::gen::element(0.125f, 0.3f, -0.2f, 0.0f);
  c.num_kv_splits = between(0, 9);
  c.flat = one_in(4);
  c.slot_pad = one_in(3) ? between(1, 9) : 0;
  c.page_pad = !c.flat && one_in(3) ? between(1, 70) : 0;
  c.spare_pages = between(0, 5);
  c.table_extra = between(0, 5);
  c.table_pad = one_in(3) ? between(1, 3) : 0;
  c.q_pad = one_in(3) ? between(1, 9) : 0;
  c.out_pad = one_in(3) ? between(1, 9) : 0;
  c.heads_outer = one_in(3);
  c.shift = one_in(3) ? between(1, 3) : 0;
  c.seed = *rc::gen::arbitrary<uint32_t>();
  if (rules::is_record(c.kv_dtype)) {
    make_records(c);
  } else if (one_in(4)) {
    make_wide(c);
  }
  return c;
}

void expect_right(const TestCase &c, int32_t threads) {
  TestCall call(c);
  call.args.num_threads = threads;
  const std::string wrong = call.run_and_compare();
  if (!wrong.empty()) RC_FAIL(wrong);
}

RC_GTEST_PROP(Property, AgreesWithTheOracle, ()) { expect_right(random_case(), between(1, 3)); }

// The first request of a case alone, and with another layout, other splits, other threads.
RC_GTEST_PROP(Property, BatchMatesAndLayoutDoNotShow, ()) {
  const TestCase c = random_case();
  TestCase alone = c;
  alone.lens.resize(1);
  if (!alone.real_lens.empty()) alone.real_lens.resize(1);
  alone.page_size = between(1, 40);
  alone.flat = alone.heads_outer = false;
  // Where there are tensor-core kernels, paddings lose whole 16 bytes only: whether 16-byte copies are possible decides a GPU's kernel, and
  // with it the bits. (All other cases have widths that only the generic kernel takes.)
  const bool wide = has_wide_rows(c);
  for (int32_t *pad : {&alone.slot_pad, &alone.page_pad, &alone.shift}) *pad %= wide ? 16 : 1;
  for (int32_t *pad : {&alone.q_pad, &alone.out_pad}) *pad %= wide ? 8 : 1;
  alone.num_kv_splits = 0;
  TestCall many(c), one(alone);
  many.args.num_threads = between(1, 4);
  RC_ASSERT(many.run() == "");
  RC_ASSERT(one.run() == "");
  for (int32_t t = 0; t < c.qlen; ++t) {
    for (int32_t h = 0; h < c.heads; ++h) {
      if (many.row_bits(0, t, h) != one.row_bits(0, t, h)) RC_FAIL("other bits than alone:\n" + repeat_command(c));
    }
  }
}

// Repeats a failure (repeat_command()); CTest does not run it.
TEST(Property, OneCaseFromTheEnvironment) {
  const char *text = std::getenv("MLAVERIFY_TEST_CASE");
  if (text == nullptr)
    GTEST_SKIP() << "MLAVERIFY_TEST_CASE is not set: the text of the case to repeat, as a failing test prints it";
  for (const int32_t threads : {1, 2, 3}) {
    TestCall call(from_text(text));
    call.args.num_threads = threads;
    EXPECT_EQ(call.run_and_compare(), "");
  }
}

// The text of a case is all of it.
TEST(TestCaseText, WhatIsNotKnownIsRefused) {
  for (const char *text : {"head=3", "heads", "kv_dtype=E4M3", "q_dtype="})
    EXPECT_THROW(from_text(text), std::invalid_argument) << text;
}

RC_GTEST_PROP(TestCaseText, IsReadBack, ()) {
  const TestCase c = random_case();
  RC_ASSERT(to_text(from_text(to_text(c))) == to_text(c));
}

}  // namespace
}  // namespace mlaverify::test
