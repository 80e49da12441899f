// The arithmetic of the CPU backend over a vector type `Vec`, which the including file has defined: here how a tile of keys is gone through,
// in elements.h, blocks.h and softmax.h what is done to its numbers. Everything has internal linkage: each instruction set gets its own copy.
//
// One chunk of keys, for one row tile:
//   for each tile of up to 64 keys that some row sees
//     for each block of columns
//       convert it to f32                                   kv         [keys, columns] (L1)
//       key_scores += kv q^T, keys x rows in registers      key_scores [keys, rows]    (L1)
//     f32 queries: scores too large for f32 again in f64
//     online softmax in place, a row a lane: scores become weights, max and sum move on, acc is rescaled where max grew
//     where rows would leave many lanes empty: convert and transpose a block of columns, scores += q kv^T, softmax along them, and weights
//       transposed to key_scores: the same sums
//     acc += weights kv[:, :Lv], rows x vectors in registers; keys are converted a block of columns at a time again, or as they are
//       loaded where that is cheap beside the products: the same bits
//   Where products take pairs of bf16 numbers (multiplies_bf16), only FP8 and records are converted, to these, and scores are rows x keys
//   from the start. The scales of records multiply sums over the columns of a group, and the values, which are rounded then.
//   Meanwhile the next tile of keys comes to the cache.
// Only keys that a row sees enter its softmax and its sum, so what it does not see may hold anything. Every sum runs in an
// order that depends on the key's or column's position alone: no bit depends on the other rows of the tile or on where a block
// ends.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/blocks.h"
#include "cpu/isa.h"
#include "cpu/softmax.h"
#include "rules/mask.h"
#include "rules/number.h"
#include "rules/paging.h"
#include "rules/products.h"
#include "rules/row.h"

namespace mlaverify::cpu {
namespace {

// ---- One key tile -----------------------------------------------------------------------------------------------------

inline void find_keys(const Problem &p, int32_t request, rules::KeyRange keys, KeyRows *found) {
  const int64_t step = p.kv_slot_stride * rules::dtype_bytes(p.kv_dtype);
  found->count = 0;
  rules::Slot slot = rules::slot_of(keys.begin, p.page_size);
  for (int64_t key = keys.begin; key < keys.end;) {
    const int64_t run = rules::min<int64_t>(p.page_size - slot.offset, keys.end - key);
    const char *const first = rules::row_at(p, rules::kv_offset(p, rules::page_id(p, request, slot.entry), slot.offset));
    for (int64_t i = 0; i < run; ++i, ++key) found->row[found->count++] = first + i * step;
    slot = {slot.entry + 1, 0};
  }
  for (int32_t k = found->count; k > 0 && k < kTileKeys; ++k) found->row[k] = found->row[k - 1];
}

// Whether products take pairs of bf16 numbers.
inline bool multiplies_bf16(const Problem &p) { return Vec::multiplies_bf16 && rules::bf16_products(p); }

// The numbers of record k of a tile as bf16, without their scales, which go to keys->scale. Those beyond kRecordMostScale multiply the
// numbers here, and are 1 then.
template <class V>
inline void record_to_bf16(const char *row, int32_t k, uint16_t *to, KeyRows *keys) {
  V::fp8_to_bf16(DType::f8_e4m3, row, rules::kRecordScaled, to);
  std::memcpy(to + rules::kRecordScaled, row + rules::kRecordTailAt, rules::kRecordBytes - rules::kRecordTailAt);
  for (int32_t g = 0; g < rules::kRecordGroups; ++g) {
    const float scale = rules::record_scales(row)[g];
    const bool usual = std::abs(scale) <= rules::kRecordMostScale;
    uint16_t *const numbers = to + g * rules::kRecordGroup;
    for (int32_t i = 0; !usual && i < rules::kRecordGroup; ++i)
      numbers[i] = rules::float_to_bf16(rules::bf16_to_float(numbers[i]) * scale);
    keys->scale[g][k] = usual ? scale : 1.0f;
  }
}

// Converts the keys of a tile that such products cannot take as they are, FP8 and records, to bf16; `keys` then says where they lie.
// (V: not every Vec has what is behind its constants.)
template <class V = Vec>
inline void make_bf16_keys(const Problem &p, const Scratch &s, const rules::CpuThreadLayout &l, KeyRows *keys) {
  if constexpr (V::multiplies_bf16) {
    const bool records = rules::is_record(p.kv_dtype);
    for (int32_t k = 0; (records || rules::is_fp8(p.kv_dtype)) && k < keys->count; ++k) {
      float *const to = s.kv + k * l.kv_bf16_ld;
      if (records) {
        record_to_bf16<V>(keys->row[k], k, reinterpret_cast<uint16_t *>(to), keys);
      } else {
        V::fp8_to_bf16(p.kv_dtype, keys->row[k], p.qk_dim, reinterpret_cast<uint16_t *>(to));
      }
      keys->row[k] = reinterpret_cast<const char *>(to);
    }
  }
}

// Whether the second product converts cached rows as it loads them, in each block of rows again, other than in_pairs(): f32 numbers take
// nothing, f16 numbers two instructions a vector, the other types more.
inline bool loads_cached(const Problem &p, int32_t rows) {
  const bool cheap =
      p.kv_dtype == DType::f32 || (p.kv_dtype == DType::f16 && (Vec::converts_as_it_loads || rows <= Vec::value_rows));
  return cheap && p.v_dim % Vec::width == 0;
}

// Whether accumulators are in the order of load_bf16_pairs().
inline bool in_pairs(const Problem &p) {
  return p.kv_dtype == DType::bf16 && !multiplies_bf16(p) && p.v_dim % (2 * Vec::width) == 0;
}

// Rows of a tile in whole vectors.
inline int32_t lanes_of(int32_t rows) { return rules::round_up<int32_t>(rows, Vec::width); }

// Whether keys lie in the lanes of f32 products, transposed, and not the rows: where the rows would leave more lanes empty than it costs
// to transpose a tile of keys. Every sum is the same either way.
inline bool keys_in_lanes(int32_t rows) { return lanes_of(rows) - rows >= Vec::transposing_rows; }

// Sums over n columns for `lanes` rows of x, in the lanes, and `count` rows of y, as score_block().
template <int32_t y_ld>
inline void multiply_columns(const float *x, int32_t ld, int32_t lanes, const float *y, int32_t count, int32_t n, bool add,
                             float *sums, LinesAhead *ahead) {
  constexpr int V = Vec::score_vectors;
  for (int32_t i = 0; i < lanes; i += V * Vec::width) {
    with_constant<V>(rules::min(V, (lanes - i) / Vec::width), [&](auto nv) {
      // Blocks of fewer rows, at the end, come in steps only: those behind the last one are there, whatever they hold.
      constexpr int K = Vec::score_accumulators / nv(), step = K >= 24 ? 8 : K >= 12 ? 4 : 2;
      static_assert(kTileKeys % step == 0 && Vec::width % step == 0);
      for (int32_t k = 0; k < count; k += K) {
        with_constant<K / step>(rules::min(K, rules::round_up(count - k, step)) / step, [&](auto steps) {
          score_block<nv(), steps() * step, y_ld>(x + i, ld, y + k * y_ld, n, add, sums + k * ld + i, ahead);
        });
      }
    });
  }
}

// Scores of f32 products.
inline void float_scores(const Problem &p, const Scratch &s, const rules::CpuThreadLayout &l, int32_t rows, const KeyRows &keys,
                         LinesAhead *ahead) {
  const int32_t lanes = lanes_of(rows), count = keys.count, key_lanes = lanes_of(count);
  const bool transposed = keys_in_lanes(rows);
  float *const squares = p.q_dtype == DType::f32 ? s.squares : nullptr;
  const int32_t pieces = rules::ceil_div(p.qk_dim, Vec::width) * (key_lanes / Vec::width);
  const auto fetch = [=] { ahead->fetch_part(pieces); };
  const int32_t columns = score_columns(p);
  const auto multiply = [=](auto... x) {
    columns == kColumns ? multiply_columns<kColumns>(x...) : multiply_columns<kFloatColumns>(x...);
  };
  for (int32_t d = 0; d < p.qk_dim; d += columns) {
    const int32_t n = rules::min(columns, p.qk_dim - d);
    if (transposed) {
      convert_transposed(p.kv_dtype, keys.row, count, d, n, s.kv, l.scores_ld, squares, fetch);
      multiply(s.kv, l.scores_ld, key_lanes, s.q + d * rows, rows, n, d > 0, s.scores, ahead);
    } else {
      convert(p.kv_dtype, keys.row, count, d, n, s.kv, columns, squares);
      multiply(s.q + d * lanes, lanes, lanes, s.kv, count, n, d > 0, s.key_scores, ahead);
    }
  }
}

template <class Keys>
inline void pair_scores(const Problem &p, const Scratch &s, const rules::CpuThreadLayout &l, int32_t rows, const Keys &keys,
                        int32_t count, LinesAhead *ahead) {
  // (Of records there are twice as many accumulators.)
  constexpr int R = Keys::Products::score_rows, K = Keys::Products::score_keys / (Keys::has_scales ? 2 : 1);
  const int32_t blocks = rules::ceil_div(count, K) * rules::ceil_div(rows, R);
  for (int32_t k = 0; k < count; k += K) {
    with_constant<K>(rules::min(K, count - k), [&](auto nk) {
      for (int32_t r = 0; r < rows; r += R) {
        ahead->fetch_part(blocks);
        with_constant<R>(rules::min(R, rows - r), [&](auto nr) {
          score_pairs<nr(), nk()>(s.q + r * l.q_ld, l.q_ld, keys, k, p.qk_dim, s.scores + r * l.scores_ld + k, l.scores_ld);
        });
      }
    });
  }
}

// (V: not every Vec has the types behind its constants.)
template <class V = Vec>
inline void scores_of(const Problem &p, const Scratch &s, const rules::CpuThreadLayout &l, int32_t rows, const KeyRows &keys,
                      LinesAhead *ahead) {
  if constexpr (V::multiplies_bf16) {
    if (multiplies_bf16(p) && rules::is_record(p.kv_dtype))
      return pair_scores(p, s, l, rows, RecordKeys<V>{{keys.row}, keys.scale}, keys.count, ahead);
    if (multiplies_bf16(p)) return pair_scores(p, s, l, rows, Bf16Keys<V>{keys.row}, keys.count, ahead);
  }
  float_scores(p, s, l, rows, keys, ahead);
}

// Weights of the rows of a tile, as blocks.h has them.
struct Weights {
  const float *from;
  int32_t ld;
};

// Of columns [begin, end). visible[r]: keys of the tile that row r sees, the first ones. first: nothing was added to acc before.
template <class Keys>
inline void add_columns(Weights weights, int32_t ld, int32_t rows, const Keys &keys, const int32_t *visible, bool first,
                        int32_t begin, int32_t end, float *acc, LinesAhead *ahead) {
  using Products = typename Keys::Products;
  constexpr int R = Vec::value_rows, C = Vec::value_vectors;
  const auto add = [&](auto nr, auto nc, int32_t r, int32_t c, int32_t from, int32_t to) {
    value_block<nr(), nc()>(Products::from_row(weights.from, weights.ld, r), weights.ld, keys, c, from, to, first && from == 0,
                            acc + r * ld + c, ld, ahead);
  };
  for (int32_t c = begin; c < end; c += C * Vec::width) {
    with_constant<C>(rules::min(C, rules::ceil_div(end - c, Vec::width)), [&](auto nc) {
      for (int32_t r = 0; r < rows; r += R) {
        with_constant<R>(rules::min(R, rows - r), [&](auto nr) {
          int32_t common = visible[r];
          int32_t most = common;
          for (int i = 1; i < nr(); ++i) {
            common = rules::min(common, visible[r + i]);
            most = rules::max(most, visible[r + i]);
          }
          if (common < most) common -= common % Products::keys;
          add(nr, nc, r, c, 0, common);
          for (int32_t i = r; i < r + nr(); ++i) {  // boundary tiles: what some rows of the block see and others don't
            if (visible[i] > common) add(std::integral_constant<int, 1>(), nc, i, c, common, visible[i]);
          }
        });
      }
    });
  }
}

template <class V = Vec>
[[gnu::noinline]] void add_values(const Problem &p, const Scratch &s, const rules::CpuThreadLayout &l, int32_t rows,
                                  const KeyRows &keys, const int32_t *visible, bool first, float *acc, LinesAhead *ahead) {
  Weights weights = {s.key_scores, lanes_of(rows)};
  const auto all_columns = [&](const auto &k) {
    add_columns(weights, l.node.acc_ld, rows, k, visible, first, 0, p.v_dim, acc, ahead);
  };
  if constexpr (V::multiplies_bf16) {
    if (multiplies_bf16(p)) {
      weights = {s.scores, l.scores_ld};
      for (int32_t r = 0; r < rows; ++r) Bf16Products<V>::round_weights(s.scores + r * l.scores_ld, visible[r]);
      if (!rules::is_record(p.kv_dtype)) return all_columns(Bf16Keys<V>{keys.row});
      const RecordValues<V> values = {s.values};
      for (int32_t k = 0; k < keys.count; ++k) {
        for (int32_t c = 0; c < p.v_dim; c += Bf16Products<V>::columns) {
          const Vec scale = Vec::broadcast(keys.scale[c / rules::kRecordGroup][k]);
          V::scaled(Bf16Keys<V>{keys.row}.at(k, c), scale).store(values.row(k) + c);
        }
      }
      return all_columns(values);
    }
  }
  if (in_pairs(p)) return all_columns(PairKeys{keys.row});
  if (loads_cached(p, rows)) {
    if (p.kv_dtype == DType::f16) return all_columns(CachedKeys<uint16_t, Vec::load_f16>{keys.row});
    return all_columns(CachedKeys<float, Vec::load>{keys.row});
  }
  for (int32_t c = 0; c < p.v_dim; c += kValueColumns) {
    const int32_t n = rules::min(kValueColumns, p.v_dim - c);
    convert(p.kv_dtype, keys.row, keys.count, c, n, s.kv, kValueColumns, nullptr);
    add_columns(weights, l.node.acc_ld, rows, ConvertedKeys{s.kv, c}, visible, first, c, c + n, acc, ahead);
  }
}

// ---- The interface of isa.h -------------------------------------------------------------------------------------------

inline int32_t visible_to_row(const Problem &p, const RowTile &tile, int32_t r) {
  return rules::visible_keys(p, tile.request, rules::unpack_row(tile.first_row + r, p.num_heads).token);
}

// Element of q at which a row of the tile begins.
inline int64_t query_offset(const Problem &p, const RowTile &tile, int32_t r) {
  return rules::q_offset(p, tile.request, rules::unpack_row(tile.first_row + r, p.num_heads));
}

inline float cache_scale(const Problem &p) { return p.k_scale != nullptr ? *p.k_scale : 1.0f; }

void load_queries(const Problem &p, const rules::CpuThreadLayout &l, const RowTile &tile, const Scratch &s) {
  if (multiplies_bf16(p)) {
    for (int32_t r = 0; r < tile.rows; ++r)
      std::memcpy(s.q + r * l.q_ld, static_cast<const uint16_t *>(p.q) + query_offset(p, tile, r),
                  sizeof(uint16_t) * static_cast<size_t>(p.qk_dim));
    return;
  }
  const int32_t lanes = lanes_of(tile.rows), size = rules::dtype_bytes(p.q_dtype), columns = score_columns(p);
  const bool f32 = p.q_dtype == DType::f32, transposed = keys_in_lanes(tile.rows);
  for (int32_t first = 0; first < lanes; first += Vec::width) {
    const int32_t count = rules::min(Vec::width, tile.rows - first);
    const char *rows[Vec::width];
    for (int32_t i = 0; i < count; ++i) rows[i] = static_cast<const char *>(p.q) + query_offset(p, tile, first + i) * size;
    // Converted where keys will lie. What is in rows that are missing is multiplied, too, but not looked at.
    std::memset(s.kv, 0, sizeof(float) * Vec::width * kColumns);
    std::memset(s.squares, 0, sizeof(float) * Vec::width * kTileKeys);
    for (int32_t d = 0; d < p.qk_dim; d += columns) {
      const int32_t n = rules::min(columns, p.qk_dim - d);
      float *const to = transposed ? s.q + d * tile.rows + first * columns : s.kv;
      convert(p.q_dtype, rows, count, d, n, to, columns, f32 ? s.squares : nullptr);
      if (!transposed) transpose(s.kv, columns, Vec::width, n, s.q + d * lanes + first, lanes);
    }
    for (int32_t i = 0; f32 && i < count; ++i) s.q_norms[first + i] = norm_bound(s.squares + i * Vec::width);
  }
}

// From the scores of a tile of keys to weights. visible: 0 for lanes without a row. (Inlined, it and add_values() would keep g++ from
// inlining conversions, which hold in registers what they fetch next.)
[[gnu::noinline]] void weigh(const Problem &p, const rules::CpuThreadLayout &l, const RowTile &tile, const Scratch &s,
                             const KeyRows &keys, const int32_t *visible, const Node &node) {
  const double scale = static_cast<double>(p.sm_scale) * static_cast<double>(cache_scale(p));
  const auto factor = static_cast<float>(scale);
  const int32_t lanes = lanes_of(tile.rows), count = keys.count;
  const bool refined = p.q_dtype == DType::f32, by_row = multiplies_bf16(p) || keys_in_lanes(tile.rows);
  float kv_norms[kTileKeys], kv_largest[kTileKeys];
  for (int32_t k = 0; refined && k < count; ++k) {
    kv_norms[k] = norm_bound(s.squares + k * Vec::width);
    kv_largest[k] = k == 0 ? kv_norms[k] : rules::max(kv_largest[k - 1], kv_norms[k]);
  }
  bool converted = false;
  const auto whole_key = [&](int32_t k) {
    if (!converted) convert(p.kv_dtype, keys.row, count, 0, p.qk_dim, s.kv, l.kv_ld, nullptr);
    converted = true;
    return s.kv + k * l.kv_ld;
  };
  float low[kTileKeys * Vec::width];
  // Of scores [i * ld] with second parts [i * low_ld].
  const auto refine = [&](int32_t r, float *scores, int32_t ld, float *seconds, int32_t low_ld) {
    return refine_scores(static_cast<const float *>(p.q) + query_offset(p, tile, r), s.q_norms[r], kv_norms, kv_largest,
                         p.qk_dim, visible[r], scale, whole_key, scores, ld, seconds, low_ld);
  };
  for (int32_t r = 0; by_row && r < tile.rows; ++r) {
    if (visible[r] == 0) continue;
    float *const scores = s.scores + r * l.scores_ld;
    scale_scores(scores, visible[r], factor);
    if (refined) std::memset(low, 0, sizeof(float) * kTileKeys);
    const bool two_parts = refined && refine(r, scores, 1, low, 1);
    softmax_row(scores, two_parts ? low : nullptr, visible[r], node.max + r, node.sum + r, node.acc + r * l.node.acc_ld,
                p.v_dim);
  }
  for (int32_t first = 0; !by_row && first < tile.rows; first += Vec::width) {
    const int32_t end = rules::min(first + Vec::width, tile.rows);
    float *const scores = s.key_scores + first;
    bool two_parts = false;
    if (refined) {
      std::memset(low, 0, sizeof(low));
      for (int32_t k = 0; k < count; ++k) (Vec::load(scores + k * lanes) * Vec::broadcast(factor)).store(scores + k * lanes);
      for (int32_t r = first; r < end; ++r)
        two_parts |= visible[r] > 0 && refine(r, scores + r - first, lanes, low + r - first, Vec::width);
    }
    float shrink[Vec::width];
    softmax_lanes(scores, lanes, count, two_parts ? low : nullptr, visible + first, refined ? 1.0f : factor, node.max + first,
                  node.sum + first, shrink);
    for (int32_t r = first; r < end; ++r) {
      if (shrink[r - first] != 1.0f) scale_row(node.acc + r * l.node.acc_ld, p.v_dim, shrink[r - first]);
    }
  }
  if (by_row && !multiplies_bf16(p)) transpose(s.scores, l.scores_ld, lanes, lanes_of(count), s.key_scores, lanes);
}

void chunk(const Problem &p, const rules::CpuThreadLayout &l, const RowTile &tile, rules::KeyRange keys, const Scratch &s,
           const Node &node) {
  int32_t seen[kTileRows];
  for (int32_t r = 0; r < tile.rows; ++r) seen[r] = visible_to_row(p, tile, r);
  for (int32_t r = 0; r < lanes_of(tile.rows); ++r) {
    node.max[r] = kMinusInf;
    node.sum[r] = 0;
  }
  KeyRows found, next;
  find_keys(p, tile.request, {keys.begin, rules::min<int64_t>(keys.begin + kTileKeys, keys.end)}, &next);
  for (int64_t begin = keys.begin; begin < keys.end; begin += kTileKeys) {
    const rules::KeyRange part = {begin, rules::min<int64_t>(begin + kTileKeys, keys.end)};
    found = next;
    // The next tile comes to the cache meanwhile; behind the last one, the first of the chunk that mostly follows.
    find_keys(p, tile.request, {part.end, rules::min<int64_t>(part.end + kTileKeys, tile.keys)}, &next);
    int32_t visible[kTileRows] = {};  // also of lanes without a row
    for (int32_t r = 0; r < tile.rows; ++r)
      visible[r] = static_cast<int32_t>(rules::clamp<int64_t>(seen[r] - part.begin, 0, found.count));
    if (multiplies_bf16(p)) make_bf16_keys(p, s, l, &found);
    if (p.q_dtype == DType::f32) std::memset(s.squares, 0, sizeof(float) * Vec::width * kTileKeys);
    LinesAhead ahead(next, rules::row_bytes(p.kv_dtype, p.qk_dim));
    scores_of(p, s, l, tile.rows, found, &ahead);
    weigh(p, l, tile, s, found, visible, node);
    add_values(p, s, l, tile.rows, found, visible, begin == keys.begin, node.acc, &ahead);
  }
}

void merge(const Problem &p, const rules::CpuThreadLayout &l, int32_t rows, const Node &left, const Node &right) {
  for (int32_t r = 0; r < rows; ++r) {
    const auto step =
        rules::merge_states({left.max[r], left.sum[r]}, {right.max[r], right.sum[r]}, [](float x) { return exp(x); });
    left.max[r] = step.merged.max;
    left.sum[r] = step.merged.sum;
    if (step.b == 0.0f && step.a == 1.0f) continue;  // the right side weighs nothing
    float *to = left.acc + r * l.node.acc_ld;
    const float *from = right.acc + r * l.node.acc_ld;
    const bool take = step.a == 0.0f && step.b == 1.0f;  // so does the left
    for (int32_t c = 0; c < p.v_dim; c += Vec::width) {
      const Vec x = Vec::load(from + c);
      (take ? x : fma(Vec::load(to + c), Vec::broadcast(step.a), x * Vec::broadcast(step.b))).store(to + c);
    }
  }
}

void finish(const Problem &p, const rules::CpuThreadLayout &l, const RowTile &tile, const Node &node) {
  alignas(64) static constexpr float zeros[Vec::width] = {};
  for (int32_t r = 0; r < tile.rows; ++r) {
    const rules::Row row = rules::unpack_row(tile.first_row + r, p.num_heads);
    const int64_t at = rules::out_offset(p, tile.request, row);
    float *lse = p.lse + rules::lse_offset(p, tile.request, row);
    if (visible_to_row(p, tile, r) == 0) {
      for (int32_t c = 0; c < p.v_dim; c += Vec::width)
        store_row(p.q_dtype, zeros, 1.0f, rules::min(Vec::width, p.v_dim - c), p.out, at + c);
      *lse = kMinusInf;
      continue;
    }
    // Keys, but every score -inf: sum is 0 and the softmax is undefined, so NaN as by definition, not the -inf of a row without
    // keys.
    const bool undefined = node.sum[r] == 0.0f;
    float *const acc = node.acc + r * l.node.acc_ld;
    for (int32_t c = 0; in_pairs(p) && c < p.v_dim; c += 2 * Vec::width) {
      Vec first = Vec::load(acc + c), second = Vec::load(acc + c + Vec::width);
      join_pairs(&first, &second);
      first.store(acc + c);
      second.store(acc + c + Vec::width);
    }
    store_row(p.q_dtype, acc, cache_scale(p) / node.sum[r], p.v_dim, p.out, at);
    *lse = undefined ? std::numeric_limits<float>::quiet_NaN() : node.max[r] + std::log(node.sum[r]);
  }
}

}  // namespace
}  // namespace mlaverify::cpu
