// Products of tile registers (AMX) instead of the inner loops of kernel.h, for calls that multiply bf16 numbers; behind kernel.h.
//
// TDPBF16PS adds to C [16, 16] f32 the product of A [16, 32] and B [32, 16] bf16, B as pairs of its rows: B[i][j] lies with B[i+1][j].
// Which product gets which operand follows from what needs no rearranging:
//   scores^T = K Q^T    A: 16 keys as they are in the cache. B: 16 rows of Q, packed once per row tile.
//   out = P V           A: weights of 16 rows. B: values, two keys and two keys packed once per chunk and row tile.
// Scores come out with the rows in the lanes, so the softmax takes 16 rows at once and sums nothing across lanes. Its weights, rounded to
// bf16, are transposed to be A.
//
// A chunk is one tile of keys here: with all its scores at hand the softmax needs no running maximum, and the second product is summed in
// the tile registers from the first key to the last.
//
// Every sum runs over groups of 32 columns or keys, in order. A key that a row does not see takes part with weight 0 and a finite value
// (multiply_values), which changes at most the sign of a sum that is 0. Denormals are taken for zero, in operands and results.
#pragma once

#include <cstring>

#include "cpu/kernel.h"

namespace mlaverify::cpu {
namespace {

constexpr int32_t kSide = 16;                              // rows of a tile; a row has 64 bytes
constexpr int32_t kGroup = 32;                             // bf16 numbers in a row of a tile: what a product sums
constexpr int32_t kTile = kSide * kSide;                   // 4-byte numbers, or pairs of bf16, of a tile
constexpr int32_t kMaxBlocks = kTileRows / kSide;          // of rows
static_assert(kGroup == rules::kBf16Vector && kTileRows % kSide == 0 && rules::cpu_config().split_align % kGroup == 0);

// Palette 1 of LDTILECFG (Intel SDM vol. 1, 18.2): all eight registers with 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTileConfig;

// What was written before is in memory for the tile loads behind. (g++ does not see that these read it.)
inline void finish_writes() { asm volatile("" ::: "memory"); }

// ---- Packing ----------------------------------------------------------------------------------------------------------

// Of 16 x 16 numbers of 4 bytes.
inline void transpose(__m512i (&x)[kSide]) {
  __m512i y[kSide];
  each<kSide / 2>([&](auto i) {
    y[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
    y[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
  });
  each<kSide / 4>([&](auto i) {  // x[4 i + j]: column 4 q + j of rows 4 i ... in each quarter q
    x[4 * i] = _mm512_unpacklo_epi64(y[4 * i], y[4 * i + 2]);
    x[4 * i + 1] = _mm512_unpackhi_epi64(y[4 * i], y[4 * i + 2]);
    x[4 * i + 2] = _mm512_unpacklo_epi64(y[4 * i + 1], y[4 * i + 3]);
    x[4 * i + 3] = _mm512_unpackhi_epi64(y[4 * i + 1], y[4 * i + 3]);
  });
  each<kSide / 4>([&](auto j) {  // quarters of four vectors as a matrix of 4 x 4
    const __m512i a = _mm512_shuffle_i32x4(x[j], x[4 + j], 0x44), b = _mm512_shuffle_i32x4(x[j], x[4 + j], 0xee);
    const __m512i c = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0x44), d = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0xee);
    y[j] = _mm512_shuffle_i32x4(a, c, 0x88);
    y[4 + j] = _mm512_shuffle_i32x4(a, c, 0xdd);
    y[8 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
    y[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
  });
  each<kSide>([&](auto i) { x[i] = y[i]; });
}

// 16 rows of `width` numbers as B, width / 32 tiles; a null row is zeros.
inline void pack_rows(const uint16_t *const (&row)[kSide], int32_t width, uint32_t *to) {
  for (int32_t d = 0; d < width; d += kGroup, to += kTile) {
    __m512i x[kSide];
    each<kSide>([&](auto r) { x[r] = row[r] != nullptr ? _mm512_loadu_si512(row[r] + d) : _mm512_setzero_si512(); });
    transpose(x);
    each<kSide>([&](auto i) { _mm512_storeu_si512(to + i * kSide, x[i]); });
  }
}

// 32 keys of `width` values as B: at to + i * step the two tiles of columns 32 i ... 32 i + 31.
inline void pack_values(const char *const *keys, int32_t width, uint32_t *to, int64_t step) {
  for (int32_t k = 0; k < kGroup; k += 2) {
    const auto *const x = reinterpret_cast<const uint16_t *>(keys[k]), *const y = reinterpret_cast<const uint16_t *>(keys[k + 1]);
    uint32_t *pairs = to + k / 2 * kSide;
    for (int32_t c = 0; c < width; c += kGroup, pairs += step) {
      const Bf16Pairs a = Bf16Pairs::load(x + c), b = Bf16Pairs::load(y + c);
      _mm512_storeu_si512(pairs, first_pairs(a, b).v);
      _mm512_storeu_si512(pairs + kTile, last_pairs(a, b).v);
    }
  }
}

// Sets key `k` of a packed group to zeros.
inline void clear_packed_key(int32_t k, int32_t width, uint32_t *group, int64_t step) {
  const __m512i other = _mm512_set1_epi32(k % 2 == 0 ? static_cast<int32_t>(0xffff0000u) : 0xffff);
  uint32_t *pairs = group + k / 2 * kSide;
  for (int32_t c = 0; c < width; c += kGroup, pairs += step) {
    _mm512_storeu_si512(pairs, _mm512_and_si512(_mm512_loadu_si512(pairs), other));
    _mm512_storeu_si512(pairs + kTile, _mm512_and_si512(_mm512_loadu_si512(pairs + kTile), other));
  }
}

// Whether n bf16 numbers, a multiple of 32, are all finite.
inline bool all_finite(const char *row, int32_t n) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 others = 0;
  for (int32_t i = 0; i < n; i += kGroup) {
    const __m512i x = _mm512_loadu_si512(row + 2 * i);
    others |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
  }
  return others == 0;
}

// 32 rounded numbers, pairs of one of x and the one in the same lane of y.
inline __m512i rounded_pairs(Vec x, Vec y) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i places = _mm512_add_epi32(_mm512_or_si512(lanes, _mm512_slli_epi32(lanes, 16)), _mm512_set1_epi32(16 << 16));
  return _mm512_permutexvar_epi16(places, Bf16Pairs::round(x, y).v);
}

// ---- One chunk --------------------------------------------------------------------------------------------------------

// Where the tiles of a chunk lie in the scratch of a thread, each without gaps.
struct Tiles {
  const Scratch &s;
  int32_t steps;   // groups of columns of a key
  int32_t blocks;  // of 16 rows
  int32_t groups;  // of 32 keys

  uint32_t *queries(int32_t block) const { return reinterpret_cast<uint32_t *>(s.q) + int64_t{block} * steps * kTile; }
  // Scores [32 keys, 16 rows] of each group, then in the first half of that place its weights [16 rows, 32 keys].
  float *scores(int32_t block) const { return s.scores + int64_t{block} * groups * 2 * kTile; }
  // The two tiles of 32 columns, group after group.
  uint32_t *values(int32_t columns) const { return reinterpret_cast<uint32_t *>(s.values) + int64_t{columns} * values_step(); }
  int64_t values_step() const { return int64_t{groups} * 2 * kTile; }
};

// 16 keys, `stride` bytes apart.
struct KeyTile {
  const char *first;
  int64_t stride;
};

// A group of keys as two tiles: behind the keys that there are come zeros, and what does not lie in equal distances, or is not bf16, is
// copied.
inline void make_key_tiles(const Problem &p, const Scratch &s, const rules::CpuThreadLayout &l, KeyRows *keys, KeyTile (&tiles)[2]) {
  const auto bytes = sizeof(uint16_t) * static_cast<std::size_t>(p.qk_dim);
  const auto copy = [&](int32_t k) { return reinterpret_cast<char *>(s.kv + k * l.kv_ld); };
  convert_keys(p, s, l, keys);
  for (int32_t k = keys->count; k < kGroup; ++k) {
    std::memset(copy(k), 0, bytes);
    keys->row[k] = copy(k);
  }
  for (int32_t half = 0; half < 2; ++half) {
    const char **const row = keys->row + half * kSide;
    const auto place = [&](int32_t i) { return reinterpret_cast<intptr_t>(row[i]); };
    const int64_t stride = place(1) - place(0);
    bool equal = true;
    for (int32_t i = 2; i < kSide; ++i) equal = equal && place(i) - place(i - 1) == stride;
    for (int32_t i = 0; !equal && i < kSide; ++i) {
      char *const to = copy(half * kSide + i);
      if (row[i] != to) std::memcpy(to, row[i], bytes);
      row[i] = to;
    }
    tiles[half] = {row[0], equal ? stride : int64_t{4} * l.kv_ld};
  }
}

// Scores of a group with the rows of a block, or with `two` of it and the next. step(d) is called once for each group of columns.
template <bool two, class Step>
inline void score_tiles(const Tiles &t, const KeyTile (&keys)[2], int32_t group, int32_t block, Step step) {
  const uint32_t *const q = t.queries(block), *const next_q = t.queries(block + 1);
  finish_writes();
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (two) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int32_t d = 0; d < t.steps; ++d) {
    step(d);
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
  float *const to = t.scores(block) + group * 2 * kTile;
  _tile_stored(0, to, 64);
  _tile_stored(1, to + kTile, 64);
  if constexpr (two) {
    float *const next = t.scores(block + 1) + group * 2 * kTile;
    _tile_stored(2, next, 64);
    _tile_stored(3, next + kTile, 64);
  }
}

// Softmax of 16 rows over a chunk: scores [keys, 16] become weights, tiles [16, 32]. visible[i]: keys that row i sees, the first ones.
inline void softmax_rows(float *scores, int32_t groups, const int32_t *visible, float scale, float *max_out, float *sum_out) {
  const __m512i limits = _mm512_loadu_si512(visible);
  const Vec factor = Vec::broadcast(scale), nothing = Vec::broadcast(kMinusInf);
  const auto score = [&](int32_t key) {
    const __mmask16 sees = _mm512_cmpgt_epi32_mask(limits, _mm512_set1_epi32(key));
    return Vec{_mm512_mask_mov_ps(nothing.v, sees, (Vec::load(scores + key * kSide) * factor).v)};
  };
  Vec largest[2] = {nothing, nothing}, total[2] = {Vec::zero(), Vec::zero()};
  for (int32_t k = 0; k < groups * kGroup; k += 2) {
    largest[0] = max(score(k), largest[0]);
    largest[1] = max(score(k + 1), largest[1]);
  }
  largest[0] = max(largest[0], largest[1]);
  largest[0].store(max_out);
  // All scores -inf: weights 0, not NaN.
  const Vec reference = {_mm512_mask_mov_ps(largest[0].v, _mm512_cmpeq_ps_mask(largest[0].v, nothing.v), _mm512_setzero_ps())};
  for (int32_t g = 0; g < groups; ++g) {
    __m512i pairs[kSide];
    for (int32_t i = 0; i < kSide; ++i) {
      const int32_t k = g * kGroup + 2 * i;
      const Vec a = exp(score(k) - reference), b = exp(score(k + 1) - reference);
      total[0] = total[0] + a;
      total[1] = total[1] + b;
      pairs[i] = rounded_pairs(a, b);
    }
    transpose(pairs);
    for (int32_t i = 0; i < kSide; ++i) _mm512_storeu_si512(scores + g * 2 * kTile + i * kSide, pairs[i]);
  }
  (total[0] + total[1]).store(sum_out);
}

// Rows [begin, end) of a row tile.
struct RowRange {
  int32_t begin, end;
};

// acc[r][32 columns ...] = weights times values, for the rows of a range that are in a block, or with `two` in it and the next.
template <bool two>
inline void value_tiles(const Tiles &t, int32_t block, int32_t columns, RowRange range, float *acc, int32_t acc_ld) {
  const float *const weights = t.scores(block), *const next_weights = t.scores(block + 1);
  const uint32_t *const values = t.values(columns);
  finish_writes();
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (two) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int32_t g = 0; g < t.groups; ++g) {
    const int32_t at = g * 2 * kTile;
    _tile_loadd(4, weights + at, 64);
    _tile_loadd(6, values + at, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, values + at + kTile, 64);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (two) {
      _tile_loadd(5, next_weights + at, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  // Of a block that is not wholly in the range, its rows of it.
  alignas(64) float apart[2][kSide * kGroup];
  const auto row_of = [&](int32_t i) { return (block + i) * kSide; };
  const auto whole = [&](int32_t i) { return range.begin <= row_of(i) && row_of(i) + kSide <= range.end; };
  const auto place = [&](int32_t i) { return whole(i) ? acc + int64_t{row_of(i)} * acc_ld + columns * kGroup : apart[i]; };
  const auto stride = [&](int32_t i) { return 4 * int64_t{whole(i) ? acc_ld : kGroup}; };
  _tile_stored(0, place(0), stride(0));
  _tile_stored(1, place(0) + kSide, stride(0));
  if constexpr (two) {
    _tile_stored(2, place(1), stride(1));
    _tile_stored(3, place(1) + kSide, stride(1));
  }
  for (int32_t i = 0; i < (two ? 2 : 1); ++i) {
    if (whole(i)) continue;
    for (int32_t r = rules::max(range.begin, row_of(i)); r < rules::min(range.end, row_of(i) + kSide); ++r)
      std::memcpy(acc + int64_t{r} * acc_ld + columns * kGroup, apart[i] + (r - row_of(i)) * kGroup, 4 * kGroup);
  }
}

inline void multiply_rows(const Tiles &t, RowRange range, int32_t v_dim, float *acc, int32_t acc_ld) {
  const int32_t first = range.begin / kSide, end = rules::ceil_div(range.end, kSide);
  for (int32_t c = 0; c < v_dim / kGroup; ++c) {
    int32_t b = first;
    for (; b + 1 < end; b += 2) value_tiles<true>(t, b, c, range, acc, acc_ld);
    if (b < end) value_tiles<false>(t, b, c, range, acc, acc_ld);
  }
}

// acc = weights times values. `finite`: so are all values that some row does not see, and weight 0 keeps them out. Otherwise rows with the same
// limit are taken together, those that see most first, and values beyond the limit are cleared before: 0 times NaN would be NaN.
inline void multiply_values(const Tiles &t, const int32_t *visible, int32_t rows, bool finite, int32_t v_dim, float *acc,
                            int32_t acc_ld) {
  if (finite) return multiply_rows(t, {0, rows}, v_dim, acc, acc_ld);
  int32_t left = visible[rows - 1];  // keys that are not cleared
  for (int32_t end = rows; end > 0;) {
    int32_t begin = end - 1;
    while (begin > 0 && visible[begin - 1] == visible[begin]) --begin;
    for (; left > visible[begin]; --left)
      clear_packed_key((left - 1) % kGroup, v_dim, t.values(0) + (left - 1) / kGroup * 2 * kTile, t.values_step());
    multiply_rows(t, {begin, end}, v_dim, acc, acc_ld);
    end = begin;
  }
}

// ---- The interface of isa.h -------------------------------------------------------------------------------------------

void load_query_tiles(const Problem &p, const rules::CpuThreadLayout &l, const RowTile &tile, const Scratch &s) {
  if (!multiplies_bf16(p)) return load_queries(p, l, tile, s);
  const Tiles t = {s, p.qk_dim / kGroup, rules::ceil_div(tile.rows, kSide), 0};
  for (int32_t b = 0; b < t.blocks; ++b) {
    const uint16_t *row[kSide] = {};
    for (int32_t i = 0; i < rules::min(kSide, tile.rows - b * kSide); ++i) {
      const rules::Row r = rules::unpack_row(tile.first_row + b * kSide + i, p.num_heads);
      row[i] = static_cast<const uint16_t *>(p.q) + rules::q_offset(p, tile.request, r);
    }
    pack_rows(row, p.qk_dim, t.queries(b));
  }
}

void chunk_tiles(const Problem &p, const rules::CpuThreadLayout &l, const RowTile &tile, rules::KeyRange keys, const Scratch &s,
                 const Node &node) {
  if (!multiplies_bf16(p)) return chunk(p, l, tile, keys, s, node);
  const auto count = static_cast<int32_t>(keys.end - keys.begin);
  const Tiles t = {s, p.qk_dim / kGroup, rules::ceil_div(tile.rows, kSide), rules::ceil_div(count, kGroup)};
  int32_t visible[kTileRows] = {};  // none to rows that are not there
  for (int32_t r = 0; r < tile.rows; ++r)
    visible[r] = static_cast<int32_t>(rules::clamp<int64_t>(visible_to_row(p, tile, r) - keys.begin, 0, count));

  _tile_loadconfig(&kTileConfig);
  bool finite = true;
  KeyRows found, next;
  const auto find = [&](int64_t begin, int64_t end, KeyRows *to) {
    find_keys(p, tile.request, {begin, rules::min(begin + kGroup, end)}, to);
  };
  find(keys.begin, keys.end, &next);
  for (int32_t g = 0; g < t.groups; ++g) {
    const int64_t begin = keys.begin + g * kGroup;
    found = next;
    // As in chunk(): the next group comes to the cache meanwhile, also of the chunk behind this one.
    find(rules::min<int64_t>(begin + kGroup, tile.keys), tile.keys, &next);
    KeyTile key_tiles[2];
    make_key_tiles(p, s, l, &found, key_tiles);
    const auto prefetch = [&](int32_t d) { prefetch_keys(p, next, d * kGroup / t.steps, (d + 1) * kGroup / t.steps); };
    for (int32_t b = 0; b < t.blocks; b += 2) {
      const auto step = [&](int32_t d) {
        if (b == 0) prefetch(d);
      };
      if (b + 1 < t.blocks) {
        score_tiles<true>(t, key_tiles, g, b, step);
      } else {
        score_tiles<false>(t, key_tiles, g, b, step);
      }
    }
    pack_values(found.row, p.v_dim, t.values(0) + g * 2 * kTile, t.values_step());
    for (int32_t k = rules::max(visible[0] - g * kGroup, 0); k < found.count; ++k)
      finite = finite && all_finite(found.row[k], p.v_dim);
  }
  for (int32_t b = 0; b < t.blocks; ++b) {
    const auto scale = static_cast<float>(static_cast<double>(p.sm_scale) * static_cast<double>(cache_scale(p)));
    softmax_rows(t.scores(b), t.groups, visible + b * kSide, scale, node.max + b * kSide, node.sum + b * kSide);
  }
  multiply_values(t, visible, tile.rows, finite, p.v_dim, node.acc, l.node.acc_ld);
  _tile_release();
}

}  // namespace
}  // namespace mlaverify::cpu
