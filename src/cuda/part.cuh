// Partial results in the workspace (rules/workspace.h), and what the kernels share to merge them.
#pragma once

#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "cuda/schedule.cuh"
#include "rules/merge.h"
#include "rules/workspace.h"

namespace mlaverify::cuda {

class Part {
 public:
  __device__ __forceinline__ Part(const Launch &l, const rules::GpuPartLayout &layout, rules::PartPlace at)
      : layout_(layout),
        state_(l.states + rules::state_offset(layout, at, 0)),
        acc_(static_cast<float4 *>(l.accs) + rules::acc_at(layout, at)) {}

  __device__ __forceinline__ rules::SoftmaxState state(int32_t row) const {
    const float2 s = *reinterpret_cast<const float2 *>(state_ + row * layout_.pieces);
    return {s.x, s.y};
  }
  __device__ __forceinline__ void set_state(int32_t row, rules::SoftmaxState s) const {
    *reinterpret_cast<float2 *>(state_ + row * layout_.pieces) = {s.max, s.sum};
  }
  // Of an acc in f16: what the row's numbers of a range of columns are to be multiplied with.
  __device__ __forceinline__ void set_scale(int32_t row, int range, float scale) const {
    state_[row * layout_.pieces].scale[range] = scale;
  }

  // The 16 bytes of a block that belong to a lane of a warp whose m16n8 fragments of rows row, ... and columns column, ..., column + 8, ...
  // these are (both whole blocks' first ones): two numbers of each fragment.
  __device__ __forceinline__ float4 *fragments(int32_t row, int32_t column) const {
    return acc_ + rules::acc_vector(layout_, row, column) + ptx::lane();
  }
  // The 16 bytes with that row and column.
  __device__ __forceinline__ float4 *vector(int32_t row, int32_t column) const {
    return acc_ + rules::acc_vector(layout_, row, column);
  }
  // One number in f32.
  __device__ __forceinline__ float *number(int32_t row, int32_t column) const {
    return reinterpret_cast<float *>(acc_ + rules::acc_vector(layout_, row, column)) + rules::acc_number(layout_, column);
  }

 private:
  const rules::GpuPartLayout layout_;
  rules::PartState *const state_;
  float4 *const acc_;
};

constexpr rules::SoftmaxState kNoKeys = {-__builtin_huge_valf(), 0.0f};

// The size of a finite number; NaN of others, which fmaxf() drops. (By a product, x * 0: comparisons, of which the maximum has one already,
// have half the rate.)
__device__ __forceinline__ float finite_size(float x) { return fabsf(__fmaf_rn(x, 0.0f, x)); }

// A power of two that brings numbers of a row, whose largest finite size is `largest`, to f16: that one comes to lie between 2^14 and 2^15,
// so that none overflows, and one 2^28 times smaller keeps all its bits. `back`: its inverse. Both are normal numbers. 1 for zeros: `back`
// times a small weight must not be 0 for what is not finite beside them.
struct F16Scale {
  float factor, back;
};
__device__ __forceinline__ F16Scale f16_scale(float largest) {
  const uint32_t exponent = largest == 0.0f ? 127 + 14 : max(__float_as_uint(largest) >> 23, 15u);
  return {__uint_as_float(127 + 127 + 14 - exponent << 23), __uint_as_float(exponent - 14 << 23)};
}

// What weighs nothing on the left, where it may never have been written, is not taken over.
__device__ __forceinline__ rules::MergeStep merge_in_log2(rules::SoftmaxState left, rules::SoftmaxState right) {
  if (rules::weighs_nothing(left)) return {0.0f, 1.0f, right};
  return rules::merge_states(left, right, ptx::exp2_approx);
}

// A number of the merged acc. What weighs nothing may hold anything.
__device__ __forceinline__ float merged(const rules::MergeStep &m, float left, float right) {
  float x = rules::weighted_sum(m.a, left, m.b, right);  // selected from, not branched to
  x = m.a == 0.0f ? right : x;
  return m.b == 0.0f ? left : x;
}

__device__ __forceinline__ float4 merged(const rules::MergeStep &m, float4 left, float4 right) {
  return {merged(m, left.x, right.x), merged(m, left.y, right.y), merged(m, left.z, right.z), merged(m, left.w, right.w)};
}

// Whether an item is one of several chunks of a row tile.
__device__ __forceinline__ bool is_chunk(const Launch &l, const volatile Item &item) { return l.chunks > 0 && item.piece >= 0; }

// Whether a partial result has an acc: where it weighs nothing, that is not looked at.
__device__ __forceinline__ bool has_acc(const Launch &l, const volatile Item &item) {
  return item.key_begin < item.key_end || l.chunks > 0;
}

// Batch-invariant mode: an item of a block is done, and merged along the tree with the block's items before it, by merge(piece), which gets
// the piece of the series that is on the left; clear(piece) is called for each whose place's content has gone into another one or that is not
// used. Returns the piece for what has come out, negative if it is the whole result. merge() must not return before all threads have read
// the place.
template <class Merge, class Clear>
__device__ __forceinline__ int32_t merge_chunk(const volatile Item &item, Merge merge, Clear clear) {
  int32_t first = item.chunk, level = 0;  // fits 32 bits, and takes fewer registers
  for (;;) {
    rules::TreeNode node = {first, level};
    if (item.last_chunk) node = rules::pass_through(node, item.first_chunk);
    if (!rules::merges_left(node, item.first_chunk)) break;
    clear(static_cast<int32_t>(ptx::not_hoisted(static_cast<uint32_t>(first))));  // (else ptxas spills)
    const rules::TreeNode left = rules::left_sibling(node);
    first = static_cast<int32_t>(left.first);
    merge(first);
    level = node.level + 1;
  }
  return first == 0 && item.last_chunk ? -1 : first;
}

}  // namespace mlaverify::cuda
