// One validated call as a plain struct: what a backend and a kernel get. Only api/validate.cpp makes it.
#pragma once

#include <cstdint>

namespace mlaverify {

// The numbers are those of mlaverify_dtype.
enum class DType : int32_t { f32 = 0, f16 = 1, bf16 = 2, f8_e4m3 = 3, f8_e5m2 = 4, i32 = 5, f8_ds_mla = 6 };

struct Problem {
  // Sizes.
  int32_t batch;      // B
  int32_t qlen;       // query tokens of each request
  int32_t num_heads;  // H
  int32_t qk_dim;     // Lk
  int32_t v_dim;      // Lv <= Lk
  int32_t page_size;
  int64_t num_pages;    // pages of the cache
  int64_t table_width;  // block table entries of a request (max_pages)
  int32_t num_kv_splits;
  uint32_t flags;
  float sm_scale;
  DType q_dtype;  // of q and out
  DType kv_dtype;

  // Caller's memory. Strides in elements; an element of f8_ds_mla is a byte (rules/row.h).
  const void *q;  // [batch*qlen, num_heads, qk_dim]
  int64_t q_row_stride, q_head_stride;
  const void *kv;  // [num_pages, page_size] rows of qk_dim numbers
  int64_t kv_page_stride, kv_slot_stride;
  void *out;  // [batch*qlen, num_heads, v_dim]
  int64_t out_row_stride, out_head_stride;
  float *lse;  // [batch*qlen, num_heads]
  int64_t lse_row_stride, lse_head_stride;
  const int32_t *block_table;  // [batch, table_width]
  int64_t table_row_stride;
  const int32_t *seq_lens;       // [batch]
  const int32_t *real_seq_lens;  // [batch] or null
  const float *k_scale;          // one number or null; null as well where the cache is not FP8 with one scale
};

}  // namespace mlaverify
