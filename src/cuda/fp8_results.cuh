// What the computing warpgroups of verify_fp8.cuh have in registers and per row, and how it gets to memory.
#pragma once

#include "cuda/fp8_copies.cuh"
#include "cuda/fp8_queries.cuh"
#include "cuda/mma.cuh"
#include "cuda/part.cuh"
#include "cuda/ptx.cuh"
#include "cuda/result.cuh"
#include "rules/workspace.h"

namespace mlaverify::cuda {

// In accumulators, lane 4 g + i has of rows 8 j + 2 i + {0, 1}: of S^T keys g and g + 8 of its warp's sixteen; of O^T columns 2 g and
// 2 g + 1 of sixteen.
template <class C>
class Fp8Results {
 protected:
  __device__ __forceinline__ Fp8Results(const Launch &l, char *shared) : l_(l), p_(l.p), shared_(shared) {}

  static constexpr int kRowBlocks = C::kRows / 8;    // of eight rows
  static constexpr int kS = 4 * kRowBlocks, kO = 4;  // registers of S, or of 64 columns of O; times 64 columns of a group
  // Rows that a lane has numbers of; sums of weights that it keeps (with 64 rows behind a step of reduce(): no registers for more);
  // rows of which it gets what is reduced over a warp.
  static constexpr int kLaneRows = 2 * kRowBlocks, kSums = rules::min(kLaneRows, 8), kHeld = C::kRows > 32 ? 2 : 1;
  static constexpr int kBarrierBoth = 1, kBarrierGroup = 2;  // named; of both groups, and 2 and 3 of one group
  static_assert(C::kGroupValues == 64 * kO);

  __device__ __forceinline__ Fp8Barriers<C> barriers() const { return {ptx::shared_address(shared_) + C::kOffsetBarriers}; }
  __device__ __forceinline__ float *of_rows(int offset) const { return reinterpret_cast<float *>(shared_ + offset); }
  // What there is per row of the two rows of eight that this lane has numbers of: rows().of(offset, j).
  struct LaneRows {
    const char *first;
    __device__ __forceinline__ float2 of(int offset, int j) const {
      return *reinterpret_cast<const float2 *>(first + offset + 32 * j);
    }
  };
  __device__ __forceinline__ LaneRows rows() const { return {shared_ + ptx::lane() % 4 * 8}; }
  __device__ __forceinline__ int group() const { return static_cast<int>(ptx::not_hoisted(threadIdx.x) / C::kGroup); }
  // Of the group. (Like the lane, found where it is needed: there is no register to keep it in.)
  __device__ __forceinline__ int thread() const { return static_cast<int>(ptx::not_hoisted(threadIdx.x) % C::kGroup); }
  __device__ __forceinline__ int warp() const { return thread() / 32; }
  // Whether this thread is the one of its group that does what is to be done once for row thread().
  __device__ __forceinline__ bool has_row() const { return thread() < C::kRows; }

  // Columns of a group are taken 64 at a time, sixteen a warp: those that number b begins with, behind first_of_warp(). A warp's lie side by
  // side where that leaves all warps in the same group of a record.
  static constexpr int kNeighbours = 32;
  static __host__ __device__ constexpr int behind_first(int b) { return b / 2 * (4 * kNeighbours) + b % 2 * 16; }
  __device__ __forceinline__ int first_of_warp() const { return group() * C::kGroupValues + warp() * kNeighbours; }

  // What lanes have of `count` rows they share (number 2 j + i: row 8 j + 2 * (lane % 4) + i), reduced over lanes that are `lanes` apart:
  // of several rows each lane keeps half.
  template <int lanes, int count, int n, class Op>
  static __device__ __forceinline__ void reduce_step(float (&x)[n], Op op) {
    if constexpr (count > 1) {
      const bool second = (ptx::lane() & lanes) != 0;
#pragma unroll
      for (int k = 0; k < count / 2; ++k) {
        const float other = __shfl_xor_sync(~0u, second ? x[k] : x[k + count / 2], lanes);
        x[k] = op(second ? x[k + count / 2] : x[k], other);
      }
    } else {
      x[0] = op(x[0], __shfl_xor_sync(~0u, x[0], lanes));
    }
  }
  // Over the warp, from `lanes` on: each lane then has kHeld rows, held_row(k).
  template <int lanes, int n, class Op>
  static __device__ __forceinline__ void reduce(float (&x)[n], Op op) {
    constexpr int count = kLaneRows * lanes / 16;
    reduce_step<lanes, (count > 1 ? count : 1)>(x, op);
    if constexpr (lanes > 4) reduce<lanes / 2>(x, op);
  }
  __device__ __forceinline__ int held_row(int k) const {
    const int lane = ptx::lane(), number = kLaneRows >= 8 ? lane / 4 * kHeld + k : lane / 8;
    return number / 2 * 8 + lane % 4 * 2 + number % 2;
  }

  // From finish_rows() on, of row thread(), in group 0. (There is no register to keep it in.)
  __device__ __forceinline__ rules::SoftmaxState state() const {
    return {of_rows(C::kOffsetTop)[thread()], of_rows(C::kOffsetLargest)[thread()]};
  }

  __device__ __forceinline__ Part part(const volatile Item &item, int32_t piece, bool f16 = false) const {
    return {l_, rules::gpu_part_layout(C::kRows, C::kV, l_.part.pieces, f16), {item.series, piece}};
  }

  // Of the tile. Rows that only fill it have no partial results.
  __device__ __forceinline__ int32_t used_rows(const volatile Item &item) const {
    return rows_of(p_, item.request) - item.row_tile * C::kRows;
  }

  // Of the 2 x 2 numbers that a lane has of two rows and two columns, and lane ^ 16 of the same rows and the columns eight further on, each
  // gets those of one row: the second, if `second_row()`. (And back.)
  __device__ __forceinline__ bool second_row() const { return ptx::lane() >= 16; }
  template <class T>
  __device__ __forceinline__ void to_row(T &first, T &second) const {
    const T other = __shfl_xor_sync(~0u, second_row() ? first : second, 16);
    if (second_row()) {
      first = other;
    } else {
      second = other;
    }
  }
  // Of the first eight rows the one, and of the group's first eight columns the first of two, that a lane has then.
  __device__ __forceinline__ int first_row() const { return ptx::lane() % 4 * 2 + (second_row() ? 1 : 0); }
  __device__ __forceinline__ int first_column() const { return first_of_warp() + ptx::lane() / 4 % 4 * 2; }
  // How far its 16 bytes of rows 8 j ... and columns 16 b ... lie behind those.
  static __device__ __forceinline__ int behind(int j, int b, bool f16) {
    return rules::acc_vector(rules::gpu_part_layout(C::kRows, C::kV, 1, f16), 8 * j, behind_first(b));
  }

  // By group 0, which alone may read states.
  __device__ __forceinline__ void write_state(const volatile Item &item, int32_t piece, bool keys, bool f16 = false) const {
    if (group() == 0 && has_row() && thread() < used_rows(item))
      part(item, piece, f16).set_state(thread(), keys ? state() : rules::SoftmaxState(kNoKeys));
  }

  __device__ __forceinline__ void write_part(const volatile Item &item, int32_t piece, const float (&o)[kO][kS]) const {
    if (!C::kChunks || l_.chunks == 0) return write_part_f16(item, piece, o);
    write_state(item, piece, true);
    const int row = first_row(), used = used_rows(item);
    float4 *to = part(item, piece).vector(row, first_column());
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
#pragma unroll
      for (int b = 0; b < kO; ++b) {
        float4 x = {o[b][4 * j], o[b][4 * j + 2], o[b][4 * j + 1], o[b][4 * j + 3]};
        to_row(x.x, x.z);
        to_row(x.y, x.w);
        if (8 * j + row < used) to[behind(j, b, false)] = x;
      }
    }
  }

  // As the other Hopper kernel does (verify_sm90.cuh).
  __device__ __forceinline__ void write_part_f16(const volatile Item &item, int32_t piece, const float (&o)[kO][kS]) const {
    float *sizes_of_rows = of_rows(C::kOffsetFactor) + group() * C::kRows;
    if (has_row()) sizes_of_rows[thread()] = 0.0f;
    float largest[kLaneRows];
#pragma unroll
    for (int n = 0; n < kLaneRows; ++n) {
      largest[n] = 0.0f;
#pragma unroll
      for (int b = 0; b < kO; ++b) {
        const int i = n / 2 * 4 + n % 2;
        largest[n] = fmaxf(largest[n], fmaxf(finite_size(o[b][i]), finite_size(o[b][i + 2])));
      }
    }
    reduce<16>(largest, [](float a, float b) { return fmaxf(a, b); });
    ptx::barrier_sync(kBarrierGroup + group(), C::kGroup);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) ptx::shared_max(ptx::shared_address(sizes_of_rows + held_row(k)), largest[k]);
    ptx::barrier_sync(kBarrierGroup + group(), C::kGroup);
    const LaneRows rows = this->rows();
    const int row = first_row(), used = used_rows(item);
    const Part part = this->part(item, piece, true);
    float4 *to = part.vector(row, first_column());
    write_state(item, piece, true, true);
    if (has_row() && thread() < used) part.set_scale(thread(), group(), f16_scale(sizes_of_rows[thread()]).back);
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      const float2 sizes = rows.of(C::kOffsetFactor + group() * C::kRows * 4, j);
      const float x = f16_scale(sizes.x).factor, y = f16_scale(sizes.y).factor;
#pragma unroll
      for (int b = 0; b < kO; b += 2) {
        uint32_t word[4];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          word[2 * k] = F16::pack(o[b + k][4 * j] * x, o[b + k][4 * j + 2] * x);
          word[2 * k + 1] = F16::pack(o[b + k][4 * j + 1] * y, o[b + k][4 * j + 3] * y);
          to_row(word[2 * k], word[2 * k + 1]);
        }
        if (8 * j + row < used) *reinterpret_cast<uint4 *>(to + behind(j, b, true)) = {word[0], word[1], word[2], word[3]};
      }
    }
  }

  // Merges what lies in the place of a piece and `o`.
  __device__ __forceinline__ void merge_part(const volatile Item &item, int32_t piece, float (&o)[kO][kS]) {
    const Part part = this->part(item, piece);
    float *a = of_rows(C::kOffsetFactor), *b = a + C::kRows;
    if (group() == 0 && has_row()) {
      const rules::SoftmaxState left = thread() < used_rows(item) ? part.state(thread()) : rules::SoftmaxState(kNoKeys);
      const rules::MergeStep m = merge_in_log2(left, state());
      a[thread()] = m.a, b[thread()] = m.b;
      of_rows(C::kOffsetTop)[thread()] = m.merged.max;
      of_rows(C::kOffsetLargest)[thread()] = m.merged.sum;
    }
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
    const LaneRows rows = this->rows();
    const float4 *from = part.vector(first_row(), first_column());
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      const float2 left = rows.of(C::kOffsetFactor, j), right = rows.of(C::kOffsetFactor + C::kRows * 4, j);
      const rules::MergeStep first = {left.x, right.x, {}}, second = {left.y, right.y, {}};
#pragma unroll
      for (int b = 0; b < kO; ++b) {
        float4 x = ptx::load_global_16(from + behind(j, b, false), (second_row() ? second : first).a != 0.0f);
        to_row(x.x, x.z);
        to_row(x.y, x.w);
        o[b][4 * j] = merged(first, x.x, o[b][4 * j]);
        o[b][4 * j + 1] = merged(second, x.z, o[b][4 * j + 1]);
        o[b][4 * j + 2] = merged(first, x.y, o[b][4 * j + 2]);
        o[b][4 * j + 3] = merged(second, x.w, o[b][4 * j + 3]);
      }
      __syncwarp();  // no more reads at a time than there are registers for
    }
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
  }

  __device__ __forceinline__ int32_t merge_chunk(const volatile Item &item, float (&o)[kO][kS]) {
    return cuda::merge_chunk(
        item, [&](int32_t left) { merge_part(item, left, o); }, [&](int32_t piece) { write_state(item, piece, false); });
  }

  // 32 bytes of a row at a time, of sixteen columns.
  __device__ __forceinline__ void write_result(const volatile Item &item, const float (&o)[kO][kS]) const {
    const auto *places = reinterpret_cast<const int64_t *>(shared_ + C::kOffsetOut);
    if (group() == 0 && has_row()) {
      const bool inside = places[thread()] >= 0;
      const RowState state = {this->state(),
                              inside && reinterpret_cast<const int32_t *>(shared_ + C::kOffsetLimit)[thread()] > 0};
      of_rows(C::kOffsetFactor)[thread()] = row_scale(state, fp8_scale(p_));
      if (inside) {
        const rules::Row row = rules::unpack_row(item.row_tile * C::kRows + thread(), p_.num_heads);
        p_.lse[rules::lse_offset(p_, item.request, row)] = lse_of(state);
      }
    }
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
    const LaneRows rows = this->rows();
    const int column = first_of_warp() + ptx::lane() / 4 * 2;
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      const float2 factors = rows.of(C::kOffsetFactor, j);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t place = places[8 * j + ptx::lane() % 4 * 2 + i];
        if (place < 0) continue;
        const float factor = i == 0 ? factors.x : factors.y;
        uint16_t *to = static_cast<uint16_t *>(p_.out) + place + column;
#pragma unroll
        for (int b = 0; b < kO; ++b) {
          const float x = o[b][4 * j + i] * factor, y = o[b][4 * j + i + 2] * factor;
          *reinterpret_cast<uint32_t *>(to + behind_first(b)) = p_.q_dtype == DType::bf16 ? Bf16::pack(x, y) : F16::pack(x, y);
        }
      }
    }
  }

  const Launch &l_;
  const Problem &p_;
  char *const shared_;
};

}  // namespace mlaverify::cuda
