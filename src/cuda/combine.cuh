// The second launch of a call: merges the partial results of rows that several blocks worked on, in key order, and writes them.
//
// A job is a row tile, or a group of them, that was cut. Blocks are dealt out to the borders of shares, and those of all borders inside a row
// tile work on it: so that all blocks have work, and a row tile of many parts has many. Which jobs there are follows from
// the lengths, as in the verify kernel: blocks that have room before that one is done know theirs when it is.
// A piece is the columns of a row of which a warp reads 16 bytes a lane: 128 in f32, 256 in f16. A warp takes some pieces of a row, and all parts
// or, of more than eight, every second, fourth or eighth eight of them; it reads eight accs at once. What decides is how often reads are waited
// for, some microsecond each, that states of a row are read together (rules/workspace.h), and how much code is fetched behind the wait.
//
// Batch-invariant mode: parts are chunks, merged along the tree of rules/merge.h as the verify kernels do it; chunks that these have merged
// already weigh nothing, and pass the others through.
//
// Else the result is a sum over eights of parts, each a sum over its parts in key order: the order follows from the number of parts, so
// repeated runs give the same bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/mma.cuh"
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
  // Of the first row tile's parts: the first, and the second, which the others follow in its series; those of the next row tile lie in the
  // next series.
  rules::PartPlace first, second;
  int32_t worker, workers;  // of the blocks that share the job
  bool more;                // the block has a job behind this one
  bool early;               // the block has room, by the numbers of blocks, before the verify kernel is done
};

__device__ __forceinline__ void set_rows(const Launch &l, int32_t first_tile, int32_t tiles, CombineJob *job) {
  job->first_row = first_tile * l.part.rows;
  job->rows = rules::min(tiles * l.part.rows, rows_of(l.p, job->request) - job->first_row);
}

// The jobs of a call, and which of them a block works for.
class Jobs {
 public:
  // By a warp; `blocks` blocks share the work.
  __device__ __forceinline__ Jobs(const Launch &l, int32_t blocks) : l_(l), line_(l), blocks_(blocks) {
    shares_ = rules::num_shares(l.share_choice, line_.total(), line_.all_equal());
    borders_ = rules::cutting_borders(l.share_choice.jobs, line_.total(), shares_, line_.all_equal());
    count_ = l.splits > 0 ? l.p.batch * l.row_tiles : borders_.count;
    workers_ = rules::max(1, rules::quotient_31(blocks, rules::max(1, count_)));
  }

  // Number `i`, by all lanes; of no parts if its border cuts nothing, or behind the last.
  __device__ __forceinline__ CombineJob get(int32_t i) const {
    CombineJob job = {};
    if (i >= count_ * workers_) return job;
    job.more = i + blocks_ < count_ * workers_;
    // Verify blocks without a share leave their room to the first blocks of this kernel.
    const int32_t spare = l_.blocks - shares_ * l_.row_group;
    job.early = l_.splits == 0 && i * l_.blocks_per_sm < spare * combine_blocks_per_sm(l_.part.numbers == 8);
    const int32_t worker = rules::quotient_31(i, count_);
    i -= worker * count_;
    if (l_.splits > 0) {
      job.request = rules::quotient_31(i, l_.row_tiles);
      const int32_t row_tile = i - job.request * l_.row_tiles;
      job.parts = l_.splits;
      job.first = job.second = piece_place(l_, job.request, row_tile, 0);
      ++job.second.piece;
      job.worker = worker;
      job.workers = workers_;
      set_rows(l_, row_tile, 1, &job);
      return job;
    }
    const int32_t border = borders_.at(i), begin = rules::share_begin(line_.total(), shares_, border);
    const rules::TilePosition at = line_.locate(begin);
    if (at.key_tile == 0) return job;
    const int32_t tiles = line_tiles(l_, at.request);
    const rules::CutTile cut = rules::cut_tile(line_.total(), shares_, begin, at, tiles);
    const int32_t row_tile = cut.row_tile * l_.row_group;
    job.request = cut.request;
    if (l_.chunks > 0) {
      job.parts = tiles;
      job.first = job.second = piece_place(l_, cut.request, row_tile, 0);
      ++job.second.piece;
    } else {
      job.parts = cut.borders + 1;
      job.first = rules::share_place(cut.first_border - 1, true, l_.row_group, 0);
      job.second = rules::share_place(cut.first_border, false, l_.row_group, 0);
    }
    job.worker = worker * cut.borders + border - cut.first_border;  // blocks of low numbers, which begin first, have work first
    job.workers = workers_ * cut.borders;
    set_rows(l_, row_tile, l_.row_group, &job);
    return job;
  }

 private:
  const Launch &l_;
  const Line line_;
  const int32_t blocks_;
  rules::CuttingBorders borders_;
  int32_t shares_, count_, workers_;
};

// As rules::store_float() does, by the instructions of the GPU.
__device__ __forceinline__ void store(DType t, void *out, int64_t at, float x) {
  if (t == DType::f32) static_cast<float *>(out)[at] = x;
  if (t == DType::f16) static_cast<__half *>(out)[at] = __float2half_rn(x);
  if (t == DType::bf16) static_cast<__nv_bfloat16 *>(out)[at] = __float2bfloat16_rn(x);
}

// The parts of one row, by a warp: 16 bytes a lane of each, `numbers` (4 in f32, 8 in f16), which makes a piece of kColumns columns, from
// `column` on.
template <int numbers>
class RowParts {
 public:
  static constexpr int32_t kColumns = 32 * numbers;
  static_assert(numbers != 8 || kColumns == rules::kScaleColumns, "in f16 a piece has one scale");

  // Of a piece, the column of number `i` of lane `lane`.
  static __device__ __forceinline__ int32_t column_of(int32_t lane, int32_t i) {
    return lane / 4 * (4 * numbers) + lane % 4 * 2 + i / 2 * 8 + i % 2;
  }

  // `count`: of the job's parts, the first ones.
  __device__ __forceinline__ RowParts(const Launch &l, const CombineJob &job, int32_t row, int32_t column, int32_t count)
      : acc_size_(l.part.acc_size),
        count_(count),
        pieces_((l.p.v_dim - column - column_of(lane_, 0) + kColumns - 1) / kColumns),  // (the sum is positive)
        range_(column / rules::kScaleColumns) {
    const int32_t tile = row >> (__ffs(l.part.rows) - 1), r = row & (l.part.rows - 1);  // rows of a tile: a power of two
    const auto of_tile = [=](rules::PartPlace place) { return rules::PartPlace{place.series + tile, place.piece}; };
    const auto *states = reinterpret_cast<const float4 *>(l.states);
    first_state_ = states + rules::state_offset(l.part, of_tile(job.first), r);
    others_states_ = states + rules::state_offset(l.part, of_tile(job.second), r) - 1;
    const auto *accs = static_cast<const float4 *>(l.accs) + rules::acc_vector(l.part, r, column + column_of(lane_, 0));
    first_acc_ = accs + rules::acc_at(l.part, of_tile(job.first));
    others_accs_ = accs + rules::acc_at(l.part, of_tile(job.second)) - acc_size_;
  }

  // A partial result of the row, of some pieces of it.
  template <int pieces>
  struct Sum {
    rules::SoftmaxState state;
    float acc[pieces][numbers];
  };

  // x += y, relative to the larger reference. (fmaxf drops NaN; a NaN score shows in the sum.)
  static __device__ __forceinline__ void add(const Sum<1> &y, Sum<1> *x) {
    const float now = fmaxf(x->state.max, y.state.max);
    const float a = weight(x->state, now), b = weight(y.state, now);
    x->state = {now, a * x->state.sum + b * y.state.sum};
#pragma unroll
    for (int i = 0; i < numbers; ++i) x->acc[0][i] = a * x->acc[0][i] + b * y.acc[0][i];
  }

  // Of 8 / pieces parts from `base` on, as many as there are. States and accs are read at the same time, whether accs weigh anything or not.
  template <int pieces>
  __device__ __forceinline__ Sum<pieces> sum(int32_t base) const {
    constexpr int kParts = kAtOnce / pieces;
    float4 x[kAtOnce];
    load<pieces>(base, ~0u, x);
    const float4 all_of_state = part_state(base + lane_ % kParts);
    const rules::SoftmaxState s = {all_of_state.x, all_of_state.y};
    float largest = rules::weighs_nothing(s) ? kMinusInf : s.max;
#pragma unroll
    for (int distance = 1; distance < kParts; distance *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
    const float mine = weight(s, largest);
    float sum = mine * s.sum;
#pragma unroll
    for (int distance = 1; distance < kParts; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    Sum<pieces> all = {{largest, sum}, {}};
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
      const bool second = numbers == 8 && range_ + i > 0;  // of f16 a piece is a range
      const float scaled = numbers == 8 ? mine * (second ? all_of_state.w : all_of_state.z) : mine;
#pragma unroll
      for (int u = 0; u < kParts; ++u) {
        const float w = __shfl_sync(~0u, scaled, u);
        if (w == 0.0f) continue;  // may hold anything
        float from[numbers];
        unpack(x[u * pieces + i], from);
#pragma unroll
        for (int k = 0; k < numbers; ++k) all.acc[i][k] = __fmaf_rn(w, from[k], all.acc[i][k]);
      }
    }
    return all;
  }

  // The same along the tree of chunks, in f32; lanes 0 to 7 pass their states. Those that weigh nothing are not read.
  __device__ __forceinline__ Sum<1> merge_of_eight(int32_t base, rules::SoftmaxState node) const {
    static_assert(numbers == 4);
    float4 x[kAtOnce];
    load<1>(base, __ballot_sync(~0u, !rules::weighs_nothing(node)), x);
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
    return {{__shfl_sync(~0u, node.max, 0), __shfl_sync(~0u, node.sum, 0)}, {{x[0].x, x[0].y, x[0].z, x[0].w}}};
  }

  // Of part i; behind the last one: no keys.
  __device__ __forceinline__ rules::SoftmaxState state(int32_t i) const {
    const float4 s = part_state(i);
    return {s.x, s.y};
  }

 private:
  static constexpr int kAtOnce = 8;  // reads of a lane

  static __device__ __forceinline__ float weight(rules::SoftmaxState s, float largest) {
    return rules::weighs_nothing(s) ? 0.0f : rules::merge_weight(s, largest, ptx::exp2_approx);
  }

  // As a rules::PartState lies in memory.
  __device__ __forceinline__ float4 part_state(int32_t i) const {
    return i < count_ ? *(i == 0 ? first_state_ : others_states_ + i) : float4{kNoKeys.max, kNoKeys.sum, 1.0f, 1.0f};
  }

  static __device__ __forceinline__ void unpack(float4 from, float (&to)[numbers]) {
    const float word[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (numbers == 4) {
        to[i] = word[i];
      } else {
        const float2 two = __half22float2(*reinterpret_cast<const __half2 *>(&word[i]));
        to[2 * i] = two.x;
        to[2 * i + 1] = two.y;
      }
    }
  }

  // Number i is piece i % pieces of part base + i / pieces, if there is such a part and its bit is set.
  template <int pieces>
  __device__ __forceinline__ void load(int32_t base, unsigned which, float4 (&x)[kAtOnce]) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int u = i / pieces, piece = i % pieces;
      const float4 *at = u == 0 && base == 0 ? first_acc_ : others_accs_ + int64_t{base + u} * acc_size_;
      const bool reads = base + u < count_ && (which >> u & 1) != 0 && piece < pieces_;
      x[i] = reads ? at[piece * (8 * rules::kAccBlock)] : float4{};
    }
  }

  const int lane_ = threadIdx.x % 32;
  const int32_t acc_size_, count_, pieces_;  // pieces that this lane reads
  const int32_t range_;                      // of columns, of the first piece
  // Of part 0, and where part 0 would be if it lay before the others.
  const float4 *first_state_, *others_states_, *first_acc_, *others_accs_;
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
template <int numbers, bool chunks>
class Combine {
  using Parts = RowParts<numbers>;
  static constexpr int kSlices = kCombineSlices, kColumns = Parts::kColumns;

  // Where a row's results go.
  struct RowPlace {
    int64_t out, lse;
    int32_t token;
  };

 public:
  __device__ __forceinline__ Combine(const Launch &l, const CombineJob &job)
      : l_(l), p_(l.p), job_(job), out_scale_(l.p.k_scale != nullptr ? *l.p.k_scale : 1.0f) {}

  __device__ __forceinline__ void run() {
    if (job_.parts == 0) return;
    if constexpr (chunks) ptx::wait_for_previous_grid();
    const int32_t pieces = rules::ceil_div(p_.v_dim, kColumns);
    if constexpr (chunks) {
      if (by_warps(pieces)) {
        const int32_t warps = job_.workers * kSlices;
#pragma unroll 1
        for (int32_t unit = job_.worker * kSlices + warp_; unit < job_.rows * pieces; unit += warps)
          few_chunks(unit / pieces, unit % pieces * kColumns);
      } else {
#pragma unroll 1
        for (int32_t unit = job_.worker; unit < job_.rows * pieces; unit += job_.workers)
          many_chunks(unit / pieces, unit % pieces * kColumns);
      }
    } else {
      if (numbers == 4 && job_.parts <= 2 && stores_pairs()) {
        sum_parts<4>();
      } else if (job_.parts <= 4 && stores_pairs()) {
        sum_parts<2>();
      } else {
        sum_parts<1>();
      }
    }
  }

 private:
  static_assert(kSlices == 8);

  // Of chunks most weigh nothing where there are many rows: a block for each unit would not be worth it.
  __device__ __forceinline__ bool by_warps(int32_t pieces) const {
    return job_.parts <= 8 || (job_.parts <= 64 && job_.rows * pieces > 2 * job_.workers);
  }

  // A unit, some pieces of a row, gets as many warps (slices) as leave each of them eight parts, all eight of a block at most.
  template <int pieces>
  __device__ __forceinline__ void sum_parts() {
    int slices_log2 = 0;
    while (pieces == 1 && slices_log2 < 3 && job_.parts > 8 << slices_log2) ++slices_log2;
    const int32_t of_row = rules::ceil_div(p_.v_dim, pieces * kColumns), units = job_.rows * of_row,
                  at_once = kSlices >> slices_log2;
    bool rehearsal = job_.early;
#pragma unroll 1
    for (int32_t first = job_.worker * at_once; first < units;) {
      const int32_t unit = first + (warp_ >> slices_log2);
      const int32_t row = rules::quotient_31(unit, of_row);
      sum_unit<pieces>(row, (unit - row * of_row) * pieces * kColumns, slices_log2, unit < units && !rehearsal);
      if (!rehearsal) first += job_.workers * at_once;
      rehearsal = false;
    }
  }

  // By a warp for each slice; where there are several, all warps of a block come together. Not `used`: nothing is read or written, but the code
  // is: all warps take part where some have no unit, and a block that has to wait anyway fetches it ahead.
  template <int pieces>
  __device__ __forceinline__ void sum_unit(int32_t row, int32_t column, int32_t slices_log2, bool used) {
    using Sum = typename Parts::template Sum<pieces>;
    const int32_t slice = warp_ & ((1 << slices_log2) - 1);
    const Parts parts(l_, job_, row, column, used ? job_.parts : 0);
    const RowPlace to = place(row);
    if (used) ptx::wait_for_previous_grid();
    Sum sum = {kNoKeys, {}};
    if constexpr (pieces > 1) {
      sum = parts.template sum<pieces>(0);
    } else {
#pragma unroll 1
      for (int32_t base = slice * 8; base < job_.parts; base += 8 << slices_log2) Parts::add(parts.template sum<1>(base), &sum);
      __shared__ Sum sums[kSlices][32];
      if (slices_log2 > 0) {
        sums[warp_][lane_] = sum;
        __syncthreads();
#pragma unroll 1
        for (int s = 1; s < 1 << slices_log2 && slice == 0; ++s) Parts::add(sums[warp_ + s][lane_], &sum);
        __syncthreads();
      }
    }
    if (!used) sum.state = {0.0f, 1.0f};
    if (slice == 0) write<pieces>(to, column, sum, used);
  }

  // Up to 64 chunks, by a warp: eight at a time.
  __device__ __forceinline__ void few_chunks(int32_t row, int32_t column) {
    __shared__ WaitingNodes<float4, 4, 32> waiting_of_warps[kSlices];
    auto &waiting = waiting_of_warps[warp_];
    const Parts parts(l_, job_, row, column, job_.parts);
    const rules::SoftmaxState mine[2] = {parts.state(lane_), parts.state(lane_ + 32)};
    rules::SoftmaxState state = kNoKeys;
    float4 x = {};
    const int32_t rounds = rules::ceil_div(job_.parts, 8);
#pragma unroll 1
    for (int32_t round = 0; round < rounds; ++round) {
      const int from = round % 4 * 8 + lane_ % 8;
      const rules::SoftmaxState of = round < 4 ? mine[0] : mine[1];
      const float max = __shfl_sync(~0u, of.max, from), sum = __shfl_sync(~0u, of.sum, from);
      const typename Parts::template Sum<1> s =
          parts.merge_of_eight(round * 8, lane_ < 8 ? rules::SoftmaxState{max, sum} : kNoKeys);
      state = s.state;
      x = {s.acc[0][0], s.acc[0][1], s.acc[0][2], s.acc[0][3]};
      const int level = waiting.merge(round, rounds, lane_, &state, &x);
      __syncwarp();
      waiting.values[level][lane_] = x;
      if (lane_ == 0) waiting.states[level] = state;
      __syncwarp();
    }
    if (rules::weighs_nothing(state)) x = {};
    write<1>(place(row), column, {state, {{x.x, x.y, x.z, x.w}}});  // acc that weighs nothing may be anything
  }

  // Any number of chunks, by a block: a warp takes eight at a time, then each of kColumns threads its column of the eight nodes; nodes of 64
  // chunks wait for their siblings.
  __device__ __forceinline__ void many_chunks(int32_t row, int32_t column) {
    constexpr int kLevels = 16;
    static_assert(int64_t{rules::kInvariantKeys} * 64 << kLevels > INT32_MAX, "a level for every length");
    __shared__ float nodes[kSlices][kColumns];
    __shared__ rules::SoftmaxState states[kSlices];
    __shared__ WaitingNodes<float, kLevels, kColumns> waiting;
    const Parts parts(l_, job_, row, column, job_.parts);
    const auto c = static_cast<int32_t>(threadIdx.x);
    rules::SoftmaxState state = kNoKeys;
    float x = 0.0f;
    const int32_t rounds = rules::ceil_div(job_.parts, kSlices * 8);
#pragma unroll 1
    for (int32_t round = 0; round < rounds; ++round) {
      const int32_t base = (round * kSlices + warp_) * 8;
      const typename Parts::template Sum<1> s = parts.merge_of_eight(base, lane_ < 8 ? parts.state(base + lane_) : kNoKeys);
      *reinterpret_cast<float4 *>(&nodes[warp_][lane_ * 4]) = {s.acc[0][0], s.acc[0][1], s.acc[0][2], s.acc[0][3]};
      if (lane_ == 0) states[warp_] = s.state;
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

  // Whether numbers are written two at a time, of a 16-bit type.
  __device__ __forceinline__ bool stores_pairs() const { return l_.out_16_bytes && p_.q_dtype != DType::f32; }

  // Of a warp's columns from `column` on; by pairs, if there are several pieces.
  template <int pieces>
  __device__ __forceinline__ void write(const RowPlace &to, int32_t column, const typename Parts::template Sum<pieces> &sum,
                                        bool used = true) const {
    const RowState state = {sum.state, !rules::weighs_nothing(sum.state) || has_keys(to)};
    if (column + lane_ == 0 && used) p_.lse[to.lse] = lse_of(state);
    const float scale = row_scale(state, out_scale_);
    const int32_t first = column + Parts::column_of(lane_, 0);
    if (pieces > 1 || stores_pairs()) {
      auto *at = static_cast<uint16_t *>(p_.out) + to.out + first;
#pragma unroll
      for (int i = 0; i < pieces; ++i) {
#pragma unroll
        for (int k = 0; k < numbers; k += 2) {
          const int32_t c = i * kColumns + k / 2 * 8;
          if (first + c < p_.v_dim && used)
            *reinterpret_cast<uint32_t *>(at + c) = pack(sum.acc[i][k] * scale, sum.acc[i][k + 1] * scale);
        }
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < numbers; ++i) {
        const int32_t c = column + Parts::column_of(lane_, i);
        float x = sum.acc[0][0];
#pragma unroll
        for (int k = 1; k < numbers; ++k) x = i == k ? sum.acc[0][k] : x;
        if (c < p_.v_dim && used) store(p_.q_dtype, p_.out, to.out + c, x * scale);
      }
    }
  }

  // Two numbers of a 16-bit type.
  __device__ __forceinline__ uint32_t pack(float low, float high) const {
    const uint32_t bf16 = Bf16::pack(low, high), f16 = F16::pack(low, high);
    return p_.q_dtype == DType::bf16 ? bf16 : f16;
  }

  // Of the column that thread threadIdx.x < kColumns has.
  __device__ __forceinline__ void write_number(int32_t row, int32_t column, rules::SoftmaxState s, float x) const {
    const int32_t c = column + Parts::column_of(static_cast<int32_t>(threadIdx.x) / 4, static_cast<int32_t>(threadIdx.x) % 4);
    if (c >= p_.v_dim) return;
    const RowPlace to = place(row);
    const RowState state = {s, !rules::weighs_nothing(s) || has_keys(to)};
    store(p_.q_dtype, p_.out, to.out + c, x * row_scale(state, out_scale_));
    if (c == 0) p_.lse[to.lse] = lse_of(state);
  }

  __device__ __forceinline__ RowPlace place(int32_t row) const {
    const rules::Row r = rules::unpack_row(job_.first_row + row, p_.num_heads);
    return {rules::out_offset(p_, job_.request, r), rules::lse_offset(p_, job_.request, r), r.token};
  }
  __device__ __forceinline__ bool has_keys(const RowPlace &row) const {
    return rules::visible_keys(p_, job_.request, row.token) > 0;
  }

  const Launch &l_;
  const Problem &p_;
  const CombineJob &job_;
  const float out_scale_;
  const int warp_ = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0), lane_ = threadIdx.x % 32;
};

template <int arch, int numbers, bool chunks>
__global__ void __launch_bounds__(kCombineThreads, chunks ? 2 : combine_blocks_per_sm(numbers == 8))
    combine_kernel(const __grid_constant__ Launch l) {
  __shared__ CombineJob job;
  ptx::launch_dependents();
  const auto blocks = static_cast<int32_t>(gridDim.x);
  auto i = static_cast<int32_t>(blockIdx.x);
#pragma unroll 1
  do {
    __syncthreads();
    if (threadIdx.x < 32) {
      const CombineJob mine = Jobs(l, blocks).get(i);
      if (threadIdx.x == 0) job = mine;
    }
    __syncthreads();
    Combine<numbers, chunks>(l, job).run();
    i += blocks;
  } while (job.more);
  ptx::wait_for_previous_grid();  // those without a job too: the call is over when all have ended
}

}  // namespace mlaverify::cuda
