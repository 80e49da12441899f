// The split rule, in one place (docs/mask-and-split.md): where the keys of a request are cut.
#pragma once

#include "rules/hd.h"

namespace mlaverify::rules {

struct KeyRange {
  int64_t begin;
  int64_t end;  // exclusive; begin == end: empty
};

// Keys of one split when a call asks for num_kv_splits >= 1: a cap, so that a count chosen once serves every later length.
MLAVERIFY_HD int64_t split_len(int64_t seq_len, int32_t num_kv_splits, int32_t min_split_len, int32_t split_align) {
  const int64_t share = ceil_div<int64_t>(max<int64_t>(seq_len, 0), num_kv_splits);
  return round_up<int64_t>(max<int64_t>(max<int64_t>(share, min_split_len), 1), split_align);
}

// Keys of split `split` (0 <= split < num_kv_splits). Splits past the end are empty.
MLAVERIFY_HD KeyRange split_range(int64_t seq_len, int32_t num_kv_splits, int32_t min_split_len, int32_t split_align,
                                  int32_t split) {
  const int64_t length = split_len(seq_len, num_kv_splits, min_split_len, split_align);
  const int64_t total = max<int64_t>(seq_len, 0);
  return {min(split * length, total), min((split + 1) * length, total)};
}

// The batch-invariant cut: chunk c has keys [c*chunk_keys, (c+1)*chunk_keys), whatever the request's length and everything
// else.
MLAVERIFY_HD int64_t num_chunks(int64_t keys, int32_t chunk_keys) {
  return ceil_div<int64_t>(max<int64_t>(keys, 0), chunk_keys);
}

MLAVERIFY_HD KeyRange chunk_range(int64_t keys, int32_t chunk_keys, int64_t chunk) {
  return {min(chunk * chunk_keys, keys), min((chunk + 1) * chunk_keys, keys)};
}

constexpr int32_t kInvariantLog2 = 10,
                  kInvariantKeys = 1 << kInvariantLog2;  // keys of a chunk in that mode of the GPU backends

static_assert(split_len(100, 3, 16, 16) == 48 && split_len(5, 8, 64, 64) == 64 && split_len(0, 4, 1, 1) == 1);
static_assert(split_range(100, 3, 16, 16, 2).begin == 96 && split_range(100, 3, 16, 16, 2).end == 100);
static_assert(split_range(5, 8, 64, 64, 1).begin == 5 && split_range(5, 8, 64, 64, 1).end == 5, "past the end: empty");

}  // namespace mlaverify::rules
