// The GPU schedule, in one place. The work of a call is a line of key tiles: for each request, for each of its row tiles, the
// tiles of the keys that the request needs. Row tiles of a request can be taken in groups, each by that many blocks of threads at
// the same time, so that its keys come from memory once and for the other blocks from the L2 cache; the line then counts groups
// instead of row tiles. num_kv_splits = 0 cuts the line in equal contiguous shares, one a group of blocks, wherever the borders
// fall; num_kv_splits >= 1 cuts each request by the split rule (split.h). In the batch-invariant mode the line counts chunks
// (split.h) instead of tiles: shares begin where chunks do, and merge what they have of a row along the tree of merge.h. All is found on
// the device from the device lengths, so that a captured graph replays right for other lengths.
#pragma once

#include "rules/hd.h"
#include "rules/mask.h"
#include "rules/pack.h"
#include "rules/problem.h"

namespace mlaverify::rules {

// The tiles of a share take time one after the other, and each share makes a partial result, which is written and read again. Let that
// take as long as c tiles: of t tiles and s shares, t / s + c s is least where s s = t / c. This is 1 / c, for groups of `row_group` row
// tiles; of one row tile it stands in a row of the config table, fitted to an H200 (docs/notes/2026-11-30-hopper-kernel.md).
MLAVERIFY_HD int32_t shares_squared_per_tile(int32_t of_row_tile, int32_t row_group) { return of_row_tile / row_group; }

// The most shares, of `max_shares` less a twentieth at least, that have as many whole jobs each; max_shares if there are none.
MLAVERIFY_HD int32_t whole_shares(int32_t max_shares, int64_t jobs) {
  for (int32_t n = max_shares; n * 20 >= max_shares * 19; --n) {
    if (jobs % n == 0) return n;
  }
  return max_shares;
}

// What a device chooses the number of shares from, for `jobs` row groups (one or more). max_shares < 2^14.
struct ShareChoice {
  int32_t max_shares, whole_shares, squared_per_tile;
  int32_t jobs;
};

// Shares of a line of `total` tiles; `equal`: all jobs are as long. Then each share has whole jobs, or a job is cut in equal shares, if
// that leaves no more than a twentieth of a busy GPU idle: cut anywhere else, most shares would have pieces of two jobs.
MLAVERIFY_HD int32_t num_shares(const ShareChoice &c, int32_t total, bool equal) {
  const int32_t most = c.max_shares * c.max_shares;
  const auto squared = static_cast<int32_t>(min<int64_t>(int64_t{total} * c.squared_per_tile, most));
  int32_t n = 0;  // the root
  for (int32_t step = 1 << 13; step > 0; step /= 2) {
    if ((n + step) * (n + step) <= squared) n += step;
  }
  n = min(c.max_shares, max(c.jobs, n));
  if (equal && c.jobs > n) n = c.whole_shares;
  if (equal && c.jobs < n) {
    const int32_t idle = n - quotient_31(n, c.jobs) * c.jobs;
    if (n < c.max_shares || idle * 20 <= n) n -= idle;
  }
  return clamp(n, 1, max(total, 1));
}

// The borders between shares that may cut a job: where all jobs are as long, and all shares, and one is a multiple of the other, those between
// jobs are not among them.
struct CuttingBorders {
  int32_t count;
  int32_t of_job;  // 0: all borders

  // Number `i`: the border before which share.
  MLAVERIFY_HD int32_t at(int32_t i) const { return i + 1 + (of_job > 0 ? quotient_31(i, of_job) : 0); }
};

MLAVERIFY_HD CuttingBorders cutting_borders(int32_t jobs, int32_t total, int32_t shares, bool equal) {
  const int32_t larger = max(shares, jobs), smaller = min(shares, jobs), ratio = quotient_31(larger, smaller);
  if (!equal || ratio * smaller != larger || quotient_31(total, shares) * shares != total) return {shares - 1, 0};
  return shares > jobs ? CuttingBorders{shares - jobs, ratio - 1} : CuttingBorders{0, 0};
}

// First tile of share `share`; share `shares` gives the end of the line. No share is empty unless there are fewer tiles than
// shares; the first ones may have a tile more.
MLAVERIFY_HD int32_t share_begin(int32_t total, int32_t shares, int32_t share) {
  const int32_t least = quotient_31(total, shares);
  return share * least + min(share, total - least * shares);
}

// The first share that begins at tile `at` or behind it, 0 <= at <= total, shares <= total.
MLAVERIFY_HD int32_t first_share_from(int32_t total, int32_t shares, int32_t at) {
  const int32_t least = quotient_31(total, shares), longer = total - least * shares, long_tiles = longer * (least + 1);
  const bool among = at <= long_tiles;
  const int32_t length = among ? least + 1 : least, behind = among ? 0 : long_tiles;
  return (among ? 0 : longer) + quotient_31(at - behind + length - 1, length);
}

// Length of the line of one request, per row tile, in tiles of 2^tile_log2 keys.
MLAVERIFY_HD int32_t key_tiles(const Problem &p, int32_t request, int32_t tile_log2) {
  const int32_t keys = needed_keys(p, request);
  return (keys >> tile_log2) + (keys & ((1 << tile_log2) - 1) ? 1 : 0);
}

// Tiles at least as long that keep a line of `row_groups` times `keys` keys short enough to be counted in 31 bits, with room for sums.
MLAVERIFY_HD int32_t line_tile_log2(int32_t tile_log2, int64_t row_groups, int64_t keys) {
  while (tile_log2 < 30 && row_groups * ((keys >> tile_log2) + 1) >= int64_t{1} << 30) ++tile_log2;
  return tile_log2;
}

// A place in the line.
struct TilePosition {
  int32_t request;
  int32_t row_tile;
  int32_t key_tile;
};

// The row tile (or group of them) that the border before a share cuts, and all shares that have tiles of it: `first_border` is the
// first of `borders` borders inside it, which are those before shares first_border, first_border + 1, ...; 0 of them: the border cuts
// nothing.
struct CutTile {
  int32_t request;
  int32_t row_tile;
  int32_t first_border;
  int32_t borders;
};

// Of the border at tile `begin` of the line, which is at the place `at`, in a row tile of `tiles` tiles.
MLAVERIFY_HD CutTile cut_tile(int32_t total, int32_t shares, int32_t begin, TilePosition at, int32_t tiles) {
  if (at.key_tile == 0) return {at.request, at.row_tile, 0, 0};
  const int32_t first = begin - at.key_tile;
  const int32_t from = first_share_from(total, shares, first + 1), to = first_share_from(total, shares, first + tiles);
  return {at.request, at.row_tile, from, to - from};
}

// Row tiles of a group: up to four, as few idle places as possible in the last group, and then as large as possible.
MLAVERIFY_HD int32_t row_group(int32_t row_tiles) {
  int32_t best = 1, idle = row_tiles;
  for (int32_t g = 2; g <= 4; ++g) {
    const int32_t places = ceil_div(row_tiles, g) * g - row_tiles;
    if (row_tiles >= g && places <= idle) {
      best = g;
      idle = places;
    }
  }
  return best;
}

// Keys of the boxes that tiles of `tile_keys` keys are copied by where pages and tiles fit each other: a tile lies in one page, or is
// made of whole pages of at least 8 keys (the swizzle repeats every 8 rows). 0: they don't.
MLAVERIFY_HD int32_t box_keys(int32_t page_size, int32_t tile_keys) {
  if (page_size % tile_keys == 0) return tile_keys;
  return page_size >= 8 && tile_keys % page_size == 0 ? page_size : 0;
}

// Where the partial result of one row tile over one piece of its keys goes: to a series of places (workspace.h), which has one for each
// piece, those of neighbouring pieces next to each other.
struct PartPlace {
  int32_t series, piece;
};

// Of a share: it can end with the first tiles of a row tile that a later share continues, and begin with tiles of one that an earlier
// share began; `member` is the place of the row tile in its group. Parts of a row tile but the first are in one series, in key order.
MLAVERIFY_HD PartPlace share_place(int32_t share, bool begins_here, int32_t group, int32_t member) {
  return {(begins_here ? group : 0) + member, share};
}

// Of a piece by the split rule, or of a chunk: a series for every place of a row tile in the groups of each request.
MLAVERIFY_HD PartPlace piece_place(int32_t request, int32_t row_groups, int32_t group, int32_t row_tile, int32_t piece) {
  return {request * (row_groups * group) + row_tile, piece};
}

static_assert(num_shares({132, 132, 32, 1}, 128, true) == 64 && num_shares({132, 132, 32, 1}, 1 << 30, true) == 132);
static_assert(whole_shares(132, 256) == 128 && whole_shares(132, 128) == 128 && whole_shares(132, 100) == 132);
static_assert(row_group(1) == 1 && row_group(2) == 2 && row_group(3) == 3 && row_group(4) == 4 && row_group(5) == 3);
static_assert(row_group(6) == 3 && row_group(7) == 4 && row_group(8) == 4 && row_group(0) == 1);
static_assert(box_keys(64, 64) == 64 && box_keys(128, 64) == 64 && box_keys(16, 64) == 16 && box_keys(48, 64) == 0);
static_assert(box_keys(4, 64) == 0 && box_keys(1, 64) == 0);
static_assert(share_begin(10, 3, 0) == 0 && share_begin(10, 3, 1) == 4 && share_begin(10, 3, 2) == 7 &&
              share_begin(10, 3, 3) == 10);
static_assert(first_share_from(10, 3, 0) == 0 && first_share_from(10, 3, 1) == 1 && first_share_from(10, 3, 4) == 1);
static_assert(first_share_from(10, 3, 5) == 2 && first_share_from(10, 3, 8) == 3 && first_share_from(10, 3, 10) == 3);

}  // namespace mlaverify::rules
