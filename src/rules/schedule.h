// The GPU schedule, in one place. The work of a call is a line of key tiles: for each request, for each of its row tiles, the
// tiles of the keys that the request needs. num_kv_splits = 0 cuts the line in equal contiguous shares, one a block of threads,
// wherever the borders fall; num_kv_splits >= 1 cuts each request by the split rule (split.h). Both are found on the device
// from the device lengths, so that a captured graph replays right for other lengths.
#pragma once

#include "rules/hd.h"
#include "rules/mask.h"
#include "rules/pack.h"
#include "rules/problem.h"

namespace mlaverify::rules {

// Shares of a line of `total` tiles: `max_shares` at most, of `min_tiles` tiles at least where there are so many.
MLAVERIFY_HD int32_t num_shares(int64_t total, int32_t max_shares, int32_t min_tiles) {
  return static_cast<int32_t>(clamp<int64_t>(total / min_tiles, 1, max_shares));
}

// First tile of share `share`; share `shares` gives the end of the line. No share is empty unless there are fewer tiles than
// shares.
MLAVERIFY_HD int64_t share_begin(int64_t total, int32_t shares, int32_t share) { return total * share / shares; }

// Length of the line of one request, per row tile.
MLAVERIFY_HD int32_t key_tiles(const Problem &p, int32_t request, int32_t tile_keys) {
  return ceil_div(needed_keys(p, request), tile_keys);
}

// A place in the line.
struct TilePosition {
  int32_t request;
  int32_t row_tile;
  int32_t key_tile;
};

// Where partial results of a share go: it can end with the first tiles of a row tile that a later share continues (slot 1), and
// begin with tiles of one that an earlier share began (slot 0).
MLAVERIFY_HD int64_t part_slot(int32_t share, bool begins_here) {
  return 2 * static_cast<int64_t>(share) + (begins_here ? 1 : 0);
}

static_assert(num_shares(0, 132, 2) == 1 && num_shares(5, 132, 2) == 2 && num_shares(100000, 132, 2) == 132);
static_assert(share_begin(10, 3, 0) == 0 && share_begin(10, 3, 1) == 3 && share_begin(10, 3, 3) == 10);

}  // namespace mlaverify::rules
