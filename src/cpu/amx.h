// Products of tile registers (AMX) instead of the inner loops of kernel.h, for calls that multiply bf16 numbers; behind kernel.h.
//
// TDPBF16PS adds to C [16, 16] f32 the product of A [16, 32] and B [32, 16] bf16, B as pairs of its rows: B[i][j] lies with B[i+1][j].
// Which product gets which operand follows from what needs no rearranging:
//   scores^T = K Q^T    A: 16 keys as they are in the cache. B: 16 rows of Q, packed once per row tile.
//   out = P V           A: weights of 16 rows. B: values, two keys and two keys packed once per row tile and tile of keys.
// Scores come out with the rows in the lanes, so the softmax takes 16 rows at once and sums nothing across lanes. Its weights, rounded to
// bf16, are transposed to be A.
//
// Tiles of keys are larger here than in kernel.h, since a product is so quick that moving accumulators to and from the registers would take
// as long; not a whole chunk, so that the values, packed, and the keys to come share half of a 2 MB L2 cache.
//
// The scales of records multiply what is summed over the columns of a group, and the values as they are packed.
//
// Every sum runs over groups of 32 columns or keys, in order. A key that a row does not see takes part with weight 0 and a finite value
// (multiply_rows_apart), which changes at most the sign of a sum that is 0. Denormals are taken for zero, in operands and results.
#pragma once

#include <cstring>

#include "cpu/amx_pack.h"
#include "cpu/kernel.h"
#include "cpu/tile_config.h"

namespace mlaverify::cpu {
namespace {

constexpr int32_t kKeys = rules::kBf16TileKeys;
static_assert(kGroup == rules::kBf16Vector && kTileRows % kSide == 0 && kKeys % kGroup == 0 &&
              rules::cpu_config().split_align % kKeys == 0);

// What was written before is in memory for the tile loads behind. (g++ does not see that these read it.)
inline void finish_writes() { asm volatile("" ::: "memory"); }

// ---- One tile of keys -------------------------------------------------------------------------------------------------

// Where what the tile registers load lies in the scratch of a thread, 16 rows of 64 bytes without gaps, for one tile of keys.
struct Tiles {
  const Scratch &s;
  int32_t steps;         // groups of columns of a key
  int32_t value_groups;  // of them, those of the value
  int32_t blocks;        // of 16 rows
  int32_t groups;        // of 32 keys

  uint32_t *queries(int32_t block) const { return reinterpret_cast<uint32_t *>(s.q) + int64_t{block} * steps * kTile; }
  // Scores [32 keys, 16 rows] of each group; then, one behind the other, weights [16 rows, 32 keys].
  float *scores(int32_t block) const { return s.scores + int64_t{block} * kKeys * kSide; }
  // Two tiles for each 32 columns, and a gap of as many, so that those of the same columns lie in all sets of the L1 cache.
  uint32_t *values(int32_t group) const {
    return reinterpret_cast<uint32_t *>(s.values) + int64_t{group} * (value_groups + 1) * 2 * kTile;
  }
};

// 16 keys, `stride` bytes apart.
struct KeyTile {
  const char *first;
  int64_t stride;
};

// Keys of a tile, count <= kKeys, as they are multiplied.
struct KeyTiles {
  const char *row[kKeys];  // a group is complete: behind the keys that there are come zeros
  KeyTile tile[kKeys / kSide];
  float scale[rules::kRecordGroups][kKeys];  // of records
};

// Keys [begin, end) of a request. What is not bf16, or does not lie in equal distances, is copied.
inline void make_key_tiles(const Problem &p, const Scratch &s, const rules::CpuThreadLayout &l, int32_t request,
                           rules::KeyRange keys, KeyTiles *made) {
  const auto bytes = sizeof(uint16_t) * static_cast<std::size_t>(p.qk_dim);
  const auto count = static_cast<int32_t>(keys.end - keys.begin);
  const auto copy = [&](int32_t k) { return reinterpret_cast<char *>(s.kv + k * l.kv_bf16_ld); };
  for (int32_t first = 0; first < count; first += kTileKeys) {
    KeyRows found;
    find_keys(p, request, {keys.begin + first, rules::min<int64_t>(keys.begin + first + kTileKeys, keys.end)}, &found);
    Scratch here = s;
    here.kv += first * l.kv_bf16_ld;
    make_bf16_keys(p, here, l, &found);
    std::memcpy(made->row + first, found.row, sizeof(char *) * static_cast<std::size_t>(found.count));
    for (int32_t g = 0; rules::is_record(p.kv_dtype) && g < rules::kRecordGroups; ++g)
      std::memcpy(made->scale[g] + first, found.scale[g], sizeof(float) * static_cast<std::size_t>(found.count));
  }
  const int32_t end = rules::round_up(count, kGroup);
  for (int32_t k = count; k < end; ++k) {
    std::memset(copy(k), 0, bytes);
    made->row[k] = copy(k);
    for (auto &scale : made->scale) scale[k] = 0;
  }
  for (int32_t first = 0; first < end; first += kSide) {
    const char **const row = made->row + first;
    const auto place = [&](int32_t i) { return reinterpret_cast<intptr_t>(row[i]); };
    const int64_t stride = place(1) - place(0);
    bool equal = true;
    for (int32_t i = 2; i < kSide; ++i) equal = equal && place(i) - place(i - 1) == stride;
    for (int32_t i = 0; !equal && i < kSide; ++i) {
      char *const to = copy(first + i);
      if (row[i] != to) std::memcpy(to, row[i], bytes);
      row[i] = to;
    }
    made->tile[first / kSide] = {row[0], equal ? stride : int64_t{4} * l.kv_bf16_ld};
  }
}

// Sums over groups [begin, end) of columns, of 32 keys with the rows of a block, or with `two` of it and the next: to [32 keys, 16 rows],
// and to `next`. step() is called for each group of columns.
template <bool two, class Step>
inline void score_tiles(const Tiles &t, const KeyTile *keys, int32_t block, int32_t begin, int32_t end, float *to, float *next,
                        Step step) {
  const uint32_t *const q = t.queries(block), *const next_q = t.queries(block + 1);
  finish_writes();
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (two) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int32_t d = begin; d < end; ++d) {
    step();
    _tile_loadd(4, keys[0].first + d * 64, keys[0].stride);
    _tile_loadd(6, q + d * kTile, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, keys[1].first + d * 64, keys[1].stride);
    _tile_dpbf16ps(1, 5, 6);
    if constexpr (two) {
      _tile_loadd(7, next_q + d * kTile, 64);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, to, 64);
  _tile_stored(1, to + kTile, 64);
  if constexpr (two) {
    _tile_stored(2, next, 64);
    _tile_stored(3, next + kTile, 64);
  }
}

// Scores of a group of keys with the rows of a block, or with `two` of it and the next.
template <bool two, class Step>
inline void score_group(const Tiles &t, const KeyTiles &keys, bool records, int32_t group, int32_t block, Step step) {
  const KeyTile *const tiles = keys.tile + 2 * group;
  float *const to = t.scores(block) + group * 2 * kTile, *const next = t.scores(block + 1) + group * 2 * kTile;
  if (!records) return score_tiles<two>(t, tiles, block, 0, t.steps, to, next, step);
  constexpr int32_t columns = rules::kRecordGroup / kGroup;
  score_tiles<two>(t, tiles, block, columns * rules::kRecordGroups, t.steps, to, next, step);
  alignas(64) float part[2][2 * kTile];
  for (int32_t g = 0; g < rules::kRecordGroups; ++g) {
    score_tiles<two>(t, tiles, block, g * columns, (g + 1) * columns, part[0], part[1], step);
    finish_writes();
    for (int32_t k = 0; k < kGroup; ++k) {
      const Vec scale = Vec::broadcast(keys.scale[g][group * kGroup + k]);
      const auto add = [&](float *sum, const float *x) {
        fma(Vec::load(x + k * kSide), scale, Vec::load(sum + k * kSide)).store(sum + k * kSide);
      };
      add(to, part[0]);
      if constexpr (two) add(next, part[1]);
    }
  }
}

// Packs the values of a group of keys.
inline void pack_group(const Tiles &t, const KeyTiles &keys, bool records, int32_t group) {
  const char *const *const row = keys.row + group * kGroup;
  const auto number = [row](int32_t k, int32_t c) { return Bf16Pairs::load(reinterpret_cast<const uint16_t *>(row[k]) + c); };
  if (!records) return pack_values(number, t.value_groups * kGroup, t.values(group));
  const auto scaled = [&](int32_t k, int32_t c) {
    return Vec::scaled(number(k, c), Vec::broadcast(keys.scale[c / rules::kRecordGroup][group * kGroup + k]));
  };
  pack_values(scaled, t.value_groups * kGroup, t.values(group));
}

// Online softmax of 16 rows over a tile of keys: scores [keys, 16] become weights, tiles [16, 32]. visible[i]: keys that row i sees, the first
// ones; `all`: every row sees all of them. shrink[i]: what the sums of row i so far are to be multiplied with.
template <bool all>
inline void softmax_rows(float *scores, int32_t groups, const int32_t *visible, float scale, float *max_out, float *sum_out,
                         float *shrink) {
  const __m512i limits = _mm512_loadu_si512(visible);
  const Vec factor = Vec::broadcast(scale), nothing = Vec::broadcast(kMinusInf);
  const auto score = [&](int32_t key) {
    const Vec x = Vec::load(scores + key * kSide) * factor;
    if constexpr (all) return x;
    const __mmask16 sees = _mm512_cmpgt_epi32_mask(limits, _mm512_set1_epi32(key));
    return Vec{_mm512_mask_mov_ps(nothing.v, sees, x.v)};
  };
  const Vec before = Vec::load(max_out);
  Vec largest[2] = {before, before}, total[2] = {Vec::zero(), Vec::zero()};
  for (int32_t k = 0; k < groups * kGroup; k += 2) {
    largest[0] = max(score(k), largest[0]);
    largest[1] = max(score(k + 1), largest[1]);
  }
  const Vec now = max(largest[0], largest[1]);
  // All scores -inf: weights 0, not NaN.
  const Vec reference = {_mm512_mask_mov_ps(now.v, _mm512_cmpeq_ps_mask(now.v, nothing.v), _mm512_setzero_ps())};
  for (int32_t g = 0; g < groups; ++g) {
    Vec pairs[kSide];
    for (int32_t i = 0; i < kSide; ++i) {
      const int32_t k = g * kGroup + 2 * i;
      const Vec a = exp(score(k) - reference), b = exp(score(k + 1) - reference);
      total[0] = total[0] + a;
      total[1] = total[1] + b;
      pairs[i].v = _mm512_castsi512_ps(rounded_pairs(a, b));
    }
    transpose(pairs);
    for (int32_t i = 0; i < kSide; ++i) pairs[i].store(scores + g * kTile + i * kSide);
  }
  const Vec smaller = exp(before - reference);
  smaller.store(shrink);
  fma(Vec::load(sum_out), smaller, total[0] + total[1]).store(sum_out);
  now.store(max_out);
}

// Accumulators of a row tile: [rows, ld], v_dim used.
struct Accumulators {
  float *acc;
  int32_t ld;
};

// Rows [begin, end) of a row tile.
struct RowRange {
  int32_t begin, end;
};

// acc[r][32 columns ...] += weights times values, for the rows of a range that are in a block, or with `two` in it and the next. `first`: acc
// counts as 0.
template <bool two>
inline void value_tiles(const Tiles &t, int32_t block, int32_t column, RowRange range, bool first, Accumulators to) {
  // A block that is not wholly in the range is put together apart.
  alignas(64) float apart[2][kSide * kGroup];
  const auto row_of = [&](int32_t i) { return (block + i) * kSide; };
  const auto whole = [&](int32_t i) { return range.begin <= row_of(i) && row_of(i) + kSide <= range.end; };
  const auto row = [&](int32_t r) { return to.acc + int64_t{r} * to.ld + column * kGroup; };
  const auto place = [&](int32_t i) { return whole(i) ? row(row_of(i)) : apart[i]; };
  const auto stride = [&](int32_t i) { return 4 * int64_t{whole(i) ? to.ld : kGroup}; };
  const auto copy = [&](bool back) {
    for (int32_t i = 0; i < (two ? 2 : 1); ++i) {
      for (int32_t r = 0; !whole(i) && r < kSide; ++r) {
        const bool ours = range.begin <= row_of(i) + r && row_of(i) + r < range.end;
        float *const here = apart[i] + r * kGroup;
        if (back && ours) std::memcpy(row(row_of(i) + r), here, 4 * kGroup);
        if (!back && ours) std::memcpy(here, row(row_of(i) + r), 4 * kGroup);
        if (!back && !ours) std::memset(here, 0, 4 * kGroup);
      }
    }
  };
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (two) {
      _tile_zero(2);
      _tile_zero(3);
    }
  } else {
    copy(false);
    finish_writes();
    _tile_loadd(0, place(0), stride(0));
    _tile_loadd(1, place(0) + kSide, stride(0));
    if constexpr (two) {
      _tile_loadd(2, place(1), stride(1));
      _tile_loadd(3, place(1) + kSide, stride(1));
    }
  }
  finish_writes();
  for (int32_t g = 0; g < t.groups; ++g) {
    const uint32_t *const values = t.values(g) + column * 2 * kTile;
    _tile_loadd(4, t.scores(block) + g * kTile, 64);
    _tile_loadd(6, values, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, values + kTile, 64);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (two) {
      _tile_loadd(5, t.scores(block + 1) + g * kTile, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, place(0), stride(0));
  _tile_stored(1, place(0) + kSide, stride(0));
  if constexpr (two) {
    _tile_stored(2, place(1), stride(1));
    _tile_stored(3, place(1) + kSide, stride(1));
  }
  copy(true);
}

// step() is called for each group of columns of each two blocks.
template <class Step>
inline void multiply_rows(const Tiles &t, RowRange range, bool first, Accumulators to, Step step) {
  const int32_t end = rules::ceil_div(range.end, kSide);
  for (int32_t b = range.begin / kSide; b < end; b += 2) {
    for (int32_t c = 0; c < t.value_groups; ++c) {
      step();
      if (b + 1 < end) {
        value_tiles<true>(t, b, c, range, first, to);
      } else {
        value_tiles<false>(t, b, c, range, first, to);
      }
    }
  }
}

// The same for rows of which some don't see keys whose values are not finite. Rows with the same limit are taken together, those that see
// most first, and values beyond the limit are cleared before: 0 times NaN would be NaN. visible[r]: keys that row r sees.
inline void multiply_rows_apart(const Tiles &t, const int32_t *visible, int32_t rows, bool first, Accumulators to) {
  int32_t left = visible[rows - 1];  // keys that are not cleared
  for (int32_t end = rows; end > 0;) {
    int32_t begin = end - 1;
    while (begin > 0 && visible[begin - 1] == visible[begin]) --begin;
    for (; left > visible[begin]; --left)
      clear_packed_key((left - 1) % kGroup, t.value_groups * kGroup, t.values((left - 1) / kGroup));
    multiply_rows(t, {begin, end}, first, to, [] {});
    end = begin;
  }
}

// Asks for keys begin ... end - 1 of a tile, as far as it has them, to be brought to the L2 cache.
inline void prefetch_keys(const Problem &p, const KeyRows &keys, int32_t begin, int32_t end) {
  const int64_t bytes = rules::row_bytes(p.kv_dtype, p.qk_dim);
  for (int32_t k = begin; k < rules::min(end, keys.count); ++k) {
    const char *row = keys.row[k];
    asm volatile("" ::"r"(row));  // g++ takes a function that only prefetches for one that does nothing
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
    __builtin_prefetch(row + bytes - 1, 0, 2);
  }
}

// Brings the keys of a tile, kKeys at most, to the cache while another one is computed.
class KeysAhead {
 public:
  KeysAhead(const Problem &p, int32_t request, rules::KeyRange keys) : p_(p), request_(request), keys_(keys) {}

  // `steps` such steps fetch half of the keys.
  void step(int32_t steps) {
    for (due_ += kKeys / 2; due_ >= steps; due_ -= steps) fetch_one();
  }

 private:
  void fetch_one() {
    if (next_ == found_.count) {
      find_keys(p_, request_, {keys_.begin, rules::min<int64_t>(keys_.begin + kTileKeys, keys_.end)}, &found_);
      keys_.begin += found_.count;
      next_ = 0;
    }
    prefetch_keys(p_, found_, next_, next_ + 1);
    next_ += next_ < found_.count ? 1 : 0;
  }

  const Problem &p_;
  const int32_t request_;
  rules::KeyRange keys_;  // but for those of found_
  KeyRows found_ = {};
  int32_t next_ = 0;
  int32_t due_ = 0;
};

// ---- The interface of isa.h -------------------------------------------------------------------------------------------

void load_query_tiles(const Problem &p, const rules::CpuThreadLayout &l, const RowTile &tile, const Scratch &s) {
  if (!multiplies_bf16(p)) return load_queries(p, l, tile, s);
  const Tiles t = {s, p.qk_dim / kGroup, p.v_dim / kGroup, rules::ceil_div(tile.rows, kSide), 0};
  for (int32_t b = 0; b < t.blocks; ++b) {
    const uint16_t *row[kSide] = {};
    for (int32_t i = 0; i < rules::min(kSide, tile.rows - b * kSide); ++i) {
      row[i] = static_cast<const uint16_t *>(p.q) + query_offset(p, tile, b * kSide + i);
    }
    pack_rows(row, p.qk_dim, t.queries(b));
  }
}

// Of one tile of keys. `first`: of the chunk, so that nothing is in `node` yet.
void key_tile(const Problem &p, const rules::CpuThreadLayout &l, const RowTile &tile, rules::KeyRange keys, const Scratch &s,
              bool first, const Node &node) {
  const auto count = static_cast<int32_t>(keys.end - keys.begin);
  const Tiles t = {s, p.qk_dim / kGroup, p.v_dim / kGroup, rules::ceil_div(tile.rows, kSide), rules::ceil_div(count, kGroup)};
  int32_t visible[kTileRows] = {};  // none to rows that are not there
  for (int32_t r = 0; r < tile.rows; ++r)
    visible[r] = static_cast<int32_t>(rules::clamp<int64_t>(visible_to_row(p, tile, r) - keys.begin, 0, count));

  // The next tile comes to the cache meanwhile, one half during each product; behind the last one, the first of the chunk that mostly follows.
  KeysAhead ahead(p, tile.request, {keys.end, rules::min<int64_t>(keys.end + kKeys, tile.keys)});
  const bool records = rules::is_record(p.kv_dtype);
  KeyTiles tiles;
  make_key_tiles(p, s, l, tile.request, keys, &tiles);
  for (int32_t g = 0; g < t.groups; ++g) pack_group(t, tiles, records, g);
  bool finite = true;  // the values that some row does not see
  for (int32_t k = visible[0]; k < count; ++k) finite = finite && all_finite(tiles.row[k], p.v_dim);
  // A pair of blocks of queries stays in the L1 cache, and all keys go by.
  const int32_t pairs = rules::ceil_div(t.blocks, 2);
  const auto step = [&] { ahead.step(t.steps * t.groups * pairs); };
  for (int32_t b = 0; b < t.blocks; b += 2) {
    for (int32_t g = 0; g < t.groups; ++g) {
      if (b + 1 < t.blocks) {
        score_group<true>(t, tiles, records, g, b, step);
      } else {
        score_group<false>(t, tiles, records, g, b, step);
      }
    }
  }

  const auto scale = static_cast<float>(static_cast<double>(p.sm_scale) * static_cast<double>(cache_scale(p)));
  const bool all = visible[0] == t.groups * kGroup;  // (rows that are not there may have any weights)
  alignas(64) float shrink[kTileRows];
  for (int32_t b = 0; b < t.blocks; ++b) {
    const auto softmax = all ? softmax_rows<true> : softmax_rows<false>;
    softmax(t.scores(b), t.groups, visible + b * kSide, scale, node.max + b * kSide, node.sum + b * kSide, shrink + b * kSide);
  }
  for (int32_t r = 0; r < tile.rows && !first; ++r) {
    float *const acc = node.acc + r * l.node.acc_ld;
    for (int32_t c = 0; shrink[r] != 1.0f && c < p.v_dim; c += Vec::width)
      (Vec::load(acc + c) * Vec::broadcast(shrink[r])).store(acc + c);
  }
  const Accumulators acc = {node.acc, l.node.acc_ld};
  if (!finite) return multiply_rows_apart(t, visible, tile.rows, first, acc);
  multiply_rows(t, {0, tile.rows}, first, acc, [&] { ahead.step(t.value_groups * pairs); });
}

void chunk_tiles(const Problem &p, const rules::CpuThreadLayout &l, const RowTile &tile, rules::KeyRange keys, const Scratch &s,
                 const Node &node) {
  if (!multiplies_bf16(p)) return chunk(p, l, tile, keys, s, node);
  for (int32_t r = 0; r < rules::round_up(tile.rows, kSide); r += kSide) {
    Vec::broadcast(kMinusInf).store(node.max + r);
    Vec::zero().store(node.sum + r);
  }
  _tile_loadconfig(&kTileConfig);
  for (int64_t begin = keys.begin; begin < keys.end; begin += kKeys)
    key_tile(p, l, tile, {begin, rules::min<int64_t>(begin + kKeys, keys.end)}, s, begin == keys.begin, node);
  _tile_release();
}

}  // namespace
}  // namespace mlaverify::cpu
