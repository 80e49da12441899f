// Merges the partial results of one row tile along the tree of rules/merge.h while they come in key order.
#pragma once

#include "cpu/isa.h"

namespace mlaverify::cpu {

class MergeStack {
 public:
  MergeStack(const Isa &isa, const Problem &p, const rules::CpuThreadLayout &layout, int32_t rows)
      : isa_(isa), p_(p), layout_(layout), rows_(rows) {}

  int32_t size() const { return size_; }

  // `values` stays in place; it takes what is merged into it later.
  void push(rules::TreeNode node, const Node &values) {
    nodes_[size_] = node;
    values_[size_++] = values;
    while (size_ > 1 && rules::siblings(nodes_[size_ - 2], nodes_[size_ - 1])) merge_last();
  }

  // After the last chunk: what is left has no siblings to come.
  const Node &merge_all() {
    while (size_ > 1) merge_last();
    return values_[0];
  }

 private:
  void merge_last() {
    isa_.merge(p_, layout_, rows_, values_[size_ - 2], values_[size_ - 1]);
    nodes_[size_ - 2] = rules::parent(nodes_[size_ - 2]);
    --size_;
  }

  static constexpr int32_t kMaxNodes = rules::max_waiting_nodes(INT32_MAX);

  const Isa &isa_;
  const Problem &p_;
  const rules::CpuThreadLayout &layout_;
  int32_t rows_;
  int32_t size_ = 0;
  rules::TreeNode nodes_[kMaxNodes];
  Node values_[kMaxNodes];
};

}  // namespace mlaverify::cpu
