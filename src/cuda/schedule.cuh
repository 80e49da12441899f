// The schedule of rules/schedule.h, walked by a block of threads.
#pragma once

#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "rules/paging.h"
#include "rules/row.h"
#include "rules/split.h"

namespace mlaverify::cuda {

// One row tile over one range of keys.
struct Item {
  int32_t request;
  int32_t row_tile;
  int32_t key_begin, key_end;  // nothing to do, but a result to write, where they are equal
  // Where the partial result goes; negative piece: it is the whole result, written to out and lse. Batch-invariant mode: of the chunk
  // that the item is.
  int32_t series, piece;
  // Batch-invariant mode: the chunk, of those of the row tile, which this block has from `first_chunk` on.
  int32_t chunk = 0, first_chunk = 0;
  bool last_chunk = false;  // of the row tile
};

// Rows of a request; those of whole tiles fit 31 bits (the backend refuses more).
__device__ __forceinline__ int32_t rows_of(const Problem &p, int32_t request) {
  return rules::query_count(p, request) * p.num_heads;
}

// Keys that some row of a row tile sees.
template <int kRows>
__device__ __forceinline__ int32_t keys_of_tile(const Problem &p, int32_t request, int32_t row_tile) {
  const int32_t last = rules::min((row_tile + 1) * kRows, rows_of(p, request)) - 1;
  return rules::visible_keys(p, request, rules::unpack_row(last, p.num_heads).token);
}

// Rows of a row tile, kRows but in the last one.
template <int kRows>
__device__ __forceinline__ int rows_of_tile(const Problem &p, int32_t request, int32_t row_tile) {
  return rules::min(rows_of(p, request) - row_tile * kRows, kRows);
}

// What a request adds to the line for each of its row tiles: what the block table holds at most.
__device__ __forceinline__ int32_t line_tiles(const Launch &l, int32_t request) {
  return rules::min(rules::key_tiles(l.p, request, l.cut_log2), l.max_cuts);
}

// The line of key tiles, measured by a warp: each lane looks at as many neighbouring requests.
class Line {
 public:
  __device__ __forceinline__ explicit Line(const Launch &l)
      : l_(l), p_(l.p), groups_(l.row_groups), per_lane_((l.p.batch + 31) / 32) {
    const int32_t first = lane_ * per_lane_, last = rules::min(first + per_lane_, p_.batch);
    int32_t mine = 0;
    int32_t longest = 0;
#pragma unroll 4  // as many reads at once
    for (int32_t b = first; b < last; ++b) {
      const int32_t tiles = line_tiles(l_, b);
      mine += tiles;
      longest = rules::max(longest, tiles);
    }
    end_ = mine * groups_;
    scan(&end_);
    total_ = __shfl_sync(~0u, end_, 31);
    longest_ = __reduce_max_sync(~0u, longest);
  }

  __device__ __forceinline__ int32_t total() const { return total_; }
  __device__ __forceinline__ bool all_equal() const { return longest_ * groups_ * p_.batch == total_; }

  // The place of tile `at`, 0 <= at < total; its row_tile counts groups. Every lane gets it.
  __device__ __forceinline__ rules::TilePosition locate(int32_t at) const {
    const int owner = __ffs(__ballot_sync(~0u, end_ > at)) - 1;
    const int32_t before = __shfl_sync(~0u, end_, rules::max(owner - 1, 0));
    if (owner > 0) at -= before;
    if (per_lane_ == 1) {  // the sums at hand say all
      const int32_t mine = __shfl_sync(~0u, end_, owner) - (owner > 0 ? before : 0);
      const int32_t n = groups_ > 1 ? rules::quotient_31(mine, groups_) : mine,
                    row_tile = groups_ > 1 ? rules::quotient_31(at, n) : 0;
      return {owner, row_tile, at - row_tile * n};
    }
#pragma unroll 1
    for (int32_t first = owner * per_lane_;; first += 32) {
      const int32_t b = first + lane_;
      const int32_t tiles = b < p_.batch ? line_tiles(l_, b) : 0;
      int32_t end = tiles * groups_;
      scan(&end);
      const unsigned beyond = __ballot_sync(~0u, end > at);
      if (beyond == 0) {
        at -= __shfl_sync(~0u, end, 31);
        continue;
      }
      const int found = __ffs(beyond) - 1;
      const int32_t n = __shfl_sync(~0u, tiles, found);
      const int32_t offset = at - (__shfl_sync(~0u, end, found) - n * groups_),
                    row_tile = groups_ > 1 ? rules::quotient_31(offset, n) : 0;
      return {first + found, row_tile, offset - row_tile * n};
    }
  }

 private:
  // Sums over this and all lower lanes.
  __device__ __forceinline__ void scan(int32_t *x) const {
#pragma unroll 1
    for (int offset = 1; offset < 32; offset *= 2) {
      const int32_t below = __shfl_up_sync(~0u, *x, offset);
      if (lane_ >= offset) *x += below;
    }
  }

  const Launch &l_;
  const Problem &p_;
  const int32_t groups_, per_lane_;
  int32_t end_, total_;  // end_: of this lane's requests
  int32_t longest_;      // request, in tiles
  const int lane_ = threadIdx.x % 32;
};

// Place of a piece by the split rule, or of a chunk.
__device__ __forceinline__ rules::PartPlace piece_place(const Launch &l, int32_t request, int32_t row_tile, int32_t piece) {
  return rules::piece_place(request, l.row_groups, l.row_group, row_tile, piece);
}

// How far a block is in its items.
struct ItemCursor {
  rules::TilePosition at;  // of the rest of the share
  int32_t first;           // key tile of that row tile at which the share began it
  int64_t left;            // tiles of it; from 0 down: minus what turn() has gone through
};

// The items of a block, in order. Used by whole warps; every thread gets the same items. kPairs: blocks may share copies (Launch::pair).
template <int kRows, bool kPairs = false>
class Items {
 public:
  __device__ __forceinline__ explicit Items(const Launch &l) : l_(l), p_(l.p) {}

  __device__ __forceinline__ ItemCursor begin() const {
    ItemCursor cursor = {};
    if (l_.splits > 0) return cursor;
    const Line line(l_);
    const int32_t shares = rules::num_shares(l_.share_choice, line.total(), line.all_equal());
    const auto share = rules::quotient_31(static_cast<int32_t>(blockIdx.x), l_.row_group);
    if (share < shares) {
      const int32_t begin = rules::share_begin(line.total(), shares, share);
      cursor.left = rules::share_begin(line.total(), shares, share + 1) - begin;
      if (cursor.left > 0) cursor.at = line.locate(begin);
      cursor.first = cursor.at.key_tile;
    }
    return cursor;
  }

  // The next item; false if there is none.
  __device__ __forceinline__ bool next(ItemCursor *cursor, Item *item) const {
    if (l_.splits > 0) return next_piece(cursor, item);
    return next_of_share(cursor, item) || next_empty(cursor, item);
  }

 private:
  // The number of this block. What is derived from it is not kept in registers from item to item.
  static __device__ __forceinline__ int32_t block() { return static_cast<int32_t>(ptx::not_hoisted(blockIdx.x)); }

  __device__ __forceinline__ int32_t pair() const { return kPairs ? l_.pair : 1; }

  // Row tiles of a request, and the one that only completes a pair: its block has no rows, and helps with the copies.
  __device__ __forceinline__ int32_t row_tiles() const { return l_.row_tiles + (l_.row_tiles & (pair() - 1)); }

  // Keys of an item: those that some row of its tile sees, or of the pair's tiles.
  __device__ __forceinline__ int32_t keys_of(int32_t request, int32_t row_tile) const {
    if (kPairs) row_tile = rules::min(row_tile | (pair() - 1), l_.row_tiles - 1);
    return keys_of_tile<kRows>(p_, request, row_tile);
  }

  // What is shared out by turns: the next number of this block.
  static __device__ __forceinline__ int64_t turn(ItemCursor *cursor) {
    const int64_t turn = block() - cursor->left;
    cursor->left -= gridDim.x;
    return turn;
  }

  __device__ __forceinline__ bool next_piece(ItemCursor *cursor, Item *item) const {
    const int64_t piece = turn(cursor);
    const int32_t row_tiles = this->row_tiles();
    if (piece >= static_cast<int64_t>(p_.batch) * row_tiles * l_.splits) return false;
    const int64_t pieces = rules::quotient(piece, row_tiles);
    const auto row_tile = static_cast<int32_t>(piece - pieces * row_tiles);  // neighbours share keys, as in groups
    const auto split = static_cast<int32_t>(rules::remainder(pieces, l_.splits));
    const auto request = static_cast<int32_t>(rules::quotient(pieces, l_.splits));
    const rules::KeyRange range = rules::split_range(p_.seq_lens[request], l_.splits, l_.min_split_len, l_.split_align, split);
    const int32_t keys = keys_of(request, row_tile);
    const auto begin = static_cast<int32_t>(rules::min<int64_t>(range.begin, keys));
    const auto end = static_cast<int32_t>(rules::min<int64_t>(range.end, keys));
    const rules::PartPlace place = piece_place(l_, request, row_tile, split);
    *item = {request, row_tile, begin, rules::max(begin, end), place.series, l_.splits == 1 ? -1 : place.piece};
    return true;
  }

  __device__ __forceinline__ bool next_of_share(ItemCursor *cursor, Item *item) const {
#pragma unroll 1
    while (cursor->left > 0) {
      const rules::TilePosition at = cursor->at;
      const int32_t tiles = line_tiles(l_, at.request), first = cursor->first;
      const int32_t n = l_.chunks > 0 ? 1 : rules::min(tiles - at.key_tile, static_cast<int32_t>(cursor->left));
      cursor->at.key_tile += n;
      if (cursor->at.key_tile >= tiles) {
        cursor->at.key_tile = cursor->first = 0;
        if (++cursor->at.row_tile == l_.row_groups) cursor->at = {at.request + 1, 0, 0};
      }
      if (at.key_tile >= tiles) continue;
      cursor->left -= n;
      const int32_t share = rules::quotient_31(block(), l_.row_group), member = block() - share * l_.row_group;
      const int32_t row_tile = at.row_tile * l_.row_group + member;
      if (row_tile >= row_tiles()) continue;
      const int32_t keys = keys_of(at.request, row_tile);
      // (The end of the last tile may have 32 bits.)
      const auto begin = static_cast<uint32_t>(at.key_tile) << l_.cut_log2, length = static_cast<uint32_t>(n) << l_.cut_log2;
      const auto key_begin = static_cast<int32_t>(rules::min(begin, static_cast<uint32_t>(keys)));
      const auto key_end = static_cast<int32_t>(rules::min(begin + length, static_cast<uint32_t>(keys)));
      const rules::PartPlace place = l_.chunks > 0 ? piece_place(l_, at.request, row_tile, at.key_tile)
                                                   : rules::share_place(share, at.key_tile == 0, l_.row_group, member);
      *item = {at.request,  row_tile,     key_begin,
               key_end,     place.series, n == tiles ? -1 : place.piece,
               at.key_tile, first,        at.key_tile + 1 == tiles};
      return true;
    }
    return false;
  }

  // Requests without keys are not on the line; their rows are zeroed, shared out by turns.
  __device__ __forceinline__ bool next_empty(ItemCursor *cursor, Item *item) const {
    const auto batch = static_cast<int32_t>(ptx::not_hoisted(static_cast<uint32_t>(p_.batch)));
    const int64_t row_tiles = static_cast<int64_t>(batch) * l_.row_tiles;
#pragma unroll 1
    for (int64_t i = turn(cursor); i < row_tiles; i = turn(cursor)) {
      const auto request = static_cast<int32_t>(rules::quotient(i, l_.row_tiles));
      const auto row_tile = static_cast<int32_t>(rules::remainder(i, l_.row_tiles));
      if (line_tiles(l_, request) > 0) continue;
      *item = {request, row_tile, 0, 0, 0, -1};
      return true;
    }
    return false;
  }

  const Launch &l_;
  const Problem &p_;
};

// Address of a token of a page, or null where the cache has no such page: then nothing is read.
__device__ __forceinline__ const char *slot_address(const Problem &p, int32_t page, int32_t offset) {
  if (page < 0 || page >= p.num_pages) return nullptr;
  return rules::row_at(p, rules::kv_offset(p, page, offset));
}

// Address of key `key` of a request, or null where the table or the cache has no such page.
__device__ __forceinline__ const char *key_address(const Problem &p, int32_t request, int32_t key) {
  const rules::Slot slot = rules::slot_of(key, p.page_size);
  return slot.entry < p.table_width ? slot_address(p, rules::page_id(p, request, slot.entry), slot.offset) : nullptr;
}

}  // namespace mlaverify::cuda
