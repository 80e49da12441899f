// The merge of partial results, and the tree along which chunks are merged.
#include "rules/merge.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "rules/number.h"

namespace mlaverify::rules {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

float exp_of(float x) { return std::exp(x); }

// A partial result with one value column.
struct Part {
  SoftmaxState state;
  float acc;
};

Part merged(Part l, Part r) {
  const MergeStep step = merge_states(l.state, r.state, exp_of);
  if (step.a == 1.0f && step.b == 0.0f) return {step.merged, l.acc};
  if (step.a == 0.0f && step.b == 1.0f) return {step.merged, r.acc};
  return {step.merged, step.a * l.acc + step.b * r.acc};
}

double out(Part p) { return static_cast<double>(p.acc) / static_cast<double>(p.state.sum); }
double lse(Part p) { return static_cast<double>(p.state.max) + std::log(static_cast<double>(p.state.sum)); }

Part part_of(const std::vector<double> &scores, const std::vector<double> &values, std::size_t begin, std::size_t end) {
  double m = -static_cast<double>(kInf), sum = 0, acc = 0;
  for (std::size_t i = begin; i < end; ++i) m = std::max(m, scores[i]);
  for (std::size_t i = begin; i < end; ++i) {
    sum += std::exp(scores[i] - m);
    acc += std::exp(scores[i] - m) * values[i];
  }
  return {{static_cast<float>(m), static_cast<float>(sum)}, static_cast<float>(acc)};
}

// Two shards with partition sums 2 and 8 and outputs 0 and 1: natural logarithms give 0.8, a mixed base another value.
TEST(Merge, WeighsByThePartitionSum) {
  const Part a = {{0, 2}, 0}, b = {{0, 8}, 8};
  EXPECT_FLOAT_EQ(static_cast<float>(out(merged(a, b))), 0.8f);
  EXPECT_FLOAT_EQ(static_cast<float>(lse(merged(a, b))), std::log(10.0f));
  // The same with another maximum: sums 2 = e^(ln 2) * 1.
  const Part c = {{std::log(2.0f), 1}, 0};
  EXPECT_FLOAT_EQ(static_cast<float>(out(merged(c, b))), 0.8f);
}

// Bit for bit, whatever stands in the acc of the empty side.
TEST(Merge, AnEmptySideLeavesTheOtherAsItIs) {
  const SoftmaxState empty = {-kInf, 0};
  const float payload = float_from_bits(0x7fabcdefu);
  for (const SoftmaxState s :
       {SoftmaxState{3.5f, 1.25f}, SoftmaxState{-1e30f, 1}, SoftmaxState{kInf, float_from_bits(0x7fc00001u)},
        SoftmaxState{-kInf, float_from_bits(0xffc00002u)}}) {
    for (const float acc : {0.1f, -0.0f, payload}) {
      for (const float junk : {payload, kInf, 1.0f}) {
        for (const Part &got : {merged({s, acc}, {empty, junk}), merged({empty, junk}, {s, acc})}) {
          EXPECT_EQ(bits_from_float(got.state.max), bits_from_float(s.max));
          EXPECT_EQ(bits_from_float(got.state.sum), bits_from_float(s.sum));
          EXPECT_EQ(bits_from_float(got.acc), bits_from_float(acc));
        }
      }
    }
  }
  EXPECT_TRUE(weighs_nothing(merge_states(empty, empty, exp_of).merged));
  EXPECT_EQ(merge_states(empty, empty, exp_of).merged.max, -kInf);
}

TEST(Merge, NanIsNotLost) {
  const SoftmaxState nan = {2, std::nanf("")}, one = {5, 1};
  EXPECT_TRUE(std::isnan(merge_states(nan, one, exp_of).merged.sum));
  EXPECT_TRUE(std::isnan(merge_states(one, nan, exp_of).merged.sum));
  EXPECT_TRUE(std::isnan(merge_states({-kInf, std::nanf("")}, one, exp_of).merged.sum));
  EXPECT_TRUE(std::isnan(merge_states(one, {kInf, std::nanf("")}, exp_of).merged.sum));
}

RC_GTEST_PROP(Merge, IsTheSoftmaxOfTheWhole, ()) {
  const auto n = *rc::gen::inRange<std::size_t>(2, 40);
  const auto number = rc::gen::map(rc::gen::inRange(-60000, 60001), [](int x) { return x * 1e-3; });
  const auto scores = *rc::gen::container<std::vector<double>>(n, number);
  const auto values = *rc::gen::container<std::vector<double>>(n, number);
  const Part whole = part_of(scores, values, 0, n);
  // Any binary tree over contiguous parts, the empty part included.
  const auto cut = *rc::gen::inRange<std::size_t>(0, n + 1), second = *rc::gen::inRange<std::size_t>(cut, n + 1);
  const Part a = part_of(scores, values, 0, cut), b = part_of(scores, values, cut, second),
             c = part_of(scores, values, second, n);
  double size = 0;
  for (double v : values) size = std::max(size, std::fabs(v));
  for (const Part &got : {merged(merged(a, b), c), merged(a, merged(b, c))}) {
    RC_ASSERT(std::fabs(out(got) - out(whole)) <= 2e-6 * size);
    RC_ASSERT(std::fabs(lse(got) - lse(whole)) <= 1e-6 * std::max(1.0, std::fabs(lse(whole))));
  }
}

// ---- The tree -------------------------------------------------------------------------------------------------------

TEST(MergeTree, LargestNodeByBruteForce) {
  for (int64_t begin = 0; begin < 64; ++begin) {
    for (int64_t end = begin + 1; end <= 80; ++end) {
      int32_t level = 0;
      for (int32_t l = 0; l < 8; ++l) {
        if (begin % (int64_t{1} << l) == 0 && begin + (int64_t{1} << l) <= end) level = l;
      }
      EXPECT_EQ(largest_node(begin, end).first, begin);
      EXPECT_EQ(largest_node(begin, end).level, level) << begin << " " << end;
    }
  }
}

TEST(MergeTree, SiblingsHaveOneParent) {
  for (int32_t level = 0; level < 4; ++level) {
    const int64_t size = int64_t{1} << level;
    for (int64_t a = 0; a < 64; a += size) {
      for (int64_t b = 0; b < 64; b += size) {
        EXPECT_EQ(siblings({a, level}, {b, level}), a % (2 * size) == 0 && b == a + size);
        EXPECT_FALSE(siblings({a, level}, {b, level + 1}));
      }
    }
    EXPECT_EQ(parent({0, level}).level, level + 1);
  }
}

// What a stack that merges siblings as soon as they meet holds, and how high it gets.
struct Stack {
  std::vector<TreeNode> nodes;
  std::size_t highest = 0;
  void push(TreeNode n) {
    nodes.push_back(n);
    highest = std::max(highest, nodes.size());
    while (nodes.size() > 1 && siblings(nodes[nodes.size() - 2], nodes.back())) {
      nodes.pop_back();
      nodes.back() = parent(nodes.back());
    }
  }
};

TEST(MergeTree, InOrderMergingLeavesTheLargestNodesWithinTheBound) {
  for (int64_t begin = 0; begin <= 70; ++begin) {
    for (int64_t end = begin + 1; end <= begin + 140; ++end) {
      Stack stack;
      for (int64_t c = begin; c < end; ++c) stack.push({c, 0});
      EXPECT_LE(stack.highest, static_cast<std::size_t>(max_waiting_nodes(end - begin)));
      int64_t at = begin;
      for (const TreeNode &n : stack.nodes) {
        EXPECT_EQ(n.first, at);
        EXPECT_EQ(n.level, largest_node(at, end).level) << begin << " " << end;
        at += int64_t{1} << n.level;
      }
      EXPECT_EQ(at, end);
    }
  }
}

// A worker that merges with what is finished on its left keeps the same nodes as the stack; the last chunk of all merges what is left.
TEST(MergeTree, MergingToTheLeftKeepsTheNodesOfTheStack) {
  for (int64_t begin = 0; begin <= 40; ++begin) {
    for (int64_t end = begin + 1; end <= begin + 70; ++end) {
      for (const bool last : {false, true}) {
        std::map<int64_t, TreeNode> kept;  // by first chunk
        Stack stack;
        for (int64_t c = begin; c < end; ++c) {
          stack.push({c, 0});
          TreeNode node = {c, 0};
          for (;;) {
            if (last && c + 1 == end) node = pass_through(node, begin);
            if (!merges_left(node, begin)) break;
            const TreeNode left = left_sibling(node);
            ASSERT_EQ(kept.count(left.first), 1u);
            // What was passed through is smaller than its place in the tree.
            ASSERT_EQ(kept[left.first].level, left.level);
            ASSERT_EQ(kept.erase(node.first), node.first == c ? 0u : 1u);
            kept.erase(left.first);
            node = parent(left);
            kept[node.first] = node;
          }
          kept[node.first] = node;
        }
        if (!last) {
          ASSERT_EQ(kept.size(), stack.nodes.size());
          for (const TreeNode &n : stack.nodes) EXPECT_EQ(kept.at(n.first).level, n.level);
        } else if (begin == 0) {
          ASSERT_EQ(kept.size(), 1u) << end;
          EXPECT_EQ(kept.count(0), 1u);
        }
      }
    }
  }
}

// Shares of the chunks merged apart and then joined give the nodes of the whole: where the work is cut changes nothing.
RC_GTEST_PROP(MergeTree, CutsDoNotShow, ()) {
  const auto total = *rc::gen::inRange<int64_t>(1, 300);
  auto cuts = *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, total + 1));
  cuts.push_back(0);
  cuts.push_back(total);
  std::sort(cuts.begin(), cuts.end());
  Stack whole, joined;
  for (int64_t c = 0; c < total; ++c) whole.push({c, 0});
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    Stack share;
    for (int64_t c = cuts[i - 1]; c < cuts[i]; ++c) share.push({c, 0});
    for (const TreeNode &n : share.nodes) joined.push(n);
  }
  RC_ASSERT(joined.highest <= static_cast<std::size_t>(max_waiting_nodes(total)));
  RC_ASSERT(joined.nodes.size() == whole.nodes.size());
  for (std::size_t i = 0; i < whole.nodes.size(); ++i) {
    RC_ASSERT(joined.nodes[i].first == whole.nodes[i].first);
    RC_ASSERT(joined.nodes[i].level == whole.nodes[i].level);
  }
}

}  // namespace
}  // namespace mlaverify::rules
