// The second launch of a call: merges the partial results of rows that several blocks worked on, in key order, and writes them.
// One block a row. The order and the weights depend on where the keys were cut alone, so repeated runs give the same bits.
//
//   balanced shares: block (i, y) takes the group of row tiles that the border between shares i and i + 1 cuts, if it is the first
//     border in it (else nothing is to be done), row y of the group; its parts are slot 1 of share i and slots 0 of those behind.
//   splits: block (x, y) takes row y of row tile x; its parts lie one after the other.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/result.cuh"
#include "cuda/schedule.cuh"
#include "rules/number.h"
#include "rules/workspace.h"

namespace mlaverify::cuda {

constexpr int kCombineColumns = 2;  // groups of 4 columns of a thread: 1024 columns at most

struct Parts {
  int64_t first_slot;   // of the first part
  int64_t second_slot;  // of the second; those behind follow `stride` apart
  int64_t stride;
  int32_t count;
  __device__ __forceinline__ int64_t slot(int32_t i) const { return i == 0 ? first_slot : second_slot + (i - 1) * stride; }
};

// Lane i of a warp looks at the border before share `first + i`: whether it lies inside the row tile of `at`.
__device__ __forceinline__ bool cuts(const Launch &l, int32_t share, rules::TilePosition at) {
  if (share >= l.blocks / l.row_group) return false;
  const rules::TilePosition here = l.starts[share];
  return here.request == at.request && here.row_tile == at.row_tile && here.key_tile > 0;
}

// Of the row tile in place `member` of its group. False if there is nothing to merge for this block.
__device__ __forceinline__ bool find_parts(const Launch &l, int32_t member, int32_t *request, int32_t *row_tile, Parts *parts) {
  if (l.splits > 0) {
    *request = static_cast<int32_t>(blockIdx.x / l.row_tiles);
    *row_tile = static_cast<int32_t>(blockIdx.x % l.row_tiles);
    const int64_t first = split_slot(l, *request, *row_tile, 0);
    *parts = {first, first + 1, 1, l.splits};
    return true;
  }
  const auto share = static_cast<int32_t>(blockIdx.x);
  const rules::TilePosition at = l.starts[share + 1];
  if (at.request >= l.p.batch || at.key_tile == 0 || cuts(l, share, at)) return false;
  int32_t count = 1;
  for (int32_t next = share + 1;; next += 32) {
    const unsigned inside = __ballot_sync(~0u, cuts(l, next + static_cast<int32_t>(threadIdx.x % 32), at));
    const int32_t run = inside == ~0u ? 32 : __ffs(~inside) - 1;
    count += run;
    if (run < 32) break;
  }
  *request = at.request;
  *row_tile = at.row_tile * l.row_group + member;
  *parts = {rules::part_slot(share, true, l.row_group, member), rules::part_slot(share + 1, false, l.row_group, member),
            2 * static_cast<int64_t>(l.row_group), count};
  return *row_tile < l.row_tiles;
}

__device__ __forceinline__ void store4(DType t, void *out, int64_t at, float4 x) {
  const float v[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (t == DType::f32) static_cast<float *>(out)[at + i] = v[i];
    if (t == DType::f16) static_cast<__half *>(out)[at + i] = __float2half_rn(v[i]);
    if (t == DType::bf16) static_cast<__nv_bfloat16 *>(out)[at + i] = __float2bfloat16_rn(v[i]);
  }
}

__device__ __forceinline__ float warp_max(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

// `tile_rows`: rows of a part.
template <int arch>
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const __grid_constant__ Launch l, int32_t tile_rows) {
  __shared__ float weights[kCombineThreads], sums[kCombineThreads];
  ptx::wait_for_previous_grid();
  const Problem &p = l.p;
  int32_t request, row_tile;
  Parts parts;
  const auto member = static_cast<int32_t>(blockIdx.y) / tile_rows, r = static_cast<int32_t>(blockIdx.y) % tile_rows;
  if (!find_parts(l, member, &request, &row_tile, &parts)) return;
  const int64_t packed = row_tile * static_cast<int64_t>(tile_rows) + r;
  if (packed >= rules::request_rows(p, request)) return;
  const rules::Row row = rules::unpack_row(packed, p.num_heads);
  const rules::GpuPartLayout part = rules::gpu_part_layout(tile_rows, p.v_dim);
  const auto state_of = [&](int32_t i) -> rules::SoftmaxState {
    const float *values = l.parts + parts.slot(i) * part.size;
    return {values[part.max + r], values[part.sum + r]};
  };

  // The largest maximum, by every warp, each lane over its parts. fmaxf drops NaN; a NaN score shows in its part's sum.
  float largest = kMinusInf;
  for (auto i = static_cast<int32_t>(threadIdx.x % 32); i < parts.count; i += 32) {
    const rules::SoftmaxState s = state_of(i);
    if (!rules::weighs_nothing(s)) largest = fmaxf(largest, s.max);
  }
  largest = warp_max(largest);

  // Weights of kCombineThreads parts at a time to shared memory, then each thread its columns over these parts, in order.
  RowState state = {{largest, 0.0f}, rules::visible_keys(p, request, row.token) > 0};
  float4 acc[kCombineColumns] = {};
  for (int32_t first = 0; first < parts.count; first += kCombineThreads) {
    const int32_t count = rules::min(kCombineThreads, parts.count - first);
    __syncthreads();
    if (static_cast<int32_t>(threadIdx.x) < count) {
      const rules::SoftmaxState s = state_of(first + static_cast<int32_t>(threadIdx.x));
      weights[threadIdx.x] = rules::weighs_nothing(s) ? 0.0f : rules::merge_weight(s, largest, ptx::exp2_approx);
      sums[threadIdx.x] = s.sum;
    }
    __syncthreads();
#pragma unroll 8
    for (int32_t i = 0; i < count; ++i) {
      const float w = weights[i];
      const float *values = l.parts + parts.slot(first + i) * part.size;
      if (w != 0.0f) state.softmax.sum += w * sums[i];
#pragma unroll
      for (int j = 0; j < kCombineColumns; ++j) {
        const int32_t c = static_cast<int32_t>(threadIdx.x) * 4 + j * 4 * kCombineThreads;
        if (c >= p.v_dim || w == 0.0f) continue;  // a part that weighs nothing may hold anything
        const float4 x = *reinterpret_cast<const float4 *>(values + part.acc + static_cast<int64_t>(r) * p.v_dim + c);
        acc[j].x += w * x.x;
        acc[j].y += w * x.y;
        acc[j].z += w * x.z;
        acc[j].w += w * x.w;
      }
    }
  }

  const float scale = row_scale(state, p.k_scale != nullptr ? *p.k_scale : 1.0f);
#pragma unroll
  for (int j = 0; j < kCombineColumns; ++j) {
    const int32_t c = static_cast<int32_t>(threadIdx.x) * 4 + j * 4 * kCombineThreads;
    if (c >= p.v_dim) break;
    const float4 x = {acc[j].x * scale, acc[j].y * scale, acc[j].z * scale, acc[j].w * scale};
    store4(p.q_dtype, p.out, rules::out_offset(p, request, row) + c, x);
  }
  if (threadIdx.x == 0) p.lse[rules::lse_offset(p, request, row)] = lse_of(state);
}

}  // namespace mlaverify::cuda
