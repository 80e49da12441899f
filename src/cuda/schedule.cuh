// The schedule of rules/schedule.h, walked by a block of threads.
#pragma once

#include "cuda/launch.h"
#include "rules/number.h"
#include "rules/paging.h"
#include "rules/split.h"

namespace mlaverify::cuda {

// One row tile over one range of keys.
struct Item {
  int32_t request;
  int32_t row_tile;
  int32_t key_begin, key_end;  // nothing to do, but a result to write, where they are equal
  int64_t part;                // slot of the partial result; negative: the whole result, written to out and lse
};

// Keys that some row of a row tile sees.
template <int kRows>
__device__ __forceinline__ int32_t keys_of_tile(const Problem &p, int32_t request, int32_t row_tile) {
  const int64_t last = rules::min<int64_t>((row_tile + 1) * static_cast<int64_t>(kRows), rules::request_rows(p, request)) - 1;
  return rules::visible_keys(p, request, rules::unpack_row(last, p.num_heads).token);
}

// Of a request.
__device__ __forceinline__ int32_t row_groups(const Launch &l) { return rules::ceil_div(l.row_tiles, l.row_group); }

// By all lanes of a warp; every lane gets the result.
template <int kKeys>
__device__ __forceinline__ int64_t total_tiles(const Launch &l) {
  int64_t sum = 0;
  const int lane = threadIdx.x % 32;
#pragma unroll 4
  for (int32_t b = lane; b < l.p.batch; b += 32) sum += rules::key_tiles(l.p, b, kKeys);
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  return sum * row_groups(l);
}

// The place of tile `at` of the line, 0 <= at < total; its row_tile counts groups. By all lanes of a warp.
template <int kKeys>
__device__ __forceinline__ rules::TilePosition locate(const Launch &l, int64_t at) {
  const int lane = threadIdx.x % 32;
  const int32_t groups = row_groups(l);
  for (int32_t first = 0;; first += 32) {
    const int32_t b = first + lane;
    const int32_t tiles = b < l.p.batch ? rules::key_tiles(l.p, b, kKeys) : 0;
    int64_t end = static_cast<int64_t>(tiles) * groups;
    for (int offset = 1; offset < 32; offset *= 2) {
      const int64_t below = __shfl_up_sync(~0u, end, offset);
      if (lane >= offset) end += below;
    }
    const unsigned beyond = __ballot_sync(~0u, end > at);
    if (beyond == 0) {
      at -= __shfl_sync(~0u, end, 31);
      continue;
    }
    const int found = __ffs(beyond) - 1;
    const int32_t n = __shfl_sync(~0u, tiles, found);
    const int64_t offset = at - (__shfl_sync(~0u, end, found) - static_cast<int64_t>(n) * groups);
    return {first + found, static_cast<int32_t>(offset / n), static_cast<int32_t>(offset % n)};
  }
}

// Slot of a piece of a request that is cut by a rule: pieces of a row tile lie one after the other.
__device__ __forceinline__ int64_t split_slot(const Launch &l, int32_t request, int32_t row_tile, int32_t split) {
  return (static_cast<int64_t>(request) * l.row_tiles + row_tile) * l.splits + split;
}

// Calls work(item) for each item of this block, in order. By whole warps, `first_thread` among them; every thread gets the same
// items.
template <int kRows, int kKeys, class Work>
__device__ __forceinline__ void for_each_item(const Launch &l, int first_thread, Work work) {
  const Problem &p = l.p;
  if (l.splits > 0) {
    const int64_t items = static_cast<int64_t>(p.batch) * l.row_tiles * l.splits;
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
      const auto row_tile = static_cast<int32_t>(i % l.row_tiles);  // neighbours share keys, as in groups
      const auto split = static_cast<int32_t>(i / l.row_tiles % l.splits);
      const auto request = static_cast<int32_t>(i / l.splits / l.row_tiles);
      const rules::KeyRange range =
          l.split_len > 0 ? rules::chunk_range(rules::max(p.seq_lens[request], 0), l.split_len, split)
                          : rules::split_range(p.seq_lens[request], l.splits, l.min_split_len, l.split_align, split);
      const int32_t keys = keys_of_tile<kRows>(p, request, row_tile);
      const auto begin = static_cast<int32_t>(rules::min<int64_t>(range.begin, keys));
      const auto end = static_cast<int32_t>(rules::min<int64_t>(range.end, keys));
      work(
          Item{request, row_tile, begin, rules::max(begin, end), l.splits == 1 ? -1 : split_slot(l, request, row_tile, split)});
    }
    return;
  }

  const int64_t total = total_tiles<kKeys>(l);
  const int32_t groups = row_groups(l);
  const int32_t shares = rules::num_shares(total, l.blocks / l.row_group, l.min_tiles);
  const auto share = static_cast<int32_t>(blockIdx.x) / l.row_group, member = static_cast<int32_t>(blockIdx.x) % l.row_group;
  const int64_t begin = share < shares ? rules::share_begin(total, shares, share) : 0;
  int64_t left = share < shares ? rules::share_begin(total, shares, share + 1) - begin : 0;
  rules::TilePosition at = {p.batch, 0, 0};  // of an empty share: nowhere
  if (left > 0) at = locate<kKeys>(l, begin);
  if (static_cast<int>(threadIdx.x) == first_thread && member == 0) l.starts[share] = at;
  while (left > 0) {
    const int32_t tiles = rules::key_tiles(p, at.request, kKeys);
    if (at.key_tile < tiles) {
      const auto n = static_cast<int32_t>(rules::min<int64_t>(tiles - at.key_tile, left));
      left -= n;
      const bool whole = n == tiles;
      const int32_t row_tile = at.row_tile * l.row_group + member;
      const int32_t keys = row_tile < l.row_tiles ? keys_of_tile<kRows>(p, at.request, row_tile) : 0;
      const auto key_begin = static_cast<int32_t>(rules::min<int64_t>(int64_t{at.key_tile} * kKeys, keys));
      const auto key_end = static_cast<int32_t>(rules::min<int64_t>((int64_t{at.key_tile} + n) * kKeys, keys));
      const int64_t slot = rules::part_slot(share, at.key_tile == 0, l.row_group, member);
      if (row_tile < l.row_tiles) work(Item{at.request, row_tile, key_begin, key_end, whole ? -1 : slot});
    }
    at.key_tile = 0;
    if (++at.row_tile == groups) at = {at.request + 1, 0, 0};
  }
  // Requests without keys are not on the line; their rows are zeroed, shared out by turns.
  const int64_t row_tiles = static_cast<int64_t>(p.batch) * l.row_tiles;
  for (int64_t i = blockIdx.x; i < row_tiles; i += gridDim.x) {
    const auto request = static_cast<int32_t>(i / l.row_tiles);
    if (rules::key_tiles(p, request, kKeys) == 0) work(Item{request, static_cast<int32_t>(i % l.row_tiles), 0, 0, -1});
  }
}

// Address of a token of a page, or null where the cache has no such page: then nothing is read.
__device__ __forceinline__ const char *slot_address(const Problem &p, int32_t page, int32_t offset) {
  if (page < 0 || page >= p.num_pages) return nullptr;
  return static_cast<const char *>(p.kv) + rules::kv_offset(p, page, offset) * rules::dtype_bytes(p.kv_dtype);
}

// Address of key `key` of a request, or null where the table or the cache has no such page.
__device__ __forceinline__ const char *key_address(const Problem &p, int32_t request, int32_t key) {
  const rules::Slot slot = rules::slot_of(key, p.page_size);
  return slot.entry < p.table_width ? slot_address(p, rules::page_id(p, request, slot.entry), slot.offset) : nullptr;
}

}  // namespace mlaverify::cuda
