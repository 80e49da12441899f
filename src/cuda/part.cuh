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
  __device__ __forceinline__ Part(const Launch &l, const rules::GpuPartLayout &layout, int64_t slot)
      : at_(l.parts + slot * layout.size), layout_(layout) {}

  __device__ __forceinline__ rules::SoftmaxState state(int32_t row) const {
    return {at_[layout_.max + row], at_[layout_.sum + row]};
  }
  __device__ __forceinline__ void set_state(int32_t row, rules::SoftmaxState s) const {
    at_[layout_.max + row] = s.max;
    at_[layout_.sum + row] = s.sum;
  }

  // The numbers of a block that belong to a lane of a warp whose m16n8 fragments of rows row, ... and columns column, ..., column + 8, ...
  // these are (both whole blocks' first ones): two of the first fragment, two of the second.
  __device__ __forceinline__ float4 *fragments(int32_t row, int32_t column) const {
    return reinterpret_cast<float4 *>(at_ + rules::acc_block(layout_, row, column)) + ptx::lane();
  }
  __device__ __forceinline__ float *number(int32_t row, int32_t column) const {
    return at_ + rules::acc_offset(layout_, row, column);
  }

 private:
  float *const at_;
  const rules::GpuPartLayout layout_;
};

constexpr rules::SoftmaxState kNoKeys = {-__builtin_huge_valf(), 0.0f};

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
__device__ __forceinline__ bool is_chunk(const Launch &l, const volatile Item &item) { return l.chunks > 0 && item.part >= 0; }

// Whether a partial result has an acc: where it weighs nothing, that is not looked at.
__device__ __forceinline__ bool has_acc(const Launch &l, const volatile Item &item) {
  return item.key_begin < item.key_end || l.chunks > 0;
}

// Batch-invariant mode: an item of a block is done, and merged along the tree with the block's items before it, by merge(left), which gets the
// slot of what is on the left; clear(slot) is called for each slot whose content has gone into another one or that is not used. Returns
// the slot for what has come out, negative if it is the whole result. merge() must not return before all threads have read the slot.
template <class Merge, class Clear>
__device__ __forceinline__ int64_t merge_chunk(const Launch &l, const volatile Item &item, Merge merge, Clear clear) {
  const int64_t slots = first_chunk_slot(l, item.request, item.row_tile);
  rules::TreeNode node = {item.chunk, 0};
  for (;;) {
    if (item.last_chunk) node = rules::pass_through(node, item.first_chunk);
    if (!rules::merges_left(node, item.first_chunk)) break;
    clear(slots + node.first * l.row_group);
    const rules::TreeNode left = rules::left_sibling(node);
    merge(slots + left.first * l.row_group);
    node = rules::parent(left);
  }
  return node.first == 0 && item.last_chunk ? -1 : slots + node.first * l.row_group;
}

}  // namespace mlaverify::cuda
