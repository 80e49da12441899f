// Planning ahead of a launch: how many KV splits a captured graph may bake in.
#pragma once

#include "rules/hd.h"

namespace mlaverify::rules {

MLAVERIFY_HD int64_t verify_row_blocks(int32_t qlen, int32_t num_heads, int32_t block_h) {
  return ceil_div<int64_t>(static_cast<int64_t>(qlen) * num_heads, block_h);
}

constexpr int64_t kMaxPlanningSlots = int64_t{1} << 20;
constexpr int64_t kMaxPlanningPrograms = int64_t{1} << 40;

// The documented formula, step by step. Needs qlen >= 1, num_heads >= 0, sm_count >= 1, block_h >= 1, occupancy * sm_count
// within 0 ... kMaxPlanningSlots and at most kMaxPlanningPrograms programs.
MLAVERIFY_HD int32_t verify_num_kv_splits(int64_t max_seq_len, int64_t batch, int32_t qlen, int32_t num_heads, int32_t sm_count,
                                          int32_t block_h, double occupancy, int32_t min_work_per_split, int32_t max_splits) {
  const int64_t programs = max<int64_t>(max<int64_t>(1, batch) * verify_row_blocks(qlen, num_heads, block_h), 1);
  const int64_t ideal = ceil_div<int64_t>(max<int64_t>(1, max_seq_len), max<int32_t>(1, min_work_per_split));
  const int64_t slots = max<int64_t>(1, static_cast<int64_t>(occupancy * sm_count));
  int64_t n = 1;
  if (programs <= slots) {
    n = slots / programs;  // one split of every request fits one dispatch round
  } else {
    // The idle tail of the last round per split. From k = slots on it cannot fall any more: slots rounds of programs fill up
    // exactly.
    const int64_t limit = min<int64_t>(max<int64_t>(1, min<int64_t>(ideal, max_splits)), slots);
    const auto cost = [programs, slots](int64_t k) {
      return static_cast<double>(ceil_div<int64_t>(k * programs, slots)) / static_cast<double>(k);
    };
    double best = cost(1);
    for (int64_t k = 2; k <= limit; ++k) best = min(best, cost(k));
    while (!(cost(n) <= best * 1.05)) ++n;
  }
  return static_cast<int32_t>(max<int64_t>(1, min(min(ideal, n), static_cast<int64_t>(sm_count) * 2)));
}

static_assert(verify_num_kv_splits(131072, 1, 1, 16, 132, 64, 1.0, 64, 8) == 132);

}  // namespace mlaverify::rules
