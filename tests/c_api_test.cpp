// The C interface beside the call itself: planning, warmup, backends, status names, errors per thread.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <thread>

#include "mlaverify/mlaverify.h"
#include "rules/config_table.h"
#include "support/test_call.h"

namespace mlaverify::test {
namespace {

mlaverify_verify_config config_for(int32_t batch, int32_t qlen, int32_t heads, const char *arch) {
  mlaverify_verify_config c = {};
  c.size = sizeof(c);
  EXPECT_EQ(mlaverify_select_verify_config(batch, qlen, heads, MLAVERIFY_HOST, arch, &c), MLAVERIFY_OK)
      << mlaverify_last_error();
  EXPECT_EQ(c.size, sizeof(c));
  return c;
}

TEST(SelectConfig, RowsOfTheTables) {
  EXPECT_EQ(config_for(10, 4, 16, "gfx942").block_h, 32);
  EXPECT_EQ(config_for(11, 4, 16, "gfx942").block_h, 64);
  EXPECT_EQ(config_for(11, 4, 16, "gfx942").q_split, 1);
  const mlaverify_verify_config here = config_for(1, 1, 1, nullptr), cpu = config_for(1, 1, 1, "cpu");
  EXPECT_EQ(std::memcmp(&here, &cpu, sizeof cpu), 0);
  EXPECT_EQ(cpu.num_warps, 0);
  EXPECT_EQ(config_for(0, 1, 0, "cpu").block_h, cpu.block_h);
}

TEST(SelectConfig, Refusals) {
  mlaverify_verify_config c = {};
  c.size = sizeof(c);
  const auto expect = [&](mlaverify_status got, const std::string &message,
                          mlaverify_status want = MLAVERIFY_ERR_INVALID_ARGUMENT) {
    EXPECT_EQ(got, want);
    EXPECT_EQ(mlaverify_last_error(), message);
    EXPECT_EQ(c.block_h, 0);
  };
  expect(mlaverify_select_verify_config(1, 1, 1, -1, nullptr, nullptr), "config: got a null pointer");
  expect(mlaverify_select_verify_config(-1, 1, 1, -1, nullptr, &c), "batch: got -1, must be >= 0");
  expect(mlaverify_select_verify_config(1, 0, 1, -1, nullptr, &c), "qlen: got 0, must be >= 1");
  expect(mlaverify_select_verify_config(1, 1, -1, -1, nullptr, &c), "num_heads: got -1, must be >= 0");
  expect(mlaverify_select_verify_config(1, 1, 1, -2, nullptr, &c), "device: got -2, must be -1 (host) or a CUDA device");
  std::string archs;
  for (int32_t a = 0; a < rules::kNumArchs; ++a)
    archs += (a > 0 ? ", " : "") + std::string(rules::arch_name(static_cast<rules::Arch>(a)));
  expect(mlaverify_select_verify_config(1, 1, 1, -1, "sm_1", &c), "arch: got 'sm_1', must be one of " + archs);
  expect(mlaverify_select_verify_config(1, 1, 1, -1, "", &c), "arch: got '', must be one of " + archs);
  c.size = sizeof(c) - 1;
  expect(mlaverify_select_verify_config(1, 1, 1, -1, nullptr, &c),
         "config.size: got " + std::to_string(sizeof(c) - 1) +
             ", must be sizeof(mlaverify_verify_config) = " + std::to_string(sizeof(c)));
}

TEST(NumKvSplits, ExamplesOfTheManual) {
  EXPECT_EQ(mlaverify_verify_num_kv_splits(16384, 1, 4, 16, 132, 64, 1.0, 64, 8), 132);
  EXPECT_EQ(mlaverify_verify_num_kv_splits(16384, 200, 4, 16, 132, 64, 1.0, 64, 8), 5);
}

TEST(NumKvSplits, Refusals) {
  struct Refused {
    int64_t batch;
    int32_t qlen, heads, sms, block_h;
    double occupancy;
    const char *message;
  };
  for (const Refused &r : std::initializer_list<Refused>{
           {1, 0, 16, 132, 64, 1.0, "qlen: got 0, must be >= 1"},
           {1, 1, -1, 132, 64, 1.0, "num_heads: got -1, must be >= 0"},
           {1, 1, 16, 0, 64, 1.0, "sm_count: got 0, must be >= 1"},
           {1, 1, 16, 132, 0, 1.0, "block_h: got 0, must be >= 1"},
           {1, 1, 16, 132, 64, -0.5, "occupancy: got -0.500000, must be >= 0 and give at most 2^20 slots"},
           {1, 1, 16, 132, 64, std::nan(""), "occupancy: got nan, must be >= 0 and give at most 2^20 slots"},
           {1, 1, 16, 132, 64, HUGE_VAL, "occupancy: got inf, must be >= 0 and give at most 2^20 slots"},
           {1, 1, 16, INT_MAX, 64, 1.0, "occupancy: got 1.000000, must be >= 0 and give at most 2^20 slots"},
           {INT64_MAX, 1, 16, 132, 64, 1.0, "batch: got 9223372036854775807, must give at most 2^40 programs"},
           {1, INT_MAX, INT_MAX, 1 << 20, 1, 1.0, "batch: got 1, must give at most 2^40 programs"},
           {0, INT_MAX, INT_MAX, 1 << 20, 1, 1.0, "batch: got 0, must give at most 2^40 programs"},
       }) {
    EXPECT_EQ(mlaverify_verify_num_kv_splits(1 << 30, r.batch, r.qlen, r.heads, r.sms, r.block_h, r.occupancy, 1, INT_MAX), 0)
        << r.message;
    EXPECT_STREQ(mlaverify_last_error(), r.message);
  }
}

// Arguments at their limits give an answer, and soon.
TEST(NumKvSplits, Limits) {
  EXPECT_EQ(mlaverify_verify_num_kv_splits(INT64_MAX, 1, 1, 1, 1 << 20, 1, 1.0, INT_MIN, INT_MIN), 1 << 20);
  EXPECT_GE(mlaverify_verify_num_kv_splits(INT64_MAX, int64_t{1} << 40, 1, 1, 1 << 20, 1, 1.0, 1, INT_MAX), 1);
  EXPECT_EQ(mlaverify_verify_num_kv_splits(INT64_MIN, INT64_MIN, 1, 0, 1, 1, 0.0, 64, 8), 1);
}

TEST(Warmup, TouchesNothing) {
  TestCase c;
  c.lens = {700, 5};
  TestCall call(c);
  call.args.num_threads = 2;
  const int32_t qlens[] = {1, 2, 7};
  EXPECT_EQ(mlaverify_warmup_decode_attention_fwd_verify(&call.args, qlens, 3), MLAVERIFY_OK) << mlaverify_last_error();
  EXPECT_EQ(mlaverify_warmup_decode_attention_fwd_verify(&call.args, nullptr, 0), MLAVERIFY_OK) << mlaverify_last_error();
  EXPECT_TRUE(call.outputs_untouched());
  EXPECT_EQ(call.run_and_compare(), "");
}

TEST(Warmup, Refusals) {
  TestCall call{TestCase()};
  const int32_t qlens[] = {1, 0};
  const auto expect = [&](const int32_t *q, int32_t n, const char *message) {
    EXPECT_EQ(mlaverify_warmup_decode_attention_fwd_verify(&call.args, q, n), MLAVERIFY_ERR_INVALID_ARGUMENT);
    EXPECT_STREQ(mlaverify_last_error(), message);
  };
  expect(qlens, -1, "num_qlens: got -1, must be >= 0");
  expect(nullptr, 1, "qlens: got a null pointer");
  expect(qlens, 2, "qlens[1]: got 0, must be >= 1");
  call.args.page_size = 0;
  expect(qlens, 1, "page_size: got 0, must be >= 1");
}

TEST(Backends, ListEndsWithTheReference) {
  const int32_t n = mlaverify_backend_count();
  ASSERT_GE(n, 2);
  std::set<std::string> names;
  mlaverify_backend_info info = {};
  for (int32_t i = 0; i < n; ++i) {
    info = {};
    info.size = sizeof(info);
    ASSERT_EQ(mlaverify_get_backend_info(i, &info), MLAVERIFY_OK) << mlaverify_last_error();
    EXPECT_STRNE(info.detail, "");
    names.insert(info.name);
    EXPECT_EQ(info.available, info.backend == MLAVERIFY_BACKEND_CUDA ? 0 : 1);
  }
  EXPECT_EQ(info.backend, MLAVERIFY_BACKEND_REFERENCE);
  EXPECT_EQ(names.size(), static_cast<std::size_t>(n));
  EXPECT_TRUE(names.count("cpu") == 1 && names.count("reference") == 1 && names.count("cuda") == 1);
}

TEST(Backends, Refusals) {
  mlaverify_backend_info info = {};
  info.size = sizeof(info);
  const std::string last = std::to_string(mlaverify_backend_count() - 1);
  for (const int32_t i : {-1, mlaverify_backend_count(), INT_MAX}) {
    EXPECT_EQ(mlaverify_get_backend_info(i, &info), MLAVERIFY_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(mlaverify_last_error(), "index: got " + std::to_string(i) + ", must be in 0 ... " + last);
  }
  EXPECT_EQ(mlaverify_get_backend_info(0, nullptr), MLAVERIFY_ERR_INVALID_ARGUMENT);
  EXPECT_STREQ(mlaverify_last_error(), "info: got a null pointer");
  info.size = 0;
  EXPECT_EQ(mlaverify_get_backend_info(0, &info), MLAVERIFY_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(mlaverify_last_error(),
            "info.size: got 0, must be sizeof(mlaverify_backend_info) = " + std::to_string(sizeof(info)));
}

TEST(Status, Names) {
  const char *const names[] = {"MLAVERIFY_OK",
                               "MLAVERIFY_ERR_INVALID_ARGUMENT",
                               "MLAVERIFY_ERR_INVALID_VALUE",
                               "MLAVERIFY_ERR_UNSUPPORTED",
                               "MLAVERIFY_ERR_WORKSPACE",
                               "MLAVERIFY_ERR_DEVICE",
                               "MLAVERIFY_ERR_INTERNAL"};
  for (int32_t i = 0; i < 7; ++i) EXPECT_STREQ(mlaverify_status_name(i), names[i]);
  EXPECT_STREQ(mlaverify_status_name(7), "unknown status");
  EXPECT_STREQ(mlaverify_status_name(-1), "unknown status");
}

TEST(Version, IsThatOfTheHeader) {
  EXPECT_STREQ(mlaverify_version(), MLAVERIFY_VERSION_STRING);
  EXPECT_EQ(std::string(MLAVERIFY_VERSION_STRING), std::to_string(MLAVERIFY_VERSION_MAJOR) + "." +
                                                       std::to_string(MLAVERIFY_VERSION_MINOR) + "." +
                                                       std::to_string(MLAVERIFY_VERSION_PATCH));
}

// Each thread has its own last error, and a call that succeeds leaves it.
TEST(LastError, IsPerThread) {
  EXPECT_EQ(mlaverify_decode_attention_fwd_verify(nullptr), MLAVERIFY_ERR_INVALID_ARGUMENT);
  std::string before = "unset", after;
  std::thread([&] {
    before = mlaverify_last_error();
    mlaverify_workspace_size(nullptr, nullptr);
    after = mlaverify_last_error();
  }).join();
  EXPECT_EQ(before, "");
  EXPECT_EQ(after, "bytes: got a null pointer");
  EXPECT_STREQ(mlaverify_last_error(), "args: got a null pointer");
  EXPECT_EQ(check(TestCase()), "");
  EXPECT_STREQ(mlaverify_last_error(), "args: got a null pointer");
}

// A message longer than its storage is cut, not overrun.
TEST(LastError, LongMessagesAreCut) {
  mlaverify_verify_config c = {};
  c.size = sizeof(c);
  const std::string arch(5000, 'x');
  EXPECT_EQ(mlaverify_select_verify_config(1, 1, 1, -1, arch.c_str(), &c), MLAVERIFY_ERR_INVALID_ARGUMENT);
  EXPECT_LT(std::strlen(mlaverify_last_error()), 2000u);
  EXPECT_EQ(std::string(mlaverify_last_error()).find("arch: got 'xxx"), 0u);
}

}  // namespace
}  // namespace mlaverify::test
