// The second launch of a call: merges the partial results of rows that several blocks worked on, in key order, and writes them.
//
// A job is a row tile, or a group of them, that was cut: with balanced shares, one for each border that cuts; all blocks of all borders
// inside a row tile work on it. Jobs and blocks are dealt out so that all blocks run at once and all have work, as far as there is
// some: what decides is how often a block waits for reads, some microsecond each.
// A unit is kCombineColumns columns of a row. With few parts a warp takes a unit at a time; with many, a block, and each of its warps a slice
// of the parts.
//
// Batch-invariant mode: parts are chunks, merged along the tree of rules/merge.h as the verify kernels do it; chunks that these have merged
// already weigh nothing, and pass the others through.
//
// Else the result is the sum over the parts, in order; of more than 32 parts, part i belongs to slice i % kCombineSlices, and the result is the
// sum over slices, in order, of the sums over their parts, in order. A part that weighs nothing changes no bit, so empty pieces behind the end of a
// request don't, however many there are; and repeated runs give the same bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/part.cuh"
#include "cuda/result.cuh"
#include "cuda/schedule.cuh"
#include "rules/number.h"

namespace mlaverify::cuda {

// What a block helps to merge.
struct CombineJob {
  int32_t request;
  int32_t first_row, rows;  // packed rows of the request
  int32_t parts;            // of each row; 0: nothing to do
  // Slots of the first row tile's parts: one, then the others, `stride` apart; those of the next row tile lie next to them.
  int64_t first_slot, second_slot, stride;
  int32_t worker, workers;  // of the blocks that share the job
};

__device__ __forceinline__ void set_rows(const Launch &l, int32_t tile_rows, int32_t first_tile, int32_t tiles,
                                         CombineJob *job) {
  job->first_row = first_tile * tile_rows;
  job->rows = rules::min(tiles * tile_rows, rows_of(l.p, job->request) - job->first_row);
}

// The job that is a row tile of all requests' ones.
__device__ __forceinline__ void find_piece(const Launch &l, int32_t tile_rows, int32_t row_tile_of_all, CombineJob *job) {
  job->request = row_tile_of_all / l.row_tiles;
  const int32_t row_tile = row_tile_of_all - job->request * l.row_tiles;
  job->parts = l.splits;
  job->first_slot = split_slot(l, job->request, row_tile, 0);
  job->second_slot = job->first_slot + 1;
  job->stride = 1;
  set_rows(l, tile_rows, row_tile, 1, job);
}

// The job that is what the border before share `share` cuts.
__device__ __forceinline__ void find_cut(const Launch &l, int32_t tile_rows, const rules::CutTile *cut, int32_t share,
                                         CombineJob *job) {
  job->parts = 0;
  if (cut->borders == 0) return;
  const int32_t row_tile = cut->row_tile * l.row_group;
  job->request = cut->request;
  if (l.chunks > 0) {
    job->parts = line_tiles(l, cut->request);
    job->first_slot = first_chunk_slot(l, cut->request, row_tile);
    job->second_slot = job->first_slot + l.row_group;
    job->stride = l.row_group;
  } else {
    job->parts = cut->borders + 1;
    job->first_slot = rules::part_slot(cut->first_border - 1, true, l.row_group, 0);
    job->second_slot = rules::part_slot(cut->first_border, false, l.row_group, 0);
    job->stride = 2 * static_cast<int64_t>(l.row_group);
  }
  job->worker += (share - cut->first_border) * job->workers;
  job->workers *= cut->borders;
  set_rows(l, tile_rows, row_tile, l.row_group, job);
}

// As rules::store_float() does, by the instructions of the GPU.
__device__ __forceinline__ void store(DType t, void *out, int64_t at, float x) {
  if (t == DType::f32) static_cast<float *>(out)[at] = x;
  if (t == DType::f16) static_cast<__half *>(out)[at] = __float2half_rn(x);
  if (t == DType::bf16) static_cast<__nv_bfloat16 *>(out)[at] = __float2bfloat16_rn(x);
}

// Of kCombineColumns columns that a warp takes: that of number `i` (of four) of lane `lane`.
__device__ __forceinline__ int32_t column_of(int32_t lane, int32_t i) {
  return lane / 4 * rules::kAccBlockColumns + lane % 4 * 2 + i / 2 * 8 + i % 2;
}

// The parts of one row, by a warp: kCombineColumns columns, from `column` on, four a lane.
class RowParts {
 public:
  __device__ __forceinline__ RowParts(const Launch &l, int32_t tile_rows, const CombineJob &job, int32_t row, int32_t column)
      : count_(job.parts), reads_(column + column_of(lane_, 0) < l.p.v_dim) {
    const rules::GpuPartLayout layout = rules::gpu_part_layout(tile_rows, l.p.v_dim);
    const int32_t tile = row / tile_rows, r = row - tile * tile_rows;
    first_ = l.parts + (job.first_slot + tile) * layout.size + r;
    stride_ = static_cast<int32_t>(job.stride * layout.size);
    others_ = first_ + (job.second_slot - job.first_slot) * layout.size - stride_;
    sum_ = static_cast<int32_t>(layout.sum - layout.max);
    values_ =
        static_cast<int32_t>(rules::acc_block(layout, r, column + column_of(lane_, 0)) + rules::acc_quad(r, lane_ % 4) - r);
  }

  // The state of the row, and its columns.
  struct Sum {
    float largest, sum;
    float4 acc;
  };

  // Of kCombineSlices parts from `base` on, along the tree.
  __device__ __forceinline__ Sum of_chunks(int32_t base) const {
    static_assert(kCombineSlices == 8, "three levels");
    float4 x[8];
    load(base, 1, x);
    rules::SoftmaxState node = lane_ < 8 && base + lane_ < count_ ? state(base + lane_) : kNoKeys;
#pragma unroll
    for (int level = 0; level < 3; ++level) {
      const int distance = 1 << level;
      const rules::SoftmaxState sibling = {__shfl_xor_sync(~0u, node.max, distance), __shfl_xor_sync(~0u, node.sum, distance)};
      const rules::MergeStep m = lane_ & distance ? merge_in_log2(sibling, node) : merge_in_log2(node, sibling);
#pragma unroll
      for (int u = 0; u < 8; u += 2 * distance) {
        const rules::MergeStep of = {__shfl_sync(~0u, m.a, u), __shfl_sync(~0u, m.b, u), {}};
        x[u] = merged(of, x[u], x[u + distance]);
      }
      node = m.merged;
    }
    return {__shfl_sync(~0u, node.max, 0), __shfl_sync(~0u, node.sum, 0), x[0]};
  }

  // Of parts first, first + step ..., in that order; the largest of all. A merge takes as long as the reads that wait for each other, and
  // as fetching its code: the first values are read along with the weights, whether they weigh anything or not.
  __device__ __forceinline__ Sum of_every(int32_t first, int32_t step) const {
    constexpr int kAtOnce = 8;
    float4 x[kAtOnce];
    load(first, step, x);
    Sum s = {largest_of_all(), 0.0f, {}};
#pragma unroll 1
    for (int32_t base = 0; first + base * step < count_; base += 32) {  // a lane has the state of one of 32
      const int32_t part = first + (base + lane_) * step;
      const rules::SoftmaxState mine = part < count_ ? state(part) : kNoKeys;
      const float weight = rules::weighs_nothing(mine) ? 0.0f : rules::merge_weight(mine, s.largest, ptx::exp2_approx);
      s.sum += __fmul_rn(weight, mine.sum);
#pragma unroll 1
      for (int32_t k = 0; k < 32 && first + (base + k) * step < count_; k += kAtOnce) {
        if (base + k > 0) load(first + (base + k) * step, step, x);
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const float w = __shfl_sync(~0u, weight, k + u);
          if (w == 0.0f) continue;  // may hold anything
          s.acc.x = __fmaf_rn(w, x[u].x, s.acc.x);
          s.acc.y = __fmaf_rn(w, x[u].y, s.acc.y);
          s.acc.z = __fmaf_rn(w, x[u].z, s.acc.z);
          s.acc.w = __fmaf_rn(w, x[u].w, s.acc.w);
        }
      }
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) s.sum += __shfl_xor_sync(~0u, s.sum, offset);
    return s;
  }

 private:
  __device__ __forceinline__ const float *part(int32_t i) const { return i == 0 ? first_ : others_ + int64_t{i} * stride_; }
  __device__ __forceinline__ rules::SoftmaxState state(int32_t i) const {
    const float *at = part(i);
    return {at[0], at[sum_]};
  }
  // Of parts i, i + step ..., as many as `x` has.
  template <int n>
  __device__ __forceinline__ void load(int32_t i, int32_t step, float4 (&x)[n]) const {
#pragma unroll
    for (int u = 0; u < n; ++u) {
      const float *at = u == 0 ? part(i) : others_ + int64_t{i + u * step} * stride_;
      x[u] = i + u * step < count_ && reads_ ? *reinterpret_cast<const float4 *>(at + values_) : float4{};
    }
  }
  // The largest reference. fmaxf drops NaN; a NaN score shows in its part's sum.
  __device__ __forceinline__ float largest_of_all() const {
    float x = kMinusInf;
#pragma unroll 1
    for (int32_t i = lane_; i < count_; i += 32) {
      const rules::SoftmaxState s = state(i);
      if (!rules::weighs_nothing(s)) x = fmaxf(x, s.max);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
    return x;
  }

  const int lane_ = threadIdx.x % 32;
  const int32_t count_;
  const bool reads_;               // this lane has columns
  const float *first_, *others_;   // the row's maximum in part 0, and where part 0 would be if all were `stride_` apart
  int32_t stride_, sum_, values_;  // `sum_`, `values_`: from the maximum
};

class Combine {
  static constexpr int kSlices = kCombineSlices, kColumns = kCombineColumns;

 public:
  __device__ __forceinline__ Combine(const Launch &l, int32_t tile_rows, const CombineJob &job)
      : l_(l), p_(l.p), tile_rows_(tile_rows), job_(job), out_scale_(l.p.k_scale != nullptr ? *l.p.k_scale : 1.0f) {}

  __device__ __forceinline__ void run() {
    const int32_t pieces = rules::ceil_div(p_.v_dim, kColumns), units = job_.rows * pieces;
    if (job_.parts <= (l_.chunks > 0 ? kSlices : 32)) {
#pragma unroll 1
      for (int32_t unit = job_.worker * kSlices + warp_; unit < units; unit += job_.workers * kSlices)
        few(unit / pieces, unit % pieces * kColumns);
    } else {
#pragma unroll 1
      for (int32_t unit = job_.worker; unit < units; unit += job_.workers) {
        if (l_.chunks > 0) {
          many_chunks(unit / pieces, unit % pieces * kColumns);
        } else {
          many(unit / pieces, unit % pieces * kColumns);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void few(int32_t row, int32_t column) {
    const RowParts parts(l_, tile_rows_, job_, row, column);
    const RowParts::Sum s = l_.chunks > 0 ? parts.of_chunks(0) : parts.of_every(0, 1);
    const RowResult to = result(row, s.largest, s.sum);
    const float x[4] = {s.acc.x, s.acc.y, s.acc.z, s.acc.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t c = column + column_of(lane_, i);
      if (c < p_.v_dim) store(p_.q_dtype, p_.out, to.out + c, scaled(x[i], s.sum, to.scale));
    }
    if (column + lane_ == 0) p_.lse[to.lse] = to.log_sum;
  }

  __device__ __forceinline__ void many(int32_t row, int32_t column) {
    __shared__ float slices[kSlices][kColumns], sums[kSlices];
    const RowParts::Sum slice = RowParts(l_, tile_rows_, job_, row, column).of_every(warp_, kSlices);
    *reinterpret_cast<float4 *>(&slices[warp_][lane_ * 4]) = slice.acc;
    if (lane_ == 0) sums[warp_] = slice.sum;
    __syncthreads();
    if (threadIdx.x < kColumns) {
      float sum = 0.0f, x = 0.0f;
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
        sum += sums[s];
        x += slices[s][threadIdx.x];
      }
      write_number(row, column, {slice.largest, sum}, x);
    }
    __syncthreads();
  }

  // Along the tree: a warp takes 8 parts at a time, then each of kColumns threads its column of the 8 nodes; what these give, nodes of 64
  // parts, waits in shared memory for its sibling, a place for each level.
  __device__ __forceinline__ void many_chunks(int32_t row, int32_t column) {
    constexpr int kLevels = 16;
    static_assert(int64_t{rules::kInvariantKeys} * 64 << kLevels > INT32_MAX, "a level for every length");
    __shared__ float nodes[kSlices][kColumns], waiting[kLevels][kColumns];
    __shared__ rules::SoftmaxState states[kSlices], waiting_states[kLevels];
    const RowParts parts(l_, tile_rows_, job_, row, column);
    const auto c = static_cast<int32_t>(threadIdx.x);
    rules::SoftmaxState state = kNoKeys;
    float x = 0.0f;
    const int32_t rounds = rules::ceil_div(job_.parts, kSlices * kSlices);
#pragma unroll 1
    for (int32_t round = 0; round < rounds; ++round) {
      const RowParts::Sum s = parts.of_chunks((round * kSlices + warp_) * kSlices);
      *reinterpret_cast<float4 *>(&nodes[warp_][lane_ * 4]) = s.acc;
      if (lane_ == 0) states[warp_] = {s.largest, s.sum};
      __syncthreads();
      if (c < kColumns) {
        rules::SoftmaxState node[kSlices];
        float value[kSlices];
#pragma unroll
        for (int i = 0; i < kSlices; ++i) {
          node[i] = states[i];
          value[i] = nodes[i][c];
        }
#pragma unroll
        for (int distance = 1; distance < kSlices; distance *= 2) {
#pragma unroll
          for (int i = 0; i < kSlices; i += 2 * distance) {
            const rules::MergeStep m = merge_in_log2(node[i], node[i + distance]);
            value[i] = merged(m, value[i], value[i + distance]);
            node[i] = m.merged;
          }
        }
        state = node[0];
        x = value[0];
      }
      rules::TreeNode node = {round, 0};
      for (;;) {
        if (round + 1 == rounds) node = rules::pass_through(node, 0);
        if (!rules::merges_left(node, 0)) break;
        const rules::TreeNode left = rules::left_sibling(node);
        if (c < kColumns) {
          const rules::MergeStep m = merge_in_log2(waiting_states[left.level], state);
          x = merged(m, waiting[left.level][c], x);
          state = m.merged;
        }
        node = rules::parent(left);
      }
      __syncthreads();
      if (c < kColumns) waiting[node.level][c] = x;
      if (c == 0) waiting_states[node.level] = state;
    }
    if (c < kColumns) write_number(row, column, state, x);
    __syncthreads();
  }

  // Of the column that thread threadIdx.x < kColumns has.
  __device__ __forceinline__ void write_number(int32_t row, int32_t column, rules::SoftmaxState s, float x) const {
    const int32_t c = column + column_of(static_cast<int32_t>(threadIdx.x) / 4, static_cast<int32_t>(threadIdx.x) % 4);
    if (c >= p_.v_dim) return;
    const RowResult to = result(row, s.max, s.sum);
    store(p_.q_dtype, p_.out, to.out + c, scaled(x, s.sum, to.scale));
    if (c == 0) p_.lse[to.lse] = to.log_sum;
  }

  // acc that weighs nothing may be anything.
  static __device__ __forceinline__ float scaled(float x, float sum, float scale) { return (sum == 0.0f ? 0.0f : x) * scale; }

  // Where a row's results go, and its own.
  struct RowResult {
    int64_t out, lse;
    float scale, log_sum;
  };
  __device__ __forceinline__ RowResult result(int32_t row, float largest, float sum) const {
    const rules::Row r = rules::unpack_row(job_.first_row + row, p_.num_heads);
    RowState state = {{largest, sum}, true};
    if (rules::weighs_nothing(state.softmax)) state.has_keys = rules::visible_keys(p_, job_.request, r.token) > 0;
    return {rules::out_offset(p_, job_.request, r), rules::lse_offset(p_, job_.request, r), row_scale(state, out_scale_),
            lse_of(state)};
  }

  const Launch &l_;
  const Problem &p_;
  const int32_t tile_rows_;
  const CombineJob &job_;
  const float out_scale_;
  const int warp_ = threadIdx.x / 32, lane_ = threadIdx.x % 32;
};

// `tile_rows`: rows of a part.
template <int arch>
__global__ void __launch_bounds__(kCombineThreads, kCombineBlocks)
    combine_kernel(const __grid_constant__ Launch l, int32_t tile_rows) {
  __shared__ CombineJob job;
  __shared__ rules::CutTile cuts[kCombineThreads];
  ptx::launch_dependents();
  ptx::wait_for_previous_grid();
  // Which cut it is follows from the number of shares; a thread each reads them all meanwhile.
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (l.splits == 0 && thread < l.blocks / l.row_group) cuts[thread] = l.cuts[thread];
  const int32_t jobs = l.splits > 0 ? l.p.batch * l.row_tiles : num_shares_of(l) - 1;
  if (jobs <= 0) return;
  const int32_t blocks = rules::max(1, static_cast<int32_t>(gridDim.x) / jobs);  // of a job
#pragma unroll 1
  for (auto i = static_cast<int32_t>(blockIdx.x); i < jobs * blocks; i += static_cast<int32_t>(gridDim.x)) {
    __syncthreads();
    const int32_t n = i % jobs, share = n + 1;
    if (thread == 0) {
      job.worker = i / jobs;
      job.workers = blocks;
      if (l.splits > 0) {
        find_piece(l, tile_rows, n, &job);
      } else {
        find_cut(l, tile_rows, share < kCombineThreads ? &cuts[share] : &l.cuts[share], share, &job);
      }
    }
    __syncthreads();
    if (job.parts > 0) Combine(l, tile_rows, job).run();
  }
}

}  // namespace mlaverify::cuda
