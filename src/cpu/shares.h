// How the work of a call is shared between threads: contiguous shares of about equal cost, cut at chunk borders. Nothing here
// influences a bit of the result.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/isa.h"
#include "rules/mask.h"
#include "rules/pack.h"

namespace mlaverify::cpu {

// A place in the work: chunk `chunk` of row tile number `tile` (tiles of all requests, in order).
struct Position {
  int64_t tile;
  int64_t chunk;
};

class Work {
 public:
  explicit Work(const Problem &p) : p_(p), tile_rows_(rules::cpu_tile_rows(p)) {
    tiles_per_request_ = rules::num_row_tiles(rules::request_rows(p, 0), tile_rows_);
    for (int64_t t = 0; t < num_tiles(); ++t) cost_ += cost(tile(t));
  }

  int64_t num_tiles() const { return p_.batch * tiles_per_request_; }

  RowTile tile(int64_t number) const {
    const auto request = static_cast<int32_t>(number / tiles_per_request_);
    const int64_t first = number % tiles_per_request_ * tile_rows_;
    const auto rows = static_cast<int32_t>(std::min<int64_t>(tile_rows_, rules::request_rows(p_, request) - first));
    const int32_t last_token = rules::unpack_row(first + rows - 1, p_.num_heads).token;
    return {request, first, rows, rules::visible_keys(p_, request, last_token)};
  }

  static int64_t chunks(const RowTile &tile) { return rules::num_chunks(tile.keys, kChunkKeys); }
  static rules::KeyRange chunk(const RowTile &tile, int64_t c) { return rules::chunk_range(tile.keys, kChunkKeys, c); }

  // Shares that are worth a thread each, `limit` at most: waking a thread costs about as much as kMinShare.
  int32_t num_shares(int32_t limit) const {
    return static_cast<int32_t>(std::clamp<double>(cost_ / kMinShare, 1.0, static_cast<double>(limit)));
  }

  // Where share `share` of `shares` begins; share 0 at the start, share `shares` at the end.
  Position begin_of(int32_t share, int32_t shares) const {
    if (share == 0) return {0, 0};
    if (share == shares) return {num_tiles(), 0};
    const double target = cost_ * share / shares;
    double before = 0;
    for (int64_t t = 0; t < num_tiles(); ++t) {
      const RowTile row_tile = tile(t);
      const double here = cost(row_tile);
      if (before + here > target) {
        const int64_t n = chunks(row_tile);
        const auto c = static_cast<int64_t>(std::lround((target - before) / here * static_cast<double>(n)));
        return c < n ? Position{t, c} : Position{t + 1, 0};
      }
      before += here;
    }
    return {num_tiles(), 0};
  }

 private:
  static constexpr int32_t kChunkKeys = rules::cpu_config().split_align;
  // Converting a cached row costs about as much as the products of 6 query rows with it.
  static constexpr double kConversionRows = 6;
  static constexpr double kMinShare = 4096;  // rows times keys: about 0.1 ms

  static double cost(const RowTile &t) { return static_cast<double>(t.keys) * (t.rows + kConversionRows); }

  const Problem &p_;
  int32_t tile_rows_;
  int64_t tiles_per_request_;
  double cost_ = 0;
};

}  // namespace mlaverify::cpu
