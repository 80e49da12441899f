// The plain kernel: f32 arithmetic without tensor cores (the scores of f32 queries in f64), for everything that the tensor-core
// kernels do not take: f32 queries or caches, mixed types, widths that are not compiled in, addresses that are not 16-byte
// aligned. Sizes are run-time values.
//
// A block takes kRows rows of a request over a range of keys, kKeys keys at a time: keys to shared memory as f32; one thread a
// (row, key) pair for the scores; one warp a row group for the softmax; for the values each thread keeps its columns of all
// rows. Shared memory (generic_shared_bytes): kRows * Lk + kKeys * (Lk + 1) + kRows * kKeys + 3 * kRows floats, keys padded by
// one against bank conflicts.
#pragma once

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/part.cuh"
#include "cuda/result.cuh"
#include "cuda/schedule.cuh"
#include "rules/number.h"
#include "rules/row.h"
#include "rules/workspace.h"

namespace mlaverify::cuda {

struct GenericConfig {
  static constexpr int kRows = kGenericRows, kKeys = kGenericKeys, kThreads = 128;
  static constexpr int kMaxV = 1024, kColumns = kMaxV / kThreads;  // columns of a thread at most
  static_assert(kRows * kKeys == kThreads, "one thread a score");
};

class GenericBlock {
 public:
  __device__ __forceinline__ GenericBlock(const Launch &l, float *shared) : l_(l), p_(l.p) {
    const int32_t width = p_.qk_dim;
    q_ = shared;
    k_ = q_ + C::kRows * width;
    scores_ = k_ + C::kKeys * (width + 1);
    max_ = scores_ + C::kRows * C::kKeys;
    sum_ = max_ + C::kRows;
    alpha_ = sum_ + C::kRows;
    k_scale_ = p_.k_scale != nullptr ? *p_.k_scale : 1.0f;
  }

  __device__ __forceinline__ void run(const Item &item) {
    const int tid = threadIdx.x;
    const int32_t first = item.row_tile * C::kRows;
    const int rows = rows_of_tile<C::kRows>(p_, item.request, item.row_tile);

    for (int i = tid; i < rows * p_.qk_dim; i += C::kThreads) {
      const rules::Row row = rules::unpack_row(first + i / p_.qk_dim, p_.num_heads);
      q_[i] = rules::load_float(p_.q_dtype, p_.q, rules::q_offset(p_, item.request, row) + i % p_.qk_dim);
    }
    if (tid < C::kRows) {
      max_[tid] = kMinusInf;
      sum_[tid] = 0.0f;
    }
    float acc[C::kRows][C::kColumns] = {};

    const int my_row = tid / C::kKeys, my_key = tid % C::kKeys;
    const int32_t my_token = rules::unpack_row(first + my_row, p_.num_heads).token;
    const int32_t limit = my_row < rows ? rules::visible_keys(p_, item.request, my_token) : 0;
    for (int32_t key = item.key_begin; key < item.key_end; key += C::kKeys) {
      const int keys = rules::min(C::kKeys, item.key_end - key);
      __syncthreads();  // the last tile's values are read
      load_keys(item.request, key, keys);
      __syncthreads();
      Score s = {kMinusInf, 0.0f};
      if (key + my_key < limit && my_key < keys) s = score(my_row, my_key);
      softmax(my_row, my_key, s);
      __syncthreads();
      for (int r = 0; r < C::kRows; ++r) {
#pragma unroll
        for (int j = 0; j < C::kColumns; ++j) acc[r][j] *= alpha_[r];
      }
#pragma unroll
      for (int j = 0; j < C::kColumns; ++j) {
        const int c = tid + j * C::kThreads;
        if (c >= p_.v_dim) break;
        for (int k = 0; k < keys; ++k) {
          const float v = k_[k * (p_.qk_dim + 1) + c];
#pragma unroll
          for (int r = 0; r < C::kRows; ++r) acc[r][j] += scores_[r * C::kKeys + k] * v;
        }
      }
    }
    __syncthreads();
    finish(item, rows, acc);
    __syncthreads();  // shared memory is free for the next item
  }

 private:
  using C = GenericConfig;

  __device__ __forceinline__ void load_keys(int32_t request, int32_t first, int keys) {
    for (int k = threadIdx.x / 32; k < keys; k += C::kThreads / 32) {
      const char *from = key_address(p_, request, first + k);
      for (int d = threadIdx.x % 32; d < p_.qk_dim; d += 32) {
        k_[k * (p_.qk_dim + 1) + d] = from != nullptr ? rules::row_number(p_.kv_dtype, from, d) : 0.0f;
      }
    }
  }

  // A score in log2 units is high + low: a large score known to the 24 bits of a float would move its weight by more than f32
  // results allow (docs/tolerance.md). From 2^30 on, where low would pass 32, it is high alone.
  struct Score {
    float high, low;
  };

  __device__ __forceinline__ Score score(int row, int key) const {
    const float *const q = q_ + row * p_.qk_dim, *const k = k_ + key * (p_.qk_dim + 1);
    const double scale = static_cast<double>(p_.sm_scale) * static_cast<double>(k_scale_) * 1.4426950408889634;
    const double s = scale * (p_.q_dtype == DType::f32 ? dot<double>(q, k) : static_cast<double>(dot<float>(q, k)));
    const auto high = static_cast<float>(s);
    return {high, fabsf(high) < 0x1p30f ? static_cast<float>(s - static_cast<double>(high)) : 0.0f};
  }

  template <class Sum>
  __device__ __forceinline__ Sum dot(const float *q, const float *k) const {
    Sum sum = 0;
    for (int d = 0; d < p_.qk_dim; ++d) sum += static_cast<Sum>(q[d]) * static_cast<Sum>(k[d]);
    return sum;
  }

  // Turns the scores of a tile into weights. The kKeys lanes of a row lie in one warp.
  __device__ __forceinline__ void softmax(int row, int key, Score s) {
    float largest = s.high, before = max_[row];
    for (int offset = C::kKeys / 2; offset > 0; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
    const float now = fmaxf(before, largest);
    const float reference = now == kMinusInf ? 0.0f : now;
    const float w = exp2f((s.high - reference) + s.low);
    float total = w;
    for (int offset = C::kKeys / 2; offset > 0; offset /= 2) total += __shfl_xor_sync(~0u, total, offset);
    scores_[row * C::kKeys + key] = w;
    __syncwarp();
    if (key == 0) {
      const float alpha = exp2f(before - reference);
      alpha_[row] = alpha;
      max_[row] = now;
      sum_[row] = sum_[row] * alpha + total;
    }
  }

  // Calls f(row, j, column) for acc[row][j], for what this thread has of the first `rows` rows.
  template <class F>
  __device__ __forceinline__ void for_numbers(int rows, F f) const {
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      if (r >= rows) break;
#pragma unroll
      for (int j = 0; j < C::kColumns; ++j) {
        const int c = threadIdx.x + j * C::kThreads;
        if (c < p_.v_dim) f(r, j, c);
      }
    }
  }

  // Merges what lies in the place of a piece and acc.
  __device__ __forceinline__ void merge_part(const Part &part, int rows, float (&acc)[C::kRows][C::kColumns]) {
    for_numbers(rows, [&](int r, int j, int c) {
      const rules::MergeStep m = merge_in_log2(part.state(r), {max_[r], sum_[r]});
      acc[r][j] = merged(m, m.a != 0.0f ? *part.number(r, c) : 0.0f, acc[r][j]);
    });
    __syncthreads();
    const int r = threadIdx.x;
    if (r < rows) {
      const rules::SoftmaxState s = merge_in_log2(part.state(r), {max_[r], sum_[r]}).merged;
      max_[r] = s.max;
      sum_[r] = s.sum;
    }
    __syncthreads();
  }

  __device__ __forceinline__ Part part(const Item &item, int32_t piece) const { return {l_, l_.part, {item.series, piece}}; }

  __device__ __forceinline__ int32_t merge_chunk(const Item &item, int rows, float (&acc)[C::kRows][C::kColumns]) {
    return cuda::merge_chunk(
        item, [&](int32_t left) { merge_part(part(item, left), rows, acc); },
        [&](int32_t piece) {
          if (threadIdx.x < rows) part(item, piece).set_state(threadIdx.x, kNoKeys);
        });
  }

  __device__ __forceinline__ void finish(const Item &item, int rows, float (&acc)[C::kRows][C::kColumns]) {
    const int32_t first = item.row_tile * C::kRows;
    int32_t piece = item.piece;
    if (is_chunk(l_, item)) piece = merge_chunk(item, rows, acc);
    if (piece >= 0) {
      const Part part = this->part(item, piece);
      if (threadIdx.x < rows) part.set_state(threadIdx.x, {max_[threadIdx.x], sum_[threadIdx.x]});
      for_numbers(rows, [&](int r, int j, int c) { *part.number(r, c) = acc[r][j]; });
      return;
    }
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      if (r >= rows) break;
      const rules::Row row = rules::unpack_row(first + r, p_.num_heads);
      const RowState state = {{max_[r], sum_[r]}, rules::visible_keys(p_, item.request, row.token) > 0};
      const float scale = row_scale(state, k_scale_);
      const int64_t at = rules::out_offset(p_, item.request, row);
#pragma unroll
      for (int j = 0; j < C::kColumns; ++j) {
        const int c = threadIdx.x + j * C::kThreads;
        if (c < p_.v_dim) rules::store_float(p_.q_dtype, p_.out, at + c, acc[r][j] * scale);
      }
      if (threadIdx.x == 0) p_.lse[rules::lse_offset(p_, item.request, row)] = lse_of(state);
    }
  }

  const Launch &l_;
  const Problem &p_;
  float *q_, *k_, *scores_, *max_, *sum_, *alpha_;
  float k_scale_;
};

template <int arch>
__global__ void __launch_bounds__(GenericConfig::kThreads) verify_generic_kernel(const __grid_constant__ Launch l) {
  extern __shared__ float generic_shared[];
  ptx::wait_for_previous_grid();
  ptx::launch_dependents();
  GenericBlock block(l, generic_shared);
  const Items<GenericConfig::kRows> items(l);
  ItemCursor cursor = items.begin();
  for (Item item; items.next(&cursor, &item);) block.run(item);
}

}  // namespace mlaverify::cuda
