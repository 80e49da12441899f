// The C++ layer: typed views, exceptions with the library's status and message, default arguments.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>

#include "mlaverify/mlaverify.hpp"

namespace {

using mlaverify::view;

static_assert(mlaverify::dtype_of<float>() == MLAVERIFY_F32 && mlaverify::dtype_of<const mlaverify::bf16>() == MLAVERIFY_BF16 &&
              mlaverify::dtype_of<mlaverify::f16>() == MLAVERIFY_F16 && mlaverify::dtype_of<int32_t>() == MLAVERIFY_I32 &&
              mlaverify::dtype_of<mlaverify::f8_e4m3>() == MLAVERIFY_F8_E4M3 &&
              mlaverify::dtype_of<mlaverify::f8_e5m2>() == MLAVERIFY_F8_E5M2 &&
              mlaverify::dtype_of<mlaverify::f8_ds_mla>() == MLAVERIFY_F8_DS_MLA);
static_assert(sizeof(mlaverify::bf16) == 2 && sizeof(mlaverify::f8_e4m3) == 1);

mlaverify_status status_of(void (*f)()) {
  try {
    f();
  } catch (const mlaverify::error &e) {
    EXPECT_STRNE(e.what(), "");
    return e.status();
  }
  return MLAVERIFY_OK;
}

TEST(View, ShapesAndStrides) {
  const float data[24] = {};
  const mlaverify_tensor t = view(data, {2, 3, 4});
  EXPECT_EQ(t.data, data);
  EXPECT_EQ(t.dtype, MLAVERIFY_F32);
  EXPECT_EQ(t.device, MLAVERIFY_HOST);
  EXPECT_EQ(t.ndim, 3);
  EXPECT_EQ(t.strides[0], 12);
  EXPECT_EQ(t.strides[1], 4);
  EXPECT_EQ(t.strides[2], 1);
  const mlaverify_tensor strided = view(data, {2, 3}, {1, 2}, 0);
  EXPECT_EQ(strided.strides[0], 1);
  EXPECT_EQ(strided.strides[1], 2);
  EXPECT_EQ(strided.device, 0);
  EXPECT_EQ(view(data, {}).ndim, 0);
  EXPECT_EQ(status_of([] { view(static_cast<float *>(nullptr), {1, 1, 1, 1, 1}); }), MLAVERIFY_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(status_of([] { view(static_cast<float *>(nullptr), {1, 1}, {1}); }), MLAVERIFY_ERR_INVALID_ARGUMENT);
}

TEST(Call, ComputesAndThrows) {
  // One request, one key: the output is its value.
  std::vector<float> q(16, 1), out(8, std::nanf("")), lse(1, std::nanf(""));
  std::vector<mlaverify::bf16> cache(2 * 16, mlaverify::bf16{0xffff});
  for (std::size_t i = 0; i < 16; ++i) cache[16 + i] = {0x3f80};  // 1.0 in page 1
  std::vector<int32_t> table = {1}, lens = {1};
  mlaverify_verify_args args = mlaverify::make_args();
  args.q = view(q.data(), {1, 1, 16});
  args.kv_cache = view(cache.data(), {2, 1, 1, 16});
  args.out = view(out.data(), {1, 1, 8});
  args.lse = view(lse.data(), {1, 1});
  args.block_table = view(table.data(), {1, 1});
  args.seq_lens = view(lens.data(), {1});
  args.v_head_dim = 8;
  args.qlen = 1;
  args.page_size = 1;
  args.sm_scale = 0.25f;
  args.workspace_bytes = mlaverify::workspace_size(args);
  const std::unique_ptr<void, decltype(&std::free)> workspace(
      std::aligned_alloc(MLAVERIFY_WORKSPACE_ALIGNMENT, args.workspace_bytes), &std::free);
  args.workspace = workspace.get();
  mlaverify::warmup_decode_attention_fwd_verify(args, {1, 4});
  EXPECT_TRUE(std::isnan(out[0]));
  mlaverify::decode_attention_fwd_verify(args);
  for (float x : out) EXPECT_EQ(x, 1.0f);
  EXPECT_NEAR(lse[0], 4.0f, 1e-5f);

  table[0] = 2;
  try {
    mlaverify::decode_attention_fwd_verify(args);
    ADD_FAILURE() << "must throw";
  } catch (const mlaverify::error &e) {
    EXPECT_EQ(e.status(), MLAVERIFY_ERR_INVALID_VALUE);
    EXPECT_STREQ(e.what(), "block_table[0][0]: got page 2, must be in 0 ... 1");
  }
}

TEST(Call, EveryFunctionThrows) {
  EXPECT_EQ(status_of([] { mlaverify::decode_attention_fwd_verify(mlaverify::make_args()); }), MLAVERIFY_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(status_of([] { mlaverify::workspace_size(mlaverify::make_args()); }), MLAVERIFY_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(status_of([] { mlaverify::warmup_decode_attention_fwd_verify(mlaverify::make_args(), {0}); }),
            MLAVERIFY_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(status_of([] { mlaverify::select_verify_config(1, 0, 1); }), MLAVERIFY_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(status_of([] { mlaverify::verify_num_kv_splits(1, 1, 0, 1, 1, 1); }), MLAVERIFY_ERR_INVALID_ARGUMENT);
}

TEST(Planning, DefaultArguments) {
  EXPECT_EQ(mlaverify::verify_num_kv_splits(16384, 1, 4, 16, 132, 64), 132);
  EXPECT_EQ(mlaverify::verify_num_kv_splits(16384, 200, 4, 16, 132, 64), 5);
  EXPECT_EQ(mlaverify::select_verify_config(11, 4, 16, MLAVERIFY_HOST, "gfx942").block_h, 64);
  EXPECT_GE(mlaverify::select_verify_config(1, 1, 1).block_h, 1);
}

TEST(Backends, List) {
  const auto list = mlaverify::backends();
  ASSERT_FALSE(list.empty());
  EXPECT_EQ(list.back().backend, MLAVERIFY_BACKEND_REFERENCE);
  EXPECT_EQ(mlaverify::version(), MLAVERIFY_VERSION_STRING);
}

}  // namespace
