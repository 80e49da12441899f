// Offsets beyond 32 bits, strides, pages, tables, many rows, and the workspace's end.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "support/test_call.h"

namespace mlaverify::test {
namespace {

// Address space without memory; only what is opened can be touched, everything else faults.
class Reserved {
 public:
  explicit Reserved(std::size_t bytes) : bytes_(bytes) {
    base_ = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!ok()) why_ = "needs " + std::to_string(bytes >> 30) + " GiB of address space (ulimit -v): " + std::strerror(errno);
  }
  ~Reserved() {
    if (ok()) munmap(base_, bytes_);
  }
  Reserved(const Reserved &) = delete;
  Reserved &operator=(const Reserved &) = delete;

  bool ok() const { return base_ != MAP_FAILED; }
  const std::string &why() const { return why_; }  // empty if ok
  char *base() const { return static_cast<char *>(base_); }
  void open(const char *p, std::size_t n) const {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t begin = static_cast<std::size_t>(p - base()) / page * page;
    const std::size_t end = rules::round_up(static_cast<std::size_t>(p - base()) + n, page);
    ASSERT_EQ(mprotect(base() + begin, end - begin, PROT_READ | PROT_WRITE), 0);
  }

 private:
  std::size_t bytes_;
  void *base_;
  std::string why_;
};

// Moves each slice of dimension 0 of `t`, `slice` elements long, to multiples of `stride` elements in reserved memory.
void spread(mlaverify_tensor &t, int64_t slice, int64_t stride, const Reserved &memory) {
  const int64_t bytes = rules::dtype_bytes(static_cast<DType>(t.dtype)), n = t.shape[0];
  char *first = memory.base() + (stride < 0 ? -stride * (n - 1) * bytes : 0);
  for (int64_t i = 0; i < n; ++i) {
    char *to = first + i * stride * bytes;
    memory.open(to, static_cast<std::size_t>(slice * bytes));
    std::memcpy(to, static_cast<char *>(t.data) + i * t.strides[0] * bytes, static_cast<std::size_t>(slice * bytes));
  }
  t.data = first;
  t.strides[0] = stride;
}

// Offsets that pass 2^31 bytes, 2^31 elements and 2^32 elements, for odd page sizes and odd strides, forwards and backwards.
TEST(Offsets, CacheBeyond32Bits) {
  for (const DType type : {DType::bf16, DType::f8_e4m3, DType::f32}) {
    for (const int64_t stride : {(int64_t{1} << 30) + 7, -((int64_t{1} << 30) + 7)}) {
      for (const bool flat : {false, true}) {
        TestCase c;
        c.lens = {flat ? 2 : 9, flat ? 1 : 4};
        c.page_size = flat ? 1 : 3;
        c.flat = flat;
        c.kv_dtype = type;
        TestCall call(c);
        ASSERT_EQ(call.run_and_compare(), "");
        const TestCall::Bits bits = call.bits();
        const int64_t n = call.args.kv_cache.shape[0];
        ASSERT_GT((n - 1) * std::abs(stride), int64_t{1} << 32);
        const Reserved memory(static_cast<std::size_t>((n + 1) * std::abs(stride) * rules::dtype_bytes(type)));
        if (!memory.ok()) GTEST_SKIP() << memory.why();
        spread(call.args.kv_cache, c.page_size * c.lk, stride, memory);
        ASSERT_EQ(call.run(), "");
        EXPECT_EQ(call.bits(), bits);
      }
    }
  }
}

TEST(Offsets, QueriesBeyond32Bits) {
  TestCase c;
  c.lens = {9, 4};
  TestCall call(c);
  ASSERT_EQ(call.run(), "");
  const TestCall::Bits bits = call.bits();
  constexpr int64_t stride = (int64_t{3} << 29) + 3;
  const Reserved memory(std::size_t{5} * stride * 2);
  if (!memory.ok()) GTEST_SKIP() << memory.why();
  spread(call.args.q, c.heads * c.lk, stride, memory);
  ASSERT_EQ(call.run(), "");
  EXPECT_EQ(call.bits(), bits);
}

TEST(Offsets, OutputsBeyond32Bits) {
  TestCase c;
  c.lens = {9, 4};
  TestCall call(c);
  ASSERT_EQ(call.run(), "");
  const TestCall::Bits bits = call.bits();
  constexpr int64_t stride = (int64_t{3} << 29) + 3;
  const Reserved out(std::size_t{5} * stride * 2), lse(std::size_t{5} * stride * 4);
  for (const Reserved *memory : {&out, &lse}) {
    if (!memory->ok()) GTEST_SKIP() << memory->why();
  }
  call.poison_outputs();
  spread(call.args.out, c.heads * c.lv, stride, out);
  spread(call.args.lse, c.heads, stride, lse);
  ASSERT_EQ(mlaverify_decode_attention_fwd_verify(&call.args), MLAVERIFY_OK) << mlaverify_last_error();
  EXPECT_EQ(call.bits(), bits);
}

// More rows than fit 16 bits, as many requests and as the tokens of one request.
TEST(Rows, MoreThan65536) {
  TestCase c;
  c.heads = 8;
  c.lk = c.lv = 8;
  c.qlen = 1;
  c.page_size = 1;
  c.table_extra = 0;
  for (const int32_t rows : {65535, 65536, 70000}) {
    c.lens.assign(static_cast<std::size_t>(rows), 0);
    for (std::size_t i = 0; i < c.lens.size(); ++i) c.lens[i] = static_cast<int32_t>(i % 7 == 0 ? 2 : i % 2);
    c.lens.back() = 2;
    TestCall call(c);
    call.args.num_threads = 2;
    ASSERT_EQ(call.run_and_compare(101), "");
    EXPECT_GT(call.lse(rows - 1, 0, 7), -1e30f);
  }
  c.qlen = 70000;
  c.lens = {3};  // the last three tokens see keys
  TestCall call(c);
  call.args.num_threads = 2;
  ASSERT_EQ(call.run_and_compare(1), "");
}

// ---- Strides ----------------------------------------------------------------------------------------------------------

class Strides : public testing::TestWithParam<DType> {};

TEST_P(Strides, EveryLayoutGivesTheSame) {
  TestCase plain;
  plain.lens = {9, 14};
  plain.lk = plain.lv = 128;
  plain.kv_dtype = GetParam();
  plain.q_dtype = rules::is_fp8(GetParam()) ? DType::bf16 : GetParam();
  TestCall reference(plain);
  ASSERT_EQ(reference.run_and_compare(), "");
  std::vector<TestCase> layouts;
  const auto add = [&](auto change) {
    layouts.push_back(plain);
    change(layouts.back());
  };
  add([](TestCase &c) { c.heads_outer = true; });          // [heads, rows, width] in memory
  add([](TestCase &c) { c.q_pad = 64, c.out_pad = 16; });  // slices of wider buffers
  add([](TestCase &c) { c.q_pad = 1, c.out_pad = 3; });    // nothing aligned to 16 bytes
  add([](TestCase &c) { c.heads_outer = true, c.q_pad = c.out_pad = 5; });
  add([](TestCase &c) { c.page_pad = c.page_size * c.lk; });  // every other page of a larger buffer
  add([](TestCase &c) { c.page_pad = 8; });
  add([](TestCase &c) { c.page_pad = 1; });
  add([](TestCase &c) { c.slot_pad = 16; });
  add([](TestCase &c) { c.slot_pad = 1, c.page_pad = 7; });
  add([](TestCase &c) { c.shift = 1; });
  add([](TestCase &c) { c.shift = 3, c.slot_pad = 1, c.q_pad = 1, c.out_pad = 1; });
  add([](TestCase &c) { c.flat = true; });
  add([](TestCase &c) { c.flat = true, c.slot_pad = 3, c.shift = 1; });
  add([](TestCase &c) { c.table_pad = 5; });
  for (const TestCase &c : layouts) {
    TestCall call(c);
    ASSERT_EQ(call.run_and_compare(), "");
    EXPECT_EQ(call.bits(), reference.bits()) << c;
  }
}

std::string type_name(const testing::TestParamInfo<DType> &i) {
  const char *const names[] = {"f32", "f16", "bf16", "e4m3", "e5m2"};
  return names[static_cast<int32_t>(i.param)];
}
INSTANTIATE_TEST_SUITE_P(Type, Strides, testing::Values(DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2),
                         type_name);

// ---- Pages ------------------------------------------------------------------------------------------------------------

TEST(Pages, EverySizeGivesTheSame) {
  TestCase c;
  c.lens = {1, 130, 700};
  c.lk = c.lv = 128;
  std::vector<TestCall::Bits> results;
  for (const int32_t page_size : {1, 2, 3, 5, 7, 16, 48, 63, 64, 65, 100, 256, 511, 512, 513, 1000, 4096}) {
    c.page_size = page_size;
    TestCall call(c);
    ASSERT_EQ(call.run_and_compare(page_size == 1 ? 1 : 5), "");
    results.push_back(call.bits());
    EXPECT_EQ(results.back(), results.front()) << page_size;
  }
}

TEST(Pages, ContiguousAndPermutedGiveTheSame) {
  TestCase c;
  c.lens = {200};
  c.lk = c.lv = 128;
  TestCall call(c);
  ASSERT_EQ(call.run(), "");
  const TestCall::Bits permuted = call.bits();
  io::TensorBuffer cache(DType::bf16, {50, 4, 1, c.lk});
  for (int32_t k = 0; k < 200; ++k)
    std::memcpy(cache.data<uint16_t>() + k * c.lk, call.key(0, k), static_cast<std::size_t>(c.lk) * 2);
  call.args.kv_cache = cache.view();
  for (int32_t i = 0; i < 50; ++i) static_cast<int32_t *>(call.args.block_table.data)[i] = i;
  ASSERT_EQ(call.run(), "");
  EXPECT_EQ(call.bits(), permuted);
}

TEST(Pages, SharedBetweenRequestsAndWithinOne) {
  TestCase c;
  c.lens = {12, 12, 12};
  TestCall call(c);
  auto *table = static_cast<int32_t *>(call.args.block_table.data);
  const auto row = call.args.block_table.strides[0];
  table[row] = table[0];                // the first page of two requests
  table[row + 1] = table[1];            // and the second
  table[2 * row + 1] = table[2 * row];  // one page twice in a request
  EXPECT_EQ(call.run_and_compare(), "");
}

TEST(Pages, CachesMuchLargerAndSmallerThanTheTable) {
  TestCase c;
  c.lens = {5};
  c.spare_pages = 5000;
  c.table_extra = 0;
  EXPECT_EQ(check(c), "");
  c.spare_pages = 0;
  c.table_extra = 5000;
  EXPECT_EQ(check(c), "");
}

// ---- Workspace --------------------------------------------------------------------------------------------------------

// The size for these shapes serves every length; memory that faults follows it.
TEST(Workspace, OfTheQueriedSizeServesEveryLength) {
  TestCase c;
  c.lk = c.lv = 128;
  c.page_size = 1;
  c.lens = {5000, 3000};
  c.real_lens = {5000, 3000};
  TestCall call(c);
  for (const int32_t threads : {1, 2, 5}) {
    call.args.num_threads = threads;
    std::size_t bytes = 0;
    ASSERT_EQ(mlaverify_workspace_size(&call.args, &bytes), MLAVERIFY_OK);
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t whole = rules::round_up(bytes, page);
    const Reserved memory(whole + page);
    ASSERT_TRUE(memory.ok());
    memory.open(memory.base(), whole);
    call.args.workspace = memory.base() + whole - bytes;
    call.args.workspace_bytes = bytes;
    auto *lens = static_cast<int32_t *>(call.args.seq_lens.data);
    for (const int32_t len : {0, 1, 63, 511, 513, 1024, 2047, 3000, 4608, 4999, 5000}) {
      lens[0] = len;
      lens[1] = 3000 - len / 2;
      call.poison_outputs();
      std::memset(call.args.workspace, 0xff, bytes);
      ASSERT_EQ(mlaverify_decode_attention_fwd_verify(&call.args), MLAVERIFY_OK) << mlaverify_last_error();
      ASSERT_EQ(call.mismatch(), "") << "length " << len << ", " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace mlaverify::test
