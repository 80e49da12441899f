// Every refusal of a call: its status, the argument it names, what that was and what it should be; and that nothing is written.
#include <gtest/gtest.h>

#include <climits>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "mlaverify/mlaverify.h"
#include "support/test_call.h"

namespace mlaverify::test {
namespace {

using Args = mlaverify_verify_args;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max(), kMin = std::numeric_limits<int64_t>::min();

// 2 requests of 2 tokens, 3 heads, Lk 48, Lv 32; 9 pages of 4 tokens; a block table 5 wide.
TestCase small_case() {
  TestCase c;
  c.lens = {9, 5};
  c.real_lens = {9, 5};
  c.kv_dtype = DType::f8_e4m3;
  c.k_scale = 0.5f;
  return c;
}

struct Refusal {
  std::function<void(Args &)> spoil;
  std::string message;
  mlaverify_status status = MLAVERIFY_ERR_INVALID_ARGUMENT;
};

void expect_refused(TestCall &call, const Refusal &r) {
  ASSERT_EQ(call.run(), "");
  call.poison_outputs();
  const Args good = call.args;
  r.spoil(call.args);
  EXPECT_EQ(mlaverify_decode_attention_fwd_verify(&call.args), r.status) << r.message;
  EXPECT_EQ(mlaverify_last_error(), r.message);
  EXPECT_TRUE(call.outputs_untouched()) << r.message;
  call.args = good;
  EXPECT_EQ(call.run_and_compare(), "") << "after " << r.message;
}

void expect_refused(const std::vector<Refusal> &table) {
  TestCall call(small_case());
  for (const Refusal &r : table) expect_refused(call, r);
}

void set(mlaverify_tensor &t, std::initializer_list<int64_t> shape) {
  t.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape);
}

TEST(Validate, Scalars) {
  expect_refused({
      {[](Args &a) { a.backend = -1; }, "backend: got -1, must be a MLAVERIFY_BACKEND_* number, 0 ... 3"},
      {[](Args &a) { a.backend = 4; }, "backend: got 4, must be a MLAVERIFY_BACKEND_* number, 0 ... 3"},
      {[](Args &a) { a.flags = 4; }, "flags: got 4, must be a combination of MLAVERIFY_FLAG_*"},
      {[](Args &a) { a.qlen = 0; }, "qlen: got 0, must be >= 1"},
      {[](Args &a) { a.qlen = INT_MIN; }, "qlen: got -2147483648, must be >= 1"},
      {[](Args &a) { a.page_size = 0; }, "page_size: got 0, must be >= 1"},
      {[](Args &a) { a.num_kv_splits = -1; }, "num_kv_splits: got -1, must be >= 0"},
      {[](Args &a) { a.num_threads = -1; }, "num_threads: got -1, must be in 0 ... 1024"},
      {[](Args &a) { a.num_threads = 1025; }, "num_threads: got 1025, must be in 0 ... 1024"},
      {[](Args &a) {
         a.parallel_for = [](void *, int32_t, void (*)(void *, int32_t), void *) {};
         a.num_threads = 0;
       },
       "num_threads: got 0, must be in 1 ... 1024 where parallel_for is given"},
      {[](Args &a) { a.v_head_dim = 0; }, "v_head_dim: got 0, must be a multiple of 8 in 8 ... 1024"},
      {[](Args &a) { a.v_head_dim = 12; }, "v_head_dim: got 12, must be a multiple of 8 in 8 ... 1024"},
      {[](Args &a) { a.v_head_dim = -8; }, "v_head_dim: got -8, must be a multiple of 8 in 8 ... 1024"},
      {[](Args &a) { a.v_head_dim = 1032; }, "v_head_dim: got 1032, must be a multiple of 8 in 8 ... 1024"},
      {[](Args &a) { a.v_head_dim = 56; }, "v_head_dim: got 56, must be <= Lk = 48"},
  });
}

TEST(Validate, MissingTensors) {
  const auto drop = [](mlaverify_tensor Args::*t) { return [t](Args &a) { (a.*t).data = nullptr, (a.*t).ndim = 0; }; };
  expect_refused({
      {drop(&Args::q), "q: is missing, must be [B*qlen, H, Lk]"},
      {drop(&Args::kv_cache), "kv_cache: is missing, must be [num_pages, page_size, 1, Lk] or [num_pages*page_size, 1, Lk]"},
      {drop(&Args::out), "out: is missing, must be [B*qlen, H, Lv]"},
      {drop(&Args::lse), "lse: is missing, must be [B*qlen, H]"},
      {drop(&Args::block_table), "block_table: is missing, must be [B, max_pages]"},
      {drop(&Args::seq_lens), "seq_lens: is missing, must be [B]"},
  });
}

TEST(Validate, Ranks) {
  expect_refused({
      {[](Args &a) { a.q.ndim = 2; }, "q: got rank 2, must be [B*qlen, H, Lk]"},
      {[](Args &a) { a.kv_cache.ndim = 2; },
       "kv_cache: got rank 2, must be [num_pages, page_size, 1, Lk] or [num_pages*page_size, 1, Lk]"},
      {[](Args &a) { a.kv_cache.ndim = 5; },
       "kv_cache: got rank 5, must be [num_pages, page_size, 1, Lk] or [num_pages*page_size, 1, Lk]"},
      {[](Args &a) { a.out.ndim = -1; }, "out: got rank -1, must be [B*qlen, H, Lv]"},
      {[](Args &a) { a.lse.ndim = 3; }, "lse: got rank 3, must be [B*qlen, H]"},
      {[](Args &a) { a.block_table.ndim = 1; }, "block_table: got rank 1, must be [B, max_pages]"},
      {[](Args &a) { a.seq_lens.ndim = 0; }, "seq_lens: got rank 0, must be [B]"},
      {[](Args &a) { a.real_seq_lens.ndim = 2; }, "real_seq_lens: got rank 2, must be [B]"},
      {[](Args &a) { a.k_scale.ndim = 2; }, "k_scale: got rank 2, must be [] or [1]"},
  });
}

// 64-bit tables and lengths have no dtype number at all.
TEST(Validate, Dtypes) {
  expect_refused({
      {[](Args &a) { a.q.dtype = MLAVERIFY_F8_E4M3; }, "q: got f8_e4m3, must be one of f32, f16, bf16"},
      {[](Args &a) { a.q.dtype = MLAVERIFY_F8_DS_MLA; }, "q: got f8_ds_mla, must be one of f32, f16, bf16"},
      {[](Args &a) { a.kv_cache.dtype = MLAVERIFY_I32; },
       "kv_cache: got i32, must be one of f32, f16, bf16, f8_e4m3, f8_e5m2, f8_ds_mla"},
      {[](Args &a) { a.kv_cache.dtype = -1; },
       "kv_cache: got dtype -1, must be one of f32, f16, bf16, f8_e4m3, f8_e5m2, f8_ds_mla"},
      {[](Args &a) { a.out.dtype = MLAVERIFY_F32; }, "out: got f32, must be that of q, bf16"},
      {[](Args &a) { a.lse.dtype = MLAVERIFY_F16; }, "lse: got f16, must be one of f32"},
      {[](Args &a) { a.block_table.dtype = 7; }, "block_table: got dtype 7, must be one of i32"},
      {[](Args &a) { a.seq_lens.dtype = 64; }, "seq_lens: got dtype 64, must be one of i32"},
      {[](Args &a) { a.real_seq_lens.dtype = MLAVERIFY_F32; }, "real_seq_lens: got f32, must be one of i32"},
      {[](Args &a) { a.k_scale.dtype = MLAVERIFY_BF16; }, "k_scale: got bf16, must be one of f32"},
  });
}

TEST(Validate, Shapes) {
  expect_refused({
      {[](Args &a) { a.qlen = 3; }, "q: got rows 4, must be a multiple of qlen = 3"},
      {[](Args &a) {
         set(a.q, {4, 3, 44}), a.q.strides[0] = 144;
       },
       "q: got Lk = 44, must be a multiple of 8 in 8 ... 1024"},
      {[](Args &a) { a.q.shape[1] = -3; }, "q: got shape [4, -3, 48], sizes must be >= 0"},
      {[](Args &a) {
         set(a.q, {int64_t{1} << 31, 0, 48});
       },
       "q: got shape [2147483648, 0, 48], rows and heads must be below 2^31"},
      {[](Args &a) {
         set(a.q, {int64_t{1} << 40, int64_t{1} << 40, 48}), a.q.strides[0] = a.q.strides[1] = 0;
       },
       "q: got shape [1099511627776, 1099511627776, 48], which has more elements than 64 bits count"},
      {[](Args &a) { a.kv_cache.shape[2] = 2; }, "kv_cache: got shape [9, 4, 2, 48], must have 1 latent head (last but one)"},
      {[](Args &a) { a.kv_cache.shape[3] = 40; }, "kv_cache: got Lk = 40, must be that of q, 48"},
      {[](Args &a) { a.kv_cache.shape[1] = 3; }, "kv_cache: got tokens per page 3, must be page_size = 4"},
      {[](Args &a) {
         set(a.kv_cache, {35, 1, 48}), a.kv_cache.strides[0] = 48, a.kv_cache.strides[2] = 1;
       },
       "kv_cache: got tokens 35, must be a multiple of page_size = 4"},
      {[](Args &a) { a.out.shape[0] = 2; }, "out: got shape [2, 3, 32], must be [4, 3, 32] (rows and heads of q, v_head_dim)"},
      {[](Args &a) { a.out.shape[1] = 2; }, "out: got shape [4, 2, 32], must be [4, 3, 32] (rows and heads of q, v_head_dim)"},
      {[](Args &a) { a.out.shape[2] = 24; }, "out: got shape [4, 3, 24], must be [4, 3, 32] (rows and heads of q, v_head_dim)"},
      {[](Args &a) { a.lse.shape[1] = 2; }, "lse: got shape [4, 2], must be [4, 3] (rows and heads of q)"},
      {[](Args &a) { a.block_table.shape[0] = 4; },
       "block_table: got shape [4, 5], must be [2, 5] (one row a request: rows of q / qlen)"},
      {[](Args &a) { a.seq_lens.shape[0] = 4; }, "seq_lens: got shape [4], must be [2] (one a request: rows of q / qlen)"},
      {[](Args &a) { a.real_seq_lens.shape[0] = 1; },
       "real_seq_lens: got shape [1], must be [2] (one a request: rows of q / qlen)"},
      {[](Args &a) { set(a.k_scale, {2}), a.k_scale.strides[0] = 1; }, "k_scale: got shape [2], must be [1] (one number)"},
      {[](Args &a) { set(a.k_scale, {0}), a.k_scale.strides[0] = 1; }, "k_scale: got shape [0], must be [1] (one number)"},
  });
}

TEST(Validate, Strides) {
  expect_refused({
      {[](Args &a) { a.q.strides[2] = 2; }, "q: got strides [144, 48, 2], the last dimension must be contiguous (stride 1)"},
      {[](Args &a) { a.kv_cache.strides[3] = -1; },
       "kv_cache: got strides [192, 48, 48, -1], the last dimension must be contiguous (stride 1)"},
      {[](Args &a) { a.out.strides[2] = 0; }, "out: got strides [96, 32, 0], the last dimension must be contiguous (stride 1)"},
      {[](Args &a) { a.block_table.strides[1] = 2; },
       "block_table: got strides [5, 2], the last dimension must be contiguous (stride 1)"},
      {[](Args &a) { a.seq_lens.strides[0] = 0; },
       "seq_lens: got strides [0], the last dimension must be contiguous (stride 1)"},
      {[](Args &a) { a.out.strides[0] = 0; },
       "out: got shape [4, 3, 32] with strides [0, 32, 1], elements of an output must not overlap"},
      {[](Args &a) { a.out.strides[1] = 31; },
       "out: got shape [4, 3, 32] with strides [96, 31, 1], elements of an output must not overlap"},
      {[](Args &a) { a.out.strides[0] = -95; },
       "out: got shape [4, 3, 32] with strides [-95, 32, 1], elements of an output must not overlap"},
      {[](Args &a) { a.lse.strides[0] = 2; },
       "lse: got shape [4, 3] with strides [2, 1], elements of an output must not overlap"},
      {[](Args &a) { a.lse.strides[0] = a.lse.strides[1] = 0; },
       "lse: got shape [4, 3] with strides [0, 0], elements of an output must not overlap"},
      {[](Args &a) { a.q.strides[0] = kMin; },
       "q: got strides [-9223372036854775808, 48, 1], which reach beyond 64-bit addresses"},
      {[](Args &a) { a.kv_cache.strides[0] = kMax; },
       "kv_cache: got strides [9223372036854775807, 48, 48, 1], which reach beyond 64-bit addresses"},
      {[](Args &a) { a.lse.strides[1] = kMax / 2; },
       "lse: got strides [3, 4611686018427387903], which reach beyond 64-bit addresses"},
  });
}

TEST(Validate, DevicesAndReservedFields) {
  expect_refused({
      {[](Args &a) { a.q.device = -2; }, "q: got device -2, must be -1 (host) or a CUDA device"},
      {[](Args &a) { a.kv_cache.device = 0; }, "kv_cache: got device 0, must be that of q, -1"},
      {[](Args &a) { a.real_seq_lens.device = 1; }, "real_seq_lens: got device 1, must be that of q, -1"},
      {[](Args &a) { a.q.device = 0; }, "kv_cache: got device -1, must be that of q, 0"},
      {[](Args &a) { a.out.reserved = 1; }, "out: got reserved field 1, must be 0"},
      {[](Args &a) { a.q_indptr = a.seq_lens; },
       "q_indptr: is reserved for query counts per request, which no backend supports yet; must be absent",
       MLAVERIFY_ERR_UNSUPPORTED},
  });
}

// A cache of records: 9 pages of 4 tokens.
TEST(Validate, Records) {
  TestCase c = small_case();
  c.kv_dtype = DType::f8_ds_mla;
  c.lk = 576;
  c.lv = 512;
  TestCall call(c);
  for (const Refusal &r : std::vector<Refusal>{
           {[](Args &a) { a.kv_cache.shape[3] = 576; },
            "kv_cache: got bytes of a key (last dimension) 576, must be 656 with f8_ds_mla"},
           {[](Args &a) { a.kv_cache.shape[3] = 660; },
            "kv_cache: got bytes of a key (last dimension) 660, must be 656 with f8_ds_mla"},
           {[](Args &a) { a.q.shape[2] = 512; }, "q: got Lk = 512, must be 576 with an f8_ds_mla cache"},
           {[](Args &a) { a.v_head_dim = 256; }, "v_head_dim: got 256, must be 512 with an f8_ds_mla cache"},
           {[](Args &a) { a.kv_cache.data = static_cast<char *>(a.kv_cache.data) + 2; },
            "kv_cache: got an address that is not aligned to the f32 scales of its records, 4 bytes"},
           {[](Args &a) { a.kv_cache.strides[1] = 658; },
            "kv_cache: got strides [2624, 658, 656, 1], those of pages and tokens must be multiples of 4 bytes with f8_ds_mla"},
           {[](Args &a) { a.kv_cache.strides[0] += 1; },
            "kv_cache: got strides [2625, 656, 656, 1], those of pages and tokens must be multiples of 4 bytes with f8_ds_mla"},
           {[](Args &a) {
              set(a.kv_cache, {36, 1, 656}), a.kv_cache.strides[0] = 657, a.kv_cache.strides[2] = 1;
            },
            "kv_cache: got strides [657, 656, 1], those of pages and tokens must be multiples of 4 bytes with f8_ds_mla"},
           {[](Args &a) { a.kv_cache.strides[3] = 2; },
            "kv_cache: got strides [2624, 656, 656, 2], the last dimension must be contiguous (stride 1)"},
       }) {
    expect_refused(call, r);
  }
}

TEST(Validate, Pointers) {
  const auto null = [](mlaverify_tensor Args::*t) { return [t](Args &a) { (a.*t).data = nullptr; }; };
  const auto odd = [](mlaverify_tensor Args::*t) {
    return [t](Args &a) { (a.*t).data = static_cast<char *>((a.*t).data) + 1; };
  };
  expect_refused({
      {null(&Args::q), "q: got a null pointer for shape [4, 3, 48]"},
      {null(&Args::kv_cache), "kv_cache: got a null pointer for shape [9, 4, 1, 48]"},
      {null(&Args::out), "out: got a null pointer for shape [4, 3, 32]"},
      {null(&Args::lse), "lse: got a null pointer for shape [4, 3]"},
      {null(&Args::block_table), "block_table: got a null pointer for shape [2, 5]"},
      {null(&Args::seq_lens), "seq_lens: got a null pointer for shape [2]"},
      {null(&Args::real_seq_lens), "real_seq_lens: got a null pointer for shape [2]"},
      {[](Args &a) { set(a.k_scale, {1}), a.k_scale.data = nullptr; }, "k_scale: got a null pointer for shape [1]"},
      {odd(&Args::q), "q: got an address that is not aligned to its element size, 2 bytes"},
      {odd(&Args::out), "out: got an address that is not aligned to its element size, 2 bytes"},
      {odd(&Args::lse), "lse: got an address that is not aligned to its element size, 4 bytes"},
      {odd(&Args::block_table), "block_table: got an address that is not aligned to its element size, 4 bytes"},
      {odd(&Args::seq_lens), "seq_lens: got an address that is not aligned to its element size, 4 bytes"},
      {odd(&Args::real_seq_lens), "real_seq_lens: got an address that is not aligned to its element size, 4 bytes"},
      {odd(&Args::k_scale), "k_scale: got an address that is not aligned to its element size, 4 bytes"},
  });
}

TEST(Validate, Workspace) {
  TestCall call(small_case());
  ASSERT_EQ(call.run(), "");
  const std::string bytes = std::to_string(call.args.workspace_bytes);
  expect_refused(call, {[](Args &a) { a.workspace = nullptr; }, "workspace: got a null pointer, must be " + bytes + " bytes",
                        MLAVERIFY_ERR_WORKSPACE});
  expect_refused(call, {[](Args &a) { a.workspace = static_cast<char *>(a.workspace) + 128; },
                        "workspace: got an address that is not a multiple of 256 bytes", MLAVERIFY_ERR_WORKSPACE});
  expect_refused(call, {[](Args &a) { --a.workspace_bytes; },
                        "workspace_bytes: got " + std::to_string(call.args.workspace_bytes - 1) + ", must be at least " + bytes,
                        MLAVERIFY_ERR_WORKSPACE});
}

// Lengths and page ids: what the host backends see beyond the arguments, on each of them.
TEST(Validate, Values) {
  const std::vector<Refusal> table = {
      {[](Args &a) { static_cast<int32_t *>(a.seq_lens.data)[1] = -1; }, "seq_lens[1]: got -1, must be >= 0"},
      {[](Args &a) { static_cast<int32_t *>(a.real_seq_lens.data)[0] = INT_MIN; },
       "real_seq_lens[0]: got -2147483648, must be >= 0"},
      {[](Args &a) { static_cast<int32_t *>(a.block_table.data)[2] = 9; }, "block_table[0][2]: got page 9, must be in 0 ... 8"},
      {[](Args &a) { static_cast<int32_t *>(a.block_table.data)[5 + 1] = -1; },
       "block_table[1][1]: got page -1, must be in 0 ... 8"},
      {[](Args &a) {
         static_cast<int32_t *>(a.seq_lens.data)[1] = 21;
         static_cast<int32_t *>(a.real_seq_lens.data)[1] = 21;
       },
       "block_table: has 5 entries a request, but request 1 needs 6 for its 21 keys"},
      {[](Args &a) {
         static_cast<int32_t *>(a.seq_lens.data)[1] = INT_MAX;
         static_cast<int32_t *>(a.real_seq_lens.data)[1] = INT_MAX;
       },
       "block_table: has 5 entries a request, but request 1 needs 536870912 for its 2147483647 keys"},
  };
  for (const mlaverify_backend backend : {MLAVERIFY_BACKEND_CPU, MLAVERIFY_BACKEND_REFERENCE}) {
    for (Refusal r : table) {
      r.status = MLAVERIFY_ERR_INVALID_VALUE;
      TestCall call(small_case());
      call.args.backend = backend;
      ASSERT_EQ(call.run(), "");
      call.poison_outputs();
      r.spoil(call.args);
      EXPECT_EQ(mlaverify_decode_attention_fwd_verify(&call.args), r.status) << r.message;
      EXPECT_EQ(mlaverify_last_error(), r.message);
      EXPECT_TRUE(call.outputs_untouched()) << r.message;
    }
  }
}

// A page id is only looked at where some row sees a key of that page; true lengths may exceed what the table holds.
TEST(Validate, WhatNoRowSeesIsNotLookedAt) {
  TestCase c = small_case();
  c.lens = {9, 5};
  c.real_lens = {INT_MAX, 4};
  c.table_extra = 0;
  TestCall call(c);
  static_cast<int32_t *>(call.args.block_table.data)[3 + 1] = INT_MIN;
  EXPECT_EQ(call.run_and_compare(), "");
}

// The message gives the backend's own reason.
TEST(Validate, AnUnavailableBackendIsUnsupported) {
  mlaverify_backend_info info = {};
  info.size = sizeof(info);
  for (int32_t i = 0; i < mlaverify_backend_count(); ++i) {
    ASSERT_EQ(mlaverify_get_backend_info(i, &info), MLAVERIFY_OK);
    if (info.available != 0) continue;
    const std::string reason = std::string(info.name) + ": " + info.detail;
    const mlaverify_backend backend = info.backend;
    expect_refused(
        {{[=](Args &a) { a.backend = backend; }, "no backend can do this call: " + reason, MLAVERIFY_ERR_UNSUPPORTED}});
  }
}

TEST(Validate, TensorsOfADeviceAreUnsupportedOnHostBackends) {
  TestCall call(small_case());
  for (mlaverify_tensor Args::*t : {&Args::q, &Args::kv_cache, &Args::out, &Args::lse, &Args::block_table, &Args::seq_lens,
                                    &Args::real_seq_lens, &Args::k_scale})
    (call.args.*t).device = 0;
  EXPECT_EQ(mlaverify_decode_attention_fwd_verify(&call.args), MLAVERIFY_ERR_UNSUPPORTED);
  EXPECT_STREQ(mlaverify_last_error(), "no backend can do this call: cpu: tensors are on CUDA device 0, not in host memory");
  EXPECT_TRUE(call.outputs_untouched());
}

// ---- The struct itself ------------------------------------------------------------------------------------------------

TEST(Validate, NullArguments) {
  EXPECT_EQ(mlaverify_decode_attention_fwd_verify(nullptr), MLAVERIFY_ERR_INVALID_ARGUMENT);
  EXPECT_STREQ(mlaverify_last_error(), "args: got a null pointer");
  std::size_t bytes = 0;
  EXPECT_EQ(mlaverify_workspace_size(nullptr, &bytes), MLAVERIFY_ERR_INVALID_ARGUMENT);
  EXPECT_STREQ(mlaverify_last_error(), "args: got a null pointer");
  TestCall call(small_case());
  EXPECT_EQ(mlaverify_workspace_size(&call.args, nullptr), MLAVERIFY_ERR_INVALID_ARGUMENT);
  EXPECT_STREQ(mlaverify_last_error(), "bytes: got a null pointer");
}

TEST(Validate, AnOlderStructIsRefused) {
  expect_refused(
      {{[](Args &a) { a.size = 0; },
        "args.size: got 0, must be sizeof(mlaverify_verify_args) = " + std::to_string(sizeof(Args))},
       {[](Args &a) { --a.size; }, "args.size: got " + std::to_string(sizeof(Args) - 1) +
                                       ", must be sizeof(mlaverify_verify_args) = " + std::to_string(sizeof(Args))}});
}

// A newer caller's struct is fine as long as what this version does not know is 0.
TEST(Validate, ANewerStruct) {
  struct Newer {
    Args args;
    unsigned char more[24];
  };
  TestCall call(small_case());
  ASSERT_EQ(call.run(), "");
  const TestCall::Bits bits = call.bits();
  call.poison_outputs();
  Newer newer = {call.args, {}};
  newer.args.size = sizeof(Newer);
  EXPECT_EQ(mlaverify_decode_attention_fwd_verify(&newer.args), MLAVERIFY_OK);
  EXPECT_EQ(call.bits(), bits);
  call.poison_outputs();
  newer.more[23] = 1;
  EXPECT_EQ(mlaverify_decode_attention_fwd_verify(&newer.args), MLAVERIFY_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(mlaverify_last_error(), "args.size: got " + std::to_string(sizeof(Newer)) + ", must be " +
                                        std::to_string(sizeof(Args)) + ": fields beyond are unknown to this version and not 0");
  EXPECT_TRUE(call.outputs_untouched());
}

// ---- What is legal ----------------------------------------------------------------------------------------------------

TEST(Validate, NothingToDo) {
  TestCase c;
  c.lens = {};
  TestCall no_batch(c);
  EXPECT_EQ(no_batch.run(), "");
  EXPECT_EQ(no_batch.args.workspace_bytes, 0u);
  EXPECT_TRUE(no_batch.outputs_untouched());
  // Tensors without elements need no memory.
  for (mlaverify_tensor Args::*t : {&Args::q, &Args::out, &Args::lse, &Args::block_table, &Args::seq_lens})
    (no_batch.args.*t).data = nullptr;
  no_batch.args.workspace = nullptr;
  EXPECT_EQ(mlaverify_decode_attention_fwd_verify(&no_batch.args), MLAVERIFY_OK) << mlaverify_last_error();

  TestCase h;
  h.heads = 0;
  for (const mlaverify_backend backend : {MLAVERIFY_BACKEND_CPU, MLAVERIFY_BACKEND_REFERENCE}) {
    TestCall no_heads(h);
    no_heads.args.backend = backend;
    EXPECT_EQ(no_heads.run(), "");
    EXPECT_TRUE(no_heads.outputs_untouched());
  }
}

// No page at all, with strides that only make sense for none.
TEST(Validate, ACacheWithoutPages) {
  TestCase c;
  c.lens = {0, 0};
  c.flat = true;
  TestCall call(c);
  call.args.kv_cache.shape[0] = 0;
  call.args.kv_cache.data = nullptr;
  call.args.kv_cache.strides[0] = kMax;
  EXPECT_EQ(call.run_and_compare(), "");
}

TEST(Validate, SizeQueryNeedsNoData) {
  TestCall call(small_case());
  ASSERT_EQ(call.run(), "");
  Args a = call.args;
  for (mlaverify_tensor Args::*t : {&Args::q, &Args::kv_cache, &Args::out, &Args::lse, &Args::block_table, &Args::seq_lens,
                                    &Args::real_seq_lens, &Args::k_scale})
    (a.*t).data = nullptr;
  std::size_t bytes = 0;
  EXPECT_EQ(mlaverify_workspace_size(&a, &bytes), MLAVERIFY_OK) << mlaverify_last_error();
  EXPECT_EQ(bytes, call.args.workspace_bytes);
}

// Layouts of outputs whose elements are apart in other ways than contiguous ones.
TEST(Validate, OutputLayoutsThatAreApart) {
  TestCase c = small_case();
  for (const bool outer : {false, true}) {
    c.heads_outer = outer;
    c.out_pad = outer ? 3 : 0;
    EXPECT_EQ(check(c), "");
  }
  c = small_case();
  TestCall call(c);
  // Rows from the last to the first.
  call.args.out.data = static_cast<uint16_t *>(call.args.out.data) + 3 * call.args.out.strides[0];
  call.args.out.strides[0] *= -1;
  call.args.lse.data = static_cast<float *>(call.args.lse.data) + 3 * call.args.lse.strides[0];
  call.args.lse.strides[0] *= -1;
  EXPECT_EQ(call.run_and_compare(), "");
}

}  // namespace
}  // namespace mlaverify::test
