// The merge of partial results, in one place. A partial result over some keys of a row is a softmax state (max, sum) and
// acc = sum over its keys of exp(s - max) * v, not normalised; o = acc / sum and lse = max + log(sum).
//
// Merging is exact in real arithmetic but rounds, so the order is part of the rule: batch-invariant results merge the fixed
// chunks of split.h along a binary tree over chunk indices. A node of level l covers 2^l chunks, aligned; a node whose sibling
// has no keys is passed through bit for bit, so neither the length of the request nor where the work was cut can change a bit.
#pragma once

#include "rules/hd.h"

namespace mlaverify::rules {

struct SoftmaxState {
  float max;  // -inf: no key, or every score is -inf
  float sum;  // 0 in that case; NaN if a score is NaN
};

MLAVERIFY_HD bool weighs_nothing(SoftmaxState s) { return s.sum == 0.0f; }

// Weight of one of many parts whose largest maximum is `largest`: acc = sum of weight * acc_i, sum = sum of weight * sum_i,
// over the parts that weigh something. `exp` is that of the unit in which maxima are kept.
template <class Exp>
MLAVERIFY_HD float merge_weight(SoftmaxState part, float largest, Exp exp) {
  return exp(part.max - largest);
}

// a * x + b * y, rounded the same way wherever it is compiled for a GPU.
MLAVERIFY_HD float weighted_sum(float a, float x, float b, float y) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, x, __fmul_rn(b, y));
#else
  return a * x + b * y;
#endif
}

// acc of the merged state is a * acc_left + b * acc_right. Where one side weighs nothing, the other must be taken over as it is
// (its acc may hold anything): `a` or `b` is then exactly 0 and the other exactly 1.
struct MergeStep {
  float a, b;
  SoftmaxState merged;
};

template <class Exp>
MLAVERIFY_HD MergeStep merge_states(SoftmaxState left, SoftmaxState right, Exp exp) {
  if (weighs_nothing(right)) return {1.0f, 0.0f, left};
  if (weighs_nothing(left)) return {0.0f, 1.0f, right};
  const float m = max(left.max, right.max);
  const float a = merge_weight(left, m, exp);
  const float b = merge_weight(right, m, exp);
  return {a, b, {m, weighted_sum(a, left.sum, b, right.sum)}};
}

// A node of the merge tree: chunks [first, first + 2^level).
struct TreeNode {
  int64_t first;
  int32_t level;
};

MLAVERIFY_HD bool siblings(TreeNode left, TreeNode right) {
  return left.level == right.level && (left.first >> left.level) % 2 == 0 &&
         right.first == left.first + (int64_t{1} << left.level);
}

MLAVERIFY_HD TreeNode parent(TreeNode left) { return {left.first, left.level + 1}; }

// A worker that goes through neighbouring chunks from `first` on, and merges what is finished: whether it has the left sibling of a node, and
// which that is.
MLAVERIFY_HD TreeNode left_sibling(TreeNode right) { return {right.first - (int64_t{1} << right.level), right.level}; }
MLAVERIFY_HD bool merges_left(TreeNode n, int64_t first) {
  return (n.first >> n.level) % 2 == 1 && left_sibling(n).first >= first;
}

// A node behind which there are no keys, passed through for as long as it has no left sibling but something of the worker's on its left.
MLAVERIFY_HD TreeNode pass_through(TreeNode n, int64_t first) {
  while ((n.first >> n.level) % 2 == 0 && n.first > first) ++n.level;
  return n;
}

// The largest node that begins at chunk `begin` and ends at or before `end` (begin < end). Merging a contiguous range of chunks
// in order leaves exactly these, one after the other.
MLAVERIFY_HD TreeNode largest_node(int64_t begin, int64_t end) {
  TreeNode n = {begin, 0};
  while ((begin >> n.level) % 2 == 0 && begin + (int64_t{2} << n.level) <= end) ++n.level;
  return n;
}

// Nodes that can wait at once while the chunks of a contiguous range are merged in order, the newest chunk included: a range
// of n chunks falls into less than 2 * bits(n) aligned nodes.
MLAVERIFY_HD int32_t max_waiting_nodes(int64_t chunks) {
  int32_t bits = 0;
  for (int64_t n = chunks; n > 0; n >>= 1) ++bits;
  return 2 * bits + 1;
}

static_assert(siblings({4, 1}, {6, 1}) && !siblings({2, 1}, {4, 1}) && !siblings({0, 0}, {1, 1}) && siblings({0, 0}, {1, 0}));

}  // namespace mlaverify::rules
