// What tests of the cuda backend share: a case of the usual size, and its call on the device.
#pragma once

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "support/test_call.h"

namespace mlaverify::test {

inline TestCase deepseek(std::vector<int32_t> lens, int32_t qlen = 4) {
  TestCase c;
  c.heads = 16;
  c.qlen = qlen;
  c.lk = 576;
  c.lv = 512;
  c.page_size = 64;
  c.lens = std::move(lens);
  c.sm_scale = 1 / 24.0f;
  return c;
}

inline mlaverify_status call(const DeviceCall &device) { return mlaverify_decode_attention_fwd_verify(&device.args); }

// Runs a call on the device, and compares every `every`-th row with the oracle.
inline void expect_right(TestCall &host, int32_t every = 1) {
  DeviceCall device(&host);
  ASSERT_EQ(call(device), MLAVERIFY_OK) << mlaverify_last_error();
  ASSERT_EQ(device.fetch(), "");
  EXPECT_EQ(host.mismatch(every), "");
}
inline void expect_right(const TestCase &c, int32_t every = 1) {
  TestCall host(c);
  expect_right(host, every);
}

}  // namespace mlaverify::test
