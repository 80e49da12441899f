// The second launch of a call: merges the partial results of rows that several blocks worked on, in key order, and writes them.
//
// A job is a row tile, or a group of them, that was cut. Blocks (x, y) of the grid:
//   balanced shares   x is the border before share x + 1; all blocks of all borders inside a job work on it
//   splits            x is the row tile
// With few parts a warp takes a row at a time; with many, a block takes kCombineColumns columns of a row, and each of its warps a slice of
// the parts.
//
// Part i belongs to slice i % kCombineSlices. A slice is the sum over its parts, in order, the result the sum over slices, in order: of up
// to kCombineSlices parts that is their sum in order. A part that weighs nothing changes no bit, so empty pieces behind the end of a
// request don't, however many there are; and repeated runs give the same bits.
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

// What this block helps to merge.
struct CombineJob {
  int32_t request;
  int32_t first_row, rows;  // packed rows of the request
  int32_t parts;            // of each row
  // Slots of the first row tile's parts: one, then the others, `stride` apart; those of the next row tile lie next to them.
  int64_t first_slot, second_slot, stride;
  int32_t worker, workers;  // of the blocks that share the job
};

// False if there is nothing to do.
__device__ __forceinline__ bool find_job(const Launch &l, int32_t tile_rows, CombineJob *job) {
  int32_t row_tile, tiles = 1;
  job->worker = static_cast<int32_t>(blockIdx.y);
  job->workers = static_cast<int32_t>(gridDim.y);
  if (l.splits > 0) {
    job->request = static_cast<int32_t>(blockIdx.x) / l.row_tiles;
    row_tile = static_cast<int32_t>(blockIdx.x) - job->request * l.row_tiles;
    job->parts = l.splits;
    job->first_slot = split_slot(l, job->request, row_tile, 0);
    job->second_slot = job->first_slot + 1;
    job->stride = 1;
  } else {
    const auto border = static_cast<int32_t>(blockIdx.x) + 1;
    const rules::CutTile cut = l.cuts[border];
    if (cut.borders == 0) return false;
    job->request = cut.request;
    tiles = l.row_group;
    row_tile = cut.row_tile * tiles;
    job->parts = cut.borders + 1;
    job->first_slot = rules::part_slot(cut.first_border - 1, true, tiles, 0);
    job->second_slot = rules::part_slot(cut.first_border, false, tiles, 0);
    job->stride = 2 * static_cast<int64_t>(tiles);
    job->worker += (border - cut.first_border) * job->workers;
    job->workers *= cut.borders;
  }
  job->first_row = row_tile * tile_rows;
  job->rows = rules::min(tiles * tile_rows, rows_of(l.p, job->request) - job->first_row);
  return true;
}

// As rules::store_float() does, by the instructions of the GPU.
__device__ __forceinline__ void store(DType t, void *out, int64_t at, float x) {
  if (t == DType::f32) static_cast<float *>(out)[at] = x;
  if (t == DType::f16) static_cast<__half *>(out)[at] = __float2half_rn(x);
  if (t == DType::bf16) static_cast<__nv_bfloat16 *>(out)[at] = __float2bfloat16_rn(x);
}

// The parts of one row, by a warp.
class RowParts {
 public:
  __device__ __forceinline__ RowParts(const Launch &l, int32_t tile_rows, const CombineJob &job, int32_t row)
      : layout_(rules::gpu_part_layout(tile_rows, l.p.v_dim)), count_(job.parts) {
    const int32_t tile = row / tile_rows, r = row - tile * tile_rows;
    first_ = l.parts + (job.first_slot + tile) * layout_.size + r;
    second_ = (job.second_slot - job.first_slot) * layout_.size;
    stride_ = job.stride * layout_.size;
    acc_ = layout_.acc + int64_t{r} * l.p.v_dim - r;  // from there
    largest_ = kMinusInf;
    for (int32_t i = lane_; i < count_; i += 32) {  // fmaxf drops NaN; a NaN score shows in its part's sum
      const rules::SoftmaxState s = state(i);
      if (!rules::weighs_nothing(s)) largest_ = fmaxf(largest_, s.max);
    }
    for (int offset = 16; offset > 0; offset /= 2) largest_ = fmaxf(largest_, __shfl_xor_sync(~0u, largest_, offset));
  }

  __device__ __forceinline__ float largest() const { return largest_; }

  // Adds parts first, first + step ...: four columns a lane, from column + 4 * lane on, and those kCombineColumns further on, to acc; returns the
  // sum of the parts' sums. Columns from `end` on are not read.
  template <int kGroups>
  __device__ __forceinline__ float add(int32_t first, int32_t step, int32_t column, int32_t end, float4 (&acc)[kGroups]) const {
    constexpr int kAtOnce = 8 / kGroups;
    float sum = 0.0f;
#pragma unroll 1
    for (int32_t base = first; base < count_; base += 32 * step) {
      const int32_t i = base + lane_ * step;
      const rules::SoftmaxState mine = i < count_ ? state(i) : rules::SoftmaxState{kMinusInf, 0.0f};
      const float weight = rules::weighs_nothing(mine) ? 0.0f : rules::merge_weight(mine, largest_, ptx::exp2_approx);
      const float *values = first_ + offset(base) + acc_ + column + lane_ * 4;
#pragma unroll 1
      for (int32_t k = 0; k < 32 && base + k * step < count_; k += kAtOnce) {
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const float w = __shfl_sync(~0u, weight, k + u), s = __shfl_sync(~0u, mine.sum, k + u);
          if (w != 0.0f) sum = __fadd_rn(sum, __fmul_rn(w, s));
#pragma unroll
          for (int j = 0; j < kGroups; ++j) {
            float4 x = {};  // a part that weighs nothing may hold anything
            if (w != 0.0f && column + j * kCombineColumns + lane_ * 4 < end)
              x = *reinterpret_cast<const float4 *>(values + j * kCombineColumns);
            acc[j].x = __fadd_rn(acc[j].x, __fmul_rn(w, x.x));
            acc[j].y = __fadd_rn(acc[j].y, __fmul_rn(w, x.y));
            acc[j].z = __fadd_rn(acc[j].z, __fmul_rn(w, x.z));
            acc[j].w = __fadd_rn(acc[j].w, __fmul_rn(w, x.w));
          }
          values += base + k + u == 0 ? second_ + (step - 1) * stride_ : step * stride_;
        }
      }
    }
    return sum;
  }

 private:
  // Of part i from the first one.
  __device__ __forceinline__ int64_t offset(int32_t i) const { return i == 0 ? 0 : second_ + (i - 1) * stride_; }
  __device__ __forceinline__ rules::SoftmaxState state(int32_t i) const {
    const float *part = first_ + offset(i);
    return {part[layout_.max], part[layout_.sum]};
  }

  const rules::GpuPartLayout layout_;
  const int32_t count_;
  const float *first_;             // part, at the row's place
  int64_t second_, stride_, acc_;  // offsets
  float largest_;
  const int lane_ = threadIdx.x % 32;
};

class Combine {
  static constexpr int kSlices = kCombineSlices, kColumns = kCombineColumns;

 public:
  __device__ __forceinline__ Combine(const Launch &l, int32_t tile_rows, const CombineJob &job)
      : l_(l), p_(l.p), tile_rows_(tile_rows), job_(job), out_scale_(l.p.k_scale != nullptr ? *l.p.k_scale : 1.0f) {}

  __device__ __forceinline__ void run() {
    if (job_.parts <= kSlices) {
#pragma unroll 1
      for (int32_t row = job_.worker * kSlices + warp_; row < job_.rows; row += job_.workers * kSlices) few(row);
      return;
    }
    const int32_t pieces = rules::ceil_div(p_.v_dim, kColumns);
#pragma unroll 1
    for (int32_t unit = job_.worker; unit < job_.rows * pieces; unit += job_.workers)
      many(unit / pieces, unit % pieces * kColumns);
  }

 private:
  __device__ __forceinline__ void few(int32_t row) {
    constexpr int kGroups = 4;
    const RowParts parts(l_, tile_rows_, job_, row);
#pragma unroll 1
    for (int32_t column = 0; column < p_.v_dim; column += kGroups * kColumns) {
      float4 acc[kGroups] = {};
      const RowResult to = result(row, parts.largest(), parts.add(0, 1, column, p_.v_dim, acc));
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const int32_t c = column + j * kColumns + lane_ * 4;
        if (c >= p_.v_dim) break;
        store(p_.q_dtype, p_.out, to.out + c, acc[j].x * to.scale);
        store(p_.q_dtype, p_.out, to.out + c + 1, acc[j].y * to.scale);
        store(p_.q_dtype, p_.out, to.out + c + 2, acc[j].z * to.scale);
        store(p_.q_dtype, p_.out, to.out + c + 3, acc[j].w * to.scale);
      }
      if (column == 0 && lane_ == 0) p_.lse[to.lse] = to.log_sum;
    }
  }

  __device__ __forceinline__ void many(int32_t row, int32_t column) {
    __shared__ float slices[kSlices][kColumns], sums[kSlices];
    const RowParts parts(l_, tile_rows_, job_, row);
    float4 acc[1] = {};
    const float slice_sum = parts.add(warp_, kSlices, column, p_.v_dim, acc);
    *reinterpret_cast<float4 *>(&slices[warp_][lane_ * 4]) = acc[0];
    if (lane_ == 0) sums[warp_] = slice_sum;
    __syncthreads();
    const auto c = static_cast<int32_t>(threadIdx.x);
    if (c < kColumns && column + c < p_.v_dim) {
      float sum = 0.0f, x = 0.0f;
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
        sum += sums[s];
        x += slices[s][c];
      }
      const RowResult to = result(row, parts.largest(), sum);
      store(p_.q_dtype, p_.out, to.out + column + c, x * to.scale);
      if (column + c == 0) p_.lse[to.lse] = to.log_sum;
    }
    __syncthreads();
  }

  // Where a row's results go, and its own.
  struct RowResult {
    int64_t out, lse;
    float scale, log_sum;
  };
  __device__ __forceinline__ RowResult result(int32_t row, float largest, float sum) const {
    const rules::Row r = rules::unpack_row(job_.first_row + row, p_.num_heads);
    const RowState state = {{largest, sum}, rules::visible_keys(p_, job_.request, r.token) > 0};
    return {rules::out_offset(p_, job_.request, r), rules::lse_offset(p_, job_.request, r), row_scale(state, out_scale_),
            lse_of(state)};
  }

  const Launch &l_;
  const Problem &p_;
  const int32_t tile_rows_;
  const CombineJob job_;
  const float out_scale_;
  const int warp_ = threadIdx.x / 32, lane_ = threadIdx.x % 32;
};

// `tile_rows`: rows of a part.
template <int arch>
__global__ void __launch_bounds__(kCombineThreads, 2) combine_kernel(const __grid_constant__ Launch l, int32_t tile_rows) {
  ptx::launch_dependents();
  ptx::wait_for_previous_grid();
  CombineJob job;
  if (find_job(l, tile_rows, &job)) Combine(l, tile_rows, job).run();
}

}  // namespace mlaverify::cuda
