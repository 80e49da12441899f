// The second launch of a call: merges the partial results of rows that several blocks worked on, in key order, and writes them.
//
// A job is a row tile, or a group of them, that was cut. Blocks are dealt out to the borders that cut, and those of all borders inside a row
// tile work on it: so that all blocks run at once and have work, and a row tile of many parts has many. What decides is how often a
// block waits for reads, some microsecond each.
// A piece is kCombineColumns columns of a row. With few parts a warp takes a row's pieces, one, two or all; with many, a block takes a piece, and
// each of its warps a slice of the parts.
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

// Pieces by the split rule: what number `number` of a block's jobs is, of `blocks` blocks; one of no parts behind the last.
__device__ __forceinline__ void find_piece(const Launch &l, int32_t tile_rows, int32_t number, int32_t blocks,
                                           CombineJob *job) {
  const int32_t row_tiles = l.p.batch * l.row_tiles, workers = rules::max(1, blocks / row_tiles);
  job->parts = 0;
  if (number >= row_tiles * workers) return;
  job->worker = number / row_tiles;
  job->workers = workers;
  number -= job->worker * row_tiles;
  job->request = number / l.row_tiles;
  const int32_t row_tile = number - job->request * l.row_tiles;
  job->parts = l.splits;
  job->first_slot = split_slot(l, job->request, row_tile, 0);
  job->second_slot = job->first_slot + 1;
  job->stride = 1;
  set_rows(l, tile_rows, row_tile, 1, job);
}

// The job that some border cuts.
__device__ __forceinline__ void find_cut(const Launch &l, int32_t tile_rows, const rules::CutTile *cut, CombineJob *job) {
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
  set_rows(l, tile_rows, row_tile, l.row_group, job);
}

// The borders of a call that cut, and which of them a block works for.
class Cuts {
 public:
  // By all threads of a block: what all borders cut.
  __device__ __forceinline__ void read(const Launch &l) {
    for (auto i = static_cast<int32_t>(threadIdx.x); i < l.blocks / l.row_group; i += kCombineThreads) cuts_[i] = l.cuts[i];
    __syncthreads();
  }

  // By a warp: deals `blocks` blocks out, and finds block `block` its job; one of no parts if there is none.
  __device__ __forceinline__ void find(const Launch &l, int32_t tile_rows, int32_t block, int32_t blocks,
                                       CombineJob *job) const {
    const int lane = ptx::lane();
    const int32_t shares = cuts_[0].borders;
    int32_t count = 0;
#pragma unroll 1
    for (int32_t first = 0; first < shares; first += 32) count += __popc(__ballot_sync(~0u, cuts(first + lane, shares)));
    if (lane == 0) job->parts = 0;
    __syncwarp();
    if (count == 0) return;
    const int32_t workers = rules::max(1, blocks / count), worker = block / count;
    if (worker >= workers) return;
    int32_t left = block - worker * count;  // the border's place among all that cut
#pragma unroll 1
    for (int32_t first = 0; left >= 0; first += 32) {
      const bool mine = cuts(first + lane, shares);
      const unsigned those = __ballot_sync(~0u, mine);
      if (mine && __popc(those & ((1u << lane) - 1)) == left) {
        const rules::CutTile &cut = cuts_[first + lane];
        job->worker = (first + lane - cut.first_border) * workers + worker;
        job->workers = workers * cut.borders;
        find_cut(l, tile_rows, &cut, job);
      }
      left -= __popc(those);
    }
  }

 private:
  // Whether the border before a share does.
  __device__ __forceinline__ bool cuts(int32_t share, int32_t shares) const {
    return share > 0 && share < shares && cuts_[share].borders > 0;
  }

  rules::CutTile cuts_[kMaxShares];
};

// As rules::store_float() does, by the instructions of the GPU.
__device__ __forceinline__ void store(DType t, void *out, int64_t at, float x) {
  if (t == DType::f32) static_cast<float *>(out)[at] = x;
  if (t == DType::f16) static_cast<__half *>(out)[at] = __float2half_rn(x);
  if (t == DType::bf16) static_cast<__nv_bfloat16 *>(out)[at] = __float2bfloat16_rn(x);
}

// Two neighbours, the first of which is even.
__device__ __forceinline__ void store_two(const Launch &l, int64_t at, float x, float y) {
  const DType t = l.p.q_dtype;
  if (l.out_16_bytes && t == DType::bf16) {
    *reinterpret_cast<__nv_bfloat162 *>(static_cast<__nv_bfloat16 *>(l.p.out) + at) = __floats2bfloat162_rn(x, y);
  } else if (l.out_16_bytes && t == DType::f16) {
    *reinterpret_cast<__half2 *>(static_cast<__half *>(l.p.out) + at) = __floats2half2_rn(x, y);
  } else {
    store(t, l.p.out, at, x);
    store(t, l.p.out, at + 1, y);
  }
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
    const int32_t tile = row >> (__ffs(tile_rows) - 1), r = row & (tile_rows - 1);  // tile_rows is a power of two
    first_ = l.parts + (job.first_slot + tile) * l.part.size + r;
    stride_ = static_cast<int32_t>(job.stride * l.part.size);
    others_ = first_ + (job.second_slot - job.first_slot) * l.part.size - stride_;
    sum_ = static_cast<int32_t>(l.part.sum - l.part.max);
    values_ =
        static_cast<int32_t>(rules::acc_block(l.part, r, column + column_of(lane_, 0)) + rules::acc_quad(r, lane_ % 4) - r);
  }

  // The state of the row, and its columns.
  struct Sum {
    float largest, sum;
    float4 acc;
  };

  static constexpr int kAtOnce = 8;  // reads of a lane
  using Values = float4[kAtOnce];

  // Of parts i, i + step ...
  __device__ __forceinline__ void load(int32_t i, int32_t step, Values &x) const {
    const float *at = part(i) + values_, *next = others_ + values_ + int64_t{i} * stride_;
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      x[u] = i + u * step < count_ && reads_ ? *reinterpret_cast<const float4 *>(at) : float4{};
      at = next += step * stride_;
    }
  }

  // Of parts base ... base + 7, along the tree; lanes 0 to 7 pass their states. Those that weigh nothing are not read.
  __device__ __forceinline__ Sum of_eight(int32_t base, rules::SoftmaxState node) const {
    static_assert(kAtOnce == 8, "three levels");
    const unsigned live = __ballot_sync(~0u, !rules::weighs_nothing(node));
    Values x;
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u)
      x[u] = live >> u & 1 && reads_ ? *reinterpret_cast<const float4 *>(part(base + u) + values_) : float4{};
#pragma unroll
    for (int level = 0; level < 3; ++level) {
      const int distance = 1 << level;
      const rules::SoftmaxState sibling = {__shfl_xor_sync(~0u, node.max, distance), __shfl_xor_sync(~0u, node.sum, distance)};
      const rules::MergeStep m = lane_ & distance ? merge_in_log2(sibling, node) : merge_in_log2(node, sibling);
#pragma unroll
      for (int u = 0; u < kAtOnce; u += 2 * distance) {
        const rules::MergeStep of = {__shfl_sync(~0u, m.a, u), __shfl_sync(~0u, m.b, u), {}};
        x[u] = merged(of, x[u], x[u + distance]);
      }
      node = m.merged;
    }
    return {__shfl_sync(~0u, node.max, 0), __shfl_sync(~0u, node.sum, 0), x[0]};
  }

  // Of part i; behind the last one: no keys.
  __device__ __forceinline__ rules::SoftmaxState state_or_none(int32_t i) const { return i < count_ ? state(i) : kNoKeys; }

  // The next kCombineColumns columns.
  __device__ __forceinline__ void next_columns(int32_t column, int32_t v_dim) {
    values_ += kCombineColumns / rules::kAccBlockColumns * rules::kAccBlock;
    reads_ = column + column_of(lane_, 0) < v_dim;
  }

  // The largest reference. fmaxf drops NaN; a NaN score shows in its part's sum.
  __device__ __forceinline__ float largest() const {
    float x = kMinusInf;
#pragma unroll 1
    for (int32_t i = lane_; i < count_; i += 64) {  // two at once
      const rules::SoftmaxState s = state(i), next = state_or_none(i + 32);
      if (!rules::weighs_nothing(s)) x = fmaxf(x, s.max);
      if (!rules::weighs_nothing(next)) x = fmaxf(x, next.max);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
    return x;
  }

  // Of part i, which may be behind the last; adds its share of the sum.
  __device__ __forceinline__ float weight(int32_t i, float largest, float *sum) const {
    const rules::SoftmaxState s = state_or_none(i);
    const float w = rules::weighs_nothing(s) ? 0.0f : rules::merge_weight(s, largest, ptx::exp2_approx);
    *sum += __fmul_rn(w, s.sum);
    return w;
  }

  // Adds values whose weights lanes k, k + 1 ... have.
  static __device__ __forceinline__ void add(float weight, int32_t k, const Values &x, float4 *acc) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const float w = __shfl_sync(~0u, weight, k + u);
      if (w == 0.0f) continue;  // may hold anything
      acc->x = __fmaf_rn(w, x[u].x, acc->x);
      acc->y = __fmaf_rn(w, x[u].y, acc->y);
      acc->z = __fmaf_rn(w, x[u].z, acc->z);
      acc->w = __fmaf_rn(w, x[u].w, acc->w);
    }
  }

 private:
  __device__ __forceinline__ const float *part(int32_t i) const { return i == 0 ? first_ : others_ + int64_t{i} * stride_; }
  __device__ __forceinline__ rules::SoftmaxState state(int32_t i) const {
    const float *at = part(i);
    return {at[0], at[sum_]};
  }
  const int lane_ = threadIdx.x % 32;
  const int32_t count_;
  bool reads_;                     // this lane has columns
  const float *first_, *others_;   // the row's maximum in part 0, and where part 0 would be if all were `stride_` apart
  int32_t stride_, sum_, values_;  // `sum_`, `values_`: from the maximum
};

// Nodes of the tree that wait for the sibling on their right, a place for each level: of each of `threads` threads the numbers T.
template <class T, int levels, int threads>
struct WaitingNodes {
  T values[levels][threads];
  rules::SoftmaxState states[levels];

  // Merges node `number` of `count` with what waits for it; returns its level then. The caller lets it wait at that place.
  __device__ __forceinline__ int merge(int32_t number, int32_t count, int thread, rules::SoftmaxState *state, T *x) const {
    rules::TreeNode node = {number, 0};
    for (;;) {
      if (number + 1 == count) node = rules::pass_through(node, 0);
      if (!rules::merges_left(node, 0)) return node.level;
      const rules::TreeNode left = rules::left_sibling(node);
      const rules::MergeStep m = merge_in_log2(states[left.level], *state);
      *x = merged(m, values[left.level][thread], *x);
      *state = m.merged;
      node = rules::parent(left);
    }
  }
};

// `chunks`: in the batch-invariant mode.
template <bool chunks>
class Combine {
  static constexpr int kSlices = kCombineSlices, kColumns = kCombineColumns;

  // Where a row's results go, and its own.
  struct RowResult {
    int64_t out, lse;
    float scale, log_sum;
  };

 public:
  __device__ __forceinline__ Combine(const Launch &l, int32_t tile_rows, const CombineJob &job)
      : l_(l), p_(l.p), tile_rows_(tile_rows), job_(job), out_scale_(l.p.k_scale != nullptr ? *l.p.k_scale : 1.0f) {}

  __device__ __forceinline__ void run() {
    const int32_t pieces = rules::ceil_div(p_.v_dim, kColumns);
    if (by_warps(pieces)) {
      // As many pieces at a time as make the units go round: what they have in common is found once. One, two or all.
      const int32_t warps = job_.workers * kSlices;
      int32_t each = chunks ? 1 : rules::min(pieces, rules::ceil_div(job_.rows * pieces, warps));
      if (each > 2) each = pieces;
      const int32_t groups = rules::ceil_div(pieces, each), units = job_.rows * groups;
#pragma unroll 1
      for (int32_t unit = job_.worker * kSlices + warp_; unit < units; unit += warps) {
        const int32_t row = unit / groups, column = (unit - row * groups) * each * kColumns;
        if constexpr (chunks) {
          few_chunks(row, column);
        } else {
          few(row, column, rules::min(column + each * kColumns, p_.v_dim));
        }
      }
    } else {
#pragma unroll 1
      for (int32_t unit = job_.worker; unit < job_.rows * pieces; unit += job_.workers) {
        const int32_t row = unit / pieces, column = (unit - row * pieces) * kColumns;
        if constexpr (chunks) {
          many_chunks(row, column);
        } else {
          many(row, column);
        }
      }
    }
  }

 private:
  // Of chunks most weigh nothing where there are many rows: a block for each unit would not be worth it.
  __device__ __forceinline__ bool by_warps(int32_t pieces) const {
    if (!chunks) return job_.parts <= 32;
    return job_.parts <= 8 || (job_.parts <= 64 && job_.rows * pieces > 2 * job_.workers);
  }

  // Up to 32 parts of a row, by a warp. A merge takes as long as the reads that wait for each other, and as fetching its code: values are
  // read along with the weights, whether they weigh anything or not.
  __device__ __forceinline__ void few(int32_t row, int32_t column, int32_t end) {
    RowParts parts(l_, tile_rows_, job_, row, column);
    RowParts::Values x;
    parts.load(0, 1, x);
    const float largest = parts.largest();
    float sum = 0.0f;
    const float weight = parts.weight(lane_, largest, &sum);
    sum = sum_of_lanes(sum);
    const RowResult to = result(row, largest, sum);
    if (column + lane_ == 0) p_.lse[to.lse] = to.log_sum;
#pragma unroll 1
    for (;;) {
      float4 acc = {};
#pragma unroll 1
      for (int32_t k = 0;;) {
        RowParts::add(weight, k, x, &acc);
        k += RowParts::kAtOnce;
        if (k >= job_.parts) break;
        parts.load(k, 1, x);
      }
      write(to, column, acc);
      if ((column += kColumns) >= end) return;
      parts.next_columns(column, p_.v_dim);
      parts.load(0, 1, x);
    }
  }

  // Up to 64 chunks, by a warp: eight at a time.
  __device__ __forceinline__ void few_chunks(int32_t row, int32_t column) {
    __shared__ WaitingNodes<float4, 4, 32> waiting_of_warps[kSlices];
    auto &waiting = waiting_of_warps[warp_];
    const RowParts parts(l_, tile_rows_, job_, row, column);
    const rules::SoftmaxState mine[2] = {parts.state_or_none(lane_), parts.state_or_none(lane_ + 32)};
    rules::SoftmaxState state = kNoKeys;
    float4 x = {};
    const int32_t rounds = rules::ceil_div(job_.parts, 8);
#pragma unroll 1
    for (int32_t round = 0; round < rounds; ++round) {
      const int from = round % 4 * 8 + lane_ % 8;
      const rules::SoftmaxState of = round < 4 ? mine[0] : mine[1];
      const float max = __shfl_sync(~0u, of.max, from), sum = __shfl_sync(~0u, of.sum, from);
      const RowParts::Sum s = parts.of_eight(round * 8, lane_ < 8 ? rules::SoftmaxState{max, sum} : kNoKeys);
      state = {s.largest, s.sum};
      x = s.acc;
      const int level = waiting.merge(round, rounds, lane_, &state, &x);
      __syncwarp();
      waiting.values[level][lane_] = x;
      if (lane_ == 0) waiting.states[level] = state;
      __syncwarp();
    }
    const RowResult to = result(row, state.max, state.sum);
    if (column + lane_ == 0) p_.lse[to.lse] = to.log_sum;
    write(to, column, rules::weighs_nothing(state) ? float4{} : x);  // acc that weighs nothing may be anything
  }

  // More of them, by a block.
  __device__ __forceinline__ void many(int32_t row, int32_t column) {
    __shared__ float slices[kSlices][kColumns], sums[kSlices];
    const RowParts parts(l_, tile_rows_, job_, row, column);
    RowParts::Values x;
    parts.load(warp_, kSlices, x);
    const float largest = parts.largest();
    float sum = 0.0f;
    float4 acc = {};
#pragma unroll 1
    for (int32_t base = warp_; base < job_.parts; base += 32 * kSlices) {
      const float weight = parts.weight(base + lane_ * kSlices, largest, &sum);
#pragma unroll 1
      for (int32_t k = 0; k < 32 && base + k * kSlices < job_.parts; k += RowParts::kAtOnce) {
        if (base + k > warp_) parts.load(base + k * kSlices, kSlices, x);
        RowParts::add(weight, k, x, &acc);
      }
    }
    sum = sum_of_lanes(sum);
    *reinterpret_cast<float4 *>(&slices[warp_][lane_ * 4]) = acc;
    if (lane_ == 0) sums[warp_] = sum;
    __syncthreads();
    if (threadIdx.x < kColumns) {
      float all = 0.0f, number = 0.0f;
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
        all += sums[s];
        number += slices[s][threadIdx.x];
      }
      write_number(row, column, {largest, all}, number);
    }
    __syncthreads();
  }

  static __device__ __forceinline__ float sum_of_lanes(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
  }

  // Any number of chunks, by a block: a warp takes eight at a time, then each of kColumns threads its column of the eight nodes; nodes of 64
  // chunks wait for their siblings.
  __device__ __forceinline__ void many_chunks(int32_t row, int32_t column) {
    constexpr int kLevels = 16;
    static_assert(int64_t{rules::kInvariantKeys} * 64 << kLevels > INT32_MAX, "a level for every length");
    __shared__ float nodes[kSlices][kColumns];
    __shared__ rules::SoftmaxState states[kSlices];
    __shared__ WaitingNodes<float, kLevels, kColumns> waiting;
    const RowParts parts(l_, tile_rows_, job_, row, column);
    const auto c = static_cast<int32_t>(threadIdx.x);
    rules::SoftmaxState state = kNoKeys;
    float x = 0.0f;
    const int32_t rounds = rules::ceil_div(job_.parts, kSlices * 8);
#pragma unroll 1
    for (int32_t round = 0; round < rounds; ++round) {
      const int32_t base = (round * kSlices + warp_) * 8;
      const RowParts::Sum s = parts.of_eight(base, lane_ < 8 ? parts.state_or_none(base + lane_) : kNoKeys);
      *reinterpret_cast<float4 *>(&nodes[warp_][lane_ * 4]) = s.acc;
      if (lane_ == 0) states[warp_] = {s.largest, s.sum};
      __syncthreads();
      int level = 0;
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
        level = waiting.merge(round, rounds, c, &state, &x);
      }
      __syncthreads();
      if (c < kColumns) waiting.values[level][c] = x;
      if (c == 0) waiting.states[level] = state;
    }
    if (c < kColumns) write_number(row, column, state, rules::weighs_nothing(state) ? 0.0f : x);
    __syncthreads();
  }

  // Of a warp's columns from `column` on.
  __device__ __forceinline__ void write(const RowResult &to, int32_t column, float4 acc) const {
    const float x[4] = {acc.x, acc.y, acc.z, acc.w};
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int32_t c = column + column_of(lane_, i);
      if (c >= p_.v_dim) return;
      store_two(l_, to.out + c, x[i] * to.scale, x[i + 1] * to.scale);
    }
  }

  // Of the column that thread threadIdx.x < kColumns has.
  __device__ __forceinline__ void write_number(int32_t row, int32_t column, rules::SoftmaxState s, float x) const {
    const int32_t c = column + column_of(static_cast<int32_t>(threadIdx.x) / 4, static_cast<int32_t>(threadIdx.x) % 4);
    if (c >= p_.v_dim) return;
    const RowResult to = result(row, s.max, s.sum);
    store(p_.q_dtype, p_.out, to.out + c, x * to.scale);
    if (c == 0) p_.lse[to.lse] = to.log_sum;
  }

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
template <int arch, bool chunks>
__global__ void __launch_bounds__(kCombineThreads, chunks ? 2 : kCombineBlocks)
    combine_kernel(const __grid_constant__ Launch l, int32_t tile_rows) {
  __shared__ CombineJob job;
  __shared__ Cuts cuts;
  ptx::launch_dependents();
  ptx::wait_for_previous_grid();
  const auto blocks = static_cast<int32_t>(gridDim.x);
  if (l.splits == 0) cuts.read(l);
#pragma unroll 1
  for (auto i = static_cast<int32_t>(blockIdx.x);; i += blocks) {
    __syncthreads();
    if (threadIdx.x < 32) {
      if (l.splits > 0) {
        if (threadIdx.x == 0) find_piece(l, tile_rows, i, blocks, &job);
      } else {
        cuts.find(l, tile_rows, i, blocks, &job);
      }
    }
    __syncthreads();
    if (job.parts == 0) return;
    Combine<chunks>(l, tile_rows, job).run();
  }
}

}  // namespace mlaverify::cuda
