// The arithmetic of the CPU backend over a vector type `Vec`, which the including file has defined. Everything here has
// internal linkage: each instruction set gets its own copy.
//
// One chunk of keys, for one row tile:
//   for each tile of up to 64 keys that some row sees
//     convert its cached rows to f32 once                  kv     [keys, Lk]   (L2)
//       or, where that is cheap beside the products, as they are loaded for these: the same bits
//       or not to f32 at all, where products take pairs of bf16 numbers (multiplies_bf16): FP8 numbers to these
//     scores = q kv^T, rows x keys in registers            scores [rows, keys] (L1)
//     f32 queries: scores too large for f32 again in f64
//     online softmax in place: scores become weights, max and sum move on, acc is rescaled where max grew
//     acc += weights kv[:, :Lv], rows x vectors in registers
// Rows of q, kv and acc are padded to whole vectors, those of q and kv with zeros.
// Only keys that a row sees enter its softmax and its sum, so what it does not see may hold anything. Every sum runs in an
// order that depends on the key's or column's position alone: no bit depends on the other rows of the tile or on where a block
// ends.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/isa.h"
#include "rules/mask.h"
#include "rules/number.h"
#include "rules/paging.h"
#include "rules/products.h"

namespace mlaverify::cpu {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr int32_t kTileKeys = rules::cpu_config().block_n;
constexpr int32_t kTileRows = rules::cpu_config().block_h;
static_assert(kTileKeys % (2 * Vec::width) == 0, "rows of scores are whole vectors, and pairs of them");

// ---- Elements ---------------------------------------------------------------------------------------------------------

// load(p): a vector from p; load(p, n): its first n lanes, where a vector is wider than rows are multiples of.
template <class T, class Load>
inline void convert(const T *from, int32_t n, float *to, Load load) {
  int32_t i = 0;
  for (; i + Vec::width <= n; i += Vec::width) load(from + i).store(to + i);
  if constexpr (Vec::width > 8) {
    if (i < n) load(from + i, n - i).store(to + i);
  }
}

// Elements [at, at + n) of `data` as f32; n is a multiple of 8.
inline void load_row(DType t, const void *data, int64_t at, int32_t n, float *to) {
  const auto f32 = [](auto... x) { return Vec::load(x...); };
  const auto f16 = [](auto... x) { return Vec::load_f16(x...); };
  const auto bf16 = [](auto... x) { return Vec::load_bf16(x...); };
  const auto e4m3 = [](auto... x) { return Vec::load_e4m3(x...); };
  const auto e5m2 = [](auto... x) { return Vec::load_e5m2(x...); };
  switch (t) {
    case DType::f32: return convert(static_cast<const float *>(data) + at, n, to, f32);
    case DType::f16: return convert(static_cast<const uint16_t *>(data) + at, n, to, f16);
    case DType::bf16: return convert(static_cast<const uint16_t *>(data) + at, n, to, bf16);
    case DType::f8_e4m3: return convert(static_cast<const uint8_t *>(data) + at, n, to, e4m3);
    case DType::f8_e5m2: return convert(static_cast<const uint8_t *>(data) + at, n, to, e5m2);
    case DType::i32: return;  // not a cache type: refused by validate()
  }
}

// x as type `t` at element `at` of `data`; `lanes`: nothing for all, or how many.
template <class V, class... Lanes>
inline void store_as(DType t, V x, void *data, int64_t at, Lanes... lanes) {
  if (t == DType::f32) x.store(static_cast<float *>(data) + at, lanes...);
  if (t == DType::f16) x.store_f16(static_cast<uint16_t *>(data) + at, lanes...);
  if (t == DType::bf16) x.store_bf16(static_cast<uint16_t *>(data) + at, lanes...);
}

// scale * from, n elements (a multiple of 8), as type `t` at element `at` of `data`. A vector that begins at `from` + i may be read whole.
// Sums that are 0 come out as +0: their sign may depend on keys of weight 0 (amx.h).
inline void store_row(DType t, const float *from, float scale, int32_t n, void *data, int64_t at) {
  const Vec s = Vec::broadcast(scale);
  int32_t i = 0;
  for (; i + Vec::width <= n; i += Vec::width) store_as(t, Vec::load(from + i) * s + Vec::zero(), data, at + i);
  if constexpr (Vec::width > 8) {
    if (i < n) store_as(t, Vec::load(from + i) * s + Vec::zero(), data, at + i, n - i);
  }
}

// exp(x) for x <= 0 within 2 units in the last place; exactly 0 below the normal range; NaN stays NaN. The polynomial on
// [-ln2/2, ln2/2] is that of Cephes' expf (S. L. Moshier).
inline Vec exp(Vec x) {
  const Vec n = round(x * Vec::broadcast(1.44269504f));
  const Vec r = fma(n, Vec::broadcast(2.12194440e-4f), fma(n, Vec::broadcast(-0.693359375f), x));
  Vec y = Vec::broadcast(1.9875691500e-4f);
  y = fma(y, r, Vec::broadcast(1.3981999507e-3f));
  y = fma(y, r, Vec::broadcast(8.3334519073e-3f));
  y = fma(y, r, Vec::broadcast(4.1665795894e-2f));
  y = fma(y, r, Vec::broadcast(1.6666665459e-1f));
  y = fma(y, r, Vec::broadcast(5.0000001201e-1f));
  y = fma(y, r * r, r + Vec::broadcast(1.0f));
  return zero_below(y * pow2(n), x, -87.0f);
}

inline float exp(float x) {
  float lanes[Vec::width];
  exp(Vec::broadcast(x)).store(lanes);
  return lanes[0];
}

// ---- Register blocks --------------------------------------------------------------------------------------------------

// Calls f(integral constant n) for a run-time n in 1 ... limit.
template <int limit, class F>
inline void with_constant(int n, F f) {
  if constexpr (limit > 1) {
    if (n < limit) return with_constant<limit - 1>(n, f);
  }
  f(std::integral_constant<int, limit>());
}

// f(integral constant i) for i in 0 ... n-1: accumulators that only constants index stay in registers.
template <int n, class F>
inline void each(F f) {
  if constexpr (n > 1) each<n - 1>(f);
  if constexpr (n > 0) f(std::integral_constant<int, n - 1>());
}

// What products multiply (`Operand`), where they take it from, and how many columns of a score (`columns`) and how many keys of an
// output (`keys`) one of them sums.

struct FloatProducts {
  using Operand = Vec;
  static constexpr int32_t columns = Vec::width, keys = 1;
  static Operand query(const float *q, int32_t column) { return Vec::load(q + column); }
  template <int C, class Keys>
  static void values(const Keys &keys, int32_t k, int32_t /*end*/, int32_t column, Operand (&b)[C]) {
    each<C>([&](auto j) { b[j] = keys.at(k, column + j * Vec::width); });
  }
  static Operand weight(const float *weights, int32_t k) { return Vec::broadcast(weights[k]); }
  static void round_weights(float *, int32_t) {}
};

// Of pairs of bf16 numbers, summed in f32. Rows of queries and of weights, half as long, lie in the places of those in f32.
template <class V>
struct Bf16Products {
  using Operand = typename V::Bf16Pairs;
  static constexpr int32_t columns = 2 * V::width, keys = 2;
  static Operand query(const float *q, int32_t column) { return Operand::load(reinterpret_cast<const uint16_t *>(q) + column); }
  // A key without a partner before `end` gets zeros for one: what lies there may be NaN.
  template <int C, class Keys>
  static void values(const Keys &keys, int32_t k, int32_t end, int32_t column, Operand (&b)[C]) {
    each<(C + 1) / 2>([&](auto i) {
      constexpr int j = 2 * i();
      const Operand x = keys.at(k, column + j * V::width);
      const Operand y = k + 1 < end ? keys.at(k + 1, column + j * V::width) : Operand::zero();
      b[j] = first_pairs(x, y);
      if constexpr (j + 1 < C) b[j + 1] = last_pairs(x, y);
    });
  }
  static Operand weight(const float *weights, int32_t k) {
    return Operand::broadcast(reinterpret_cast<const uint16_t *>(weights) + k);
  }
  static void round_weights(float *weights, int32_t n) {
    for (int32_t i = 0; i < n; i += columns) {
      Operand::round(V::load(weights + i), V::load(weights + i + V::width)).store(reinterpret_cast<uint16_t *>(weights) + i);
    }
  }
};

// The rows of a key tile, as the products load them.
struct ConvertedKeys {
  using Products = FloatProducts;
  const float *kv;
  int32_t ld;
  Vec at(int32_t key, int32_t column) const { return Vec::load(kv + key * ld + column); }
};
template <class T, Vec (*load)(const T *)>
struct CachedKeys {
  using Products = FloatProducts;
  const char *const *row;
  Vec at(int32_t key, int32_t column) const { return load(reinterpret_cast<const T *>(row[key]) + column); }
};
template <class V>
struct Bf16Keys {
  using Products = Bf16Products<V>;
  const char *const *row;
  typename V::Bf16Pairs at(int32_t key, int32_t column) const {
    return V::Bf16Pairs::load(reinterpret_cast<const uint16_t *>(row[key]) + column);
  }
};

// scores[r][k] = q[r] . key k of K from `first` on, or with `add` += that, for R rows, lanes along columns [begin, end) of the width.
template <int R, int K, class Keys>
inline void score_block(const float *q, int32_t q_ld, const Keys &keys, int32_t first, int32_t begin, int32_t end, bool add,
                        float *scores, int32_t scores_ld) {
  using Products = typename Keys::Products;
  using Operand = typename Products::Operand;
  Vec c[R][K];
  each<R>([&](auto r) { each<K>([&](auto k) { c[r][k] = Vec::zero(); }); });
  for (int32_t d = begin; d < end; d += Products::columns) {
    if constexpr (R <= K) {  // the fewer operands stay in registers
      Operand a[R];
      each<R>([&](auto r) { a[r] = Products::query(q + r * q_ld, d); });
      each<K>([&](auto k) {
        const Operand b = in_register(keys.at(first + k, d));
        each<R>([&](auto r) { c[r][k] = fma(a[r], b, c[r][k]); });
      });
    } else {
      Operand b[K];
      each<K>([&](auto k) { b[k] = in_register(keys.at(first + k, d)); });
      each<R>([&](auto r) {
        const Operand a = in_register(Products::query(q + r * q_ld, d));
        each<K>([&](auto k) { c[r][k] = fma(a, b[k], c[r][k]); });
      });
    }
  }
  each<R>([&](auto r) {
    float *const to = scores + r * scores_ld;
    if (!add) return sums(c[r], to);
    float part[K];
    sums(c[r], part);
    for (int k = 0; k < K; ++k) to[k] += part[k];
  });
}

// acc[r][0 ... C vectors) += sum over keys [begin, end) of weights[r][k] * key k, lanes along its columns from `column` on. `begin` is a
// multiple of the keys that one product sums.
template <int R, int C, class Keys>
inline void value_block(const float *weights, int32_t weights_ld, const Keys &keys, int32_t column, int32_t begin, int32_t end,
                        float *acc, int32_t acc_ld) {
  using Products = typename Keys::Products;
  using Operand = typename Products::Operand;
  Vec c[R][C];
  each<R>([&](auto r) { each<C>([&](auto j) { c[r][j] = Vec::load(acc + r * acc_ld + j * Vec::width); }); });
  for (int32_t k = begin; k < end; k += Products::keys) {
    Operand b[C];
    Products::values(keys, k, end, column, b);
    each<R>([&](auto r) {
      const Operand a = Products::weight(weights + r * weights_ld, k);
      each<C>([&](auto j) { c[r][j] = fma(a, b[j], c[r][j]); });
    });
  }
  each<R>([&](auto r) { each<C>([&](auto j) { c[r][j].store(acc + r * acc_ld + j * Vec::width); }); });
}

// ---- One key tile -----------------------------------------------------------------------------------------------------

// Where the rows of a key tile are in the cache.
struct KeyRows {
  int32_t count;
  const char *row[kTileKeys];
};

inline void find_keys(const Problem &p, int32_t request, rules::KeyRange keys, KeyRows *found) {
  const int64_t size = rules::dtype_bytes(p.kv_dtype), step = p.kv_slot_stride * size;
  found->count = 0;
  rules::Slot slot = rules::slot_of(keys.begin, p.page_size);
  for (int64_t key = keys.begin; key < keys.end;) {
    const int64_t run = rules::min<int64_t>(p.page_size - slot.offset, keys.end - key);
    const int64_t at = rules::kv_offset(p, rules::page_id(p, request, slot.entry), slot.offset) * size;
    for (int64_t i = 0; i < run; ++i, ++key) found->row[found->count++] = static_cast<const char *>(p.kv) + at + i * step;
    slot = {slot.entry + 1, 0};
  }
}

// Asks for keys begin ... end - 1 of a tile, as far as it has them, to be brought to the L2 cache.
inline void prefetch_keys(const Problem &p, const KeyRows &keys, int32_t begin, int32_t end) {
  const int64_t bytes = int64_t{p.qk_dim} * rules::dtype_bytes(p.kv_dtype);
  for (int32_t k = begin; k < rules::min(end, keys.count); ++k) {
    const char *row = keys.row[k];
    asm volatile("" ::"r"(row));  // g++ takes a function that only prefetches for one that does nothing
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
    __builtin_prefetch(row + bytes - 1, 0, 2);
  }
}

// Whether the products load cached rows themselves. Two or three instructions a vector convert 16-bit numbers; FP8 takes more. f32 queries
// look at converted keys again.
inline bool loads_cached(const Problem &p) {
  return Vec::converts_as_it_loads && p.q_dtype != DType::f32 && !rules::is_fp8(p.kv_dtype) && p.qk_dim % Vec::width == 0 &&
         p.v_dim % Vec::width == 0;
}

// Whether products take pairs of bf16 numbers.
inline bool multiplies_bf16(const Problem &p) { return Vec::multiplies_bf16 && rules::bf16_products(p); }

// Converts the keys of a tile where the products don't load them as they are: to bf16, and `keys` then says where they lie, or to f32.
template <class V = Vec>
inline void convert_keys(const Problem &p, const Scratch &s, const rules::CpuThreadLayout &l, KeyRows *keys) {
  if constexpr (V::multiplies_bf16) {
    if (multiplies_bf16(p)) {
      for (int32_t k = 0; rules::is_fp8(p.kv_dtype) && k < keys->count; ++k) {
        float *const to = s.kv + k * l.kv_bf16_ld;
        V::fp8_to_bf16(p.kv_dtype, keys->row[k], p.qk_dim, reinterpret_cast<uint16_t *>(to));
        keys->row[k] = reinterpret_cast<const char *>(to);
      }
      return;
    }
  }
  if (loads_cached(p)) return;
  for (int32_t k = 0; k < keys->count; ++k) load_row(p.kv_dtype, keys->row[k], 0, p.qk_dim, s.kv + k * l.kv_ld);
}

// Calls f(the keys of a tile as the products load them). (V: not every Vec has the types behind its constants.)
template <class V = Vec, class F>
inline void with_keys(const Problem &p, const Scratch &s, const rules::CpuThreadLayout &l, const KeyRows &keys, F f) {
  if constexpr (V::multiplies_bf16) {
    if (multiplies_bf16(p)) return f(Bf16Keys<V>{keys.row});
  }
  if constexpr (Vec::converts_as_it_loads) {
    if (loads_cached(p)) {
      if (p.kv_dtype == DType::bf16) return f(CachedKeys<uint16_t, Vec::load_bf16>{keys.row});
      if (p.kv_dtype == DType::f16) return f(CachedKeys<uint16_t, Vec::load_f16>{keys.row});
      return f(CachedKeys<float, Vec::load>{keys.row});
    }
  }
  f(ConvertedKeys{s.kv, l.kv_ld});
}

// Of the first `count` keys. `segment`: columns that are summed apart before they are added, which keeps rounding from adding up along the
// width. before(k, n) is called ahead of the scores of keys k ... k + n - 1.
template <class Keys, class Before>
inline void scores_of(const Scratch &s, const rules::CpuThreadLayout &l, int32_t rows, const Keys &keys, int32_t count,
                      int32_t width, int32_t segment, Before before) {
  constexpr int R = Vec::score_rows, K = Vec::score_keys;
  for (int32_t k = 0; k < count; k += K) {
    before(k, K);
    with_constant<K>(rules::min(K, count - k), [&](auto nk) {
      for (int32_t r = 0; r < rows; r += R) {
        with_constant<R>(rules::min(R, rows - r), [&](auto nr) {
          for (int32_t d = 0; d < width; d += segment) {
            score_block<nr(), nk()>(s.q + r * l.q_ld, l.q_ld, keys, k, d, rules::min(d + segment, width), d > 0,
                                    s.scores + r * l.scores_ld + k, l.scores_ld);
          }
        });
      }
    });
  }
}

// Multiplies the n scores of one row with `scale`, and fills their last vector with -inf.
inline void scale_scores(float *scores, int32_t n, float scale) {
  for (int32_t i = 0; i < n; i += Vec::width) {
    Vec x = Vec::load(scores + i) * Vec::broadcast(scale);
    if (n - i < Vec::width) x = fill_from(x, n - i, kMinusInf);
    x.store(scores + i);
  }
}

// f32 queries: columns that are summed apart, and a bound of the scaled score up to which such sums are relied on. With terms of one
// sign, whose rounding does not average out, a score of 1024 columns is off by up to 3e-7 of |q| |k| scale (measured), by less
// with fewer columns, and the weight of its key by as much as the score; a row may be off by 2e-5 (docs/tolerance.md).
constexpr int32_t kSegment = 128;
inline float trusted_score(int32_t width) { return 65536.0f / static_cast<float>(width); }

// Scores from here on have no second part: their weights follow from f32 alone. Below, the second part is at most 32.
constexpr float kTwoPartScore = 0x1p30f;

// The Euclidean norm of a row; infinity where f32 cannot tell it, so that no bound made of it is trusted.
inline float norm(const float *row, int32_t width) {
  Vec squares = Vec::zero();
  for (int32_t d = 0; d < width; d += Vec::width) {
    const Vec x = Vec::load(row + d);
    squares = fma(x, x, squares);
  }
  const float s = sum(squares);
  if (s > 0x1p-80f && s < 0x1p80f) return std::sqrt(s);
  for (int32_t d = 0; d < width; ++d) {
    if (row[d] != 0.0f) return std::numeric_limits<float>::infinity();
  }
  return 0;
}

// For one row of f32 queries, after scale_scores(): recomputes in f64 the scores whose bound is not trusted, as scores[i] + low[i].
// False if there are none; `low` is then not written. It has room for kTileKeys.
inline bool refine_scores(const float *q, float q_norm, const float *kv, int32_t kv_ld, const float *kv_norms, int32_t width,
                          int32_t n, double scale, float *scores, float *low) {
  const float factor = q_norm * std::abs(static_cast<float>(scale)), bound = trusted_score(width);
  const auto trusted = [=](float kv_norm) { return factor * kv_norm <= bound; };  // (NaN: no)
  float largest_norm = 0;
  for (int32_t i = 0; i < n; ++i) largest_norm = rules::max(largest_norm, kv_norms[i]);
  if (trusted(largest_norm)) return false;
  for (int32_t i = 0; i < kTileKeys; ++i) low[i] = 0;
  for (int32_t i = 0; i < n; ++i) {
    if (trusted(kv_norms[i])) continue;
    const double score = dot_f64(q, kv + i * kv_ld, width) * scale;
    scores[i] = static_cast<float>(score);
    if (std::abs(scores[i]) < kTwoPartScore) low[i] = static_cast<float>(score - static_cast<double>(scores[i]));
  }
  return true;
}

// Online softmax of one row over the n > 0 scores of its visible keys; `low`: a second part of each score, or null.
inline void softmax_row(float *scores, const float *low, int32_t n, float *max_out, float *sum_out, float *acc, int32_t v_dim) {
  Vec largest_seen = Vec::broadcast(kMinusInf);
  for (int32_t i = 0; i < n; i += Vec::width) largest_seen = max(Vec::load(scores + i), largest_seen);
  const float before = *max_out;
  const float now = rules::max(before, largest(largest_seen));
  const float reference = now == kMinusInf ? 0.0f : now;  // all scores -inf: weights 0, not NaN
  if (now > before && before > kMinusInf) {
    const float shrink = exp(before - reference);
    *sum_out *= shrink;
    for (int32_t c = 0; c < v_dim; c += Vec::width) (Vec::load(acc + c) * Vec::broadcast(shrink)).store(acc + c);
  }
  Vec total = Vec::zero();
  for (int32_t i = 0; i < n; i += Vec::width) {
    Vec x = Vec::load(scores + i) - Vec::broadcast(reference);
    if (low != nullptr) x = x + Vec::load(low + i);
    const Vec w = exp(x);
    w.store(scores + i);
    total = total + w;
  }
  *max_out = now;
  *sum_out += sum(total);
}

// visible[r]: keys of the tile that row r sees, the first ones.
template <class Keys>
inline void add_values(const Scratch &s, const rules::CpuThreadLayout &l, int32_t rows, const Keys &keys,
                       const int32_t *visible, int32_t v_dim, float *acc) {
  constexpr int R = Vec::value_rows, C = Vec::value_vectors;
  using Products = typename Keys::Products;
  const int32_t ld = l.node.acc_ld;
  for (int32_t r = 0; r < rows; ++r) Products::round_weights(s.scores + r * l.scores_ld, visible[r]);
  for (int32_t c = 0; c < v_dim; c += C * Vec::width) {
    with_constant<C>(rules::min(C, rules::ceil_div(v_dim - c, Vec::width)), [&](auto nc) {
      for (int32_t r = 0; r < rows; r += R) {
        with_constant<R>(rules::min(R, rows - r), [&](auto nr) {
          int32_t common = visible[r];
          int32_t most = common;
          for (int i = 1; i < nr(); ++i) {
            common = rules::min(common, visible[r + i]);
            most = rules::max(most, visible[r + i]);
          }
          if (common < most) common -= common % Products::keys;
          value_block<nr(), nc()>(s.scores + r * l.scores_ld, l.scores_ld, keys, c, 0, common, acc + r * ld + c, ld);
          for (int32_t i = r; i < r + nr(); ++i) {  // boundary tiles: what some rows of the block see and others don't
            if (visible[i] > common) {
              value_block<1, nc()>(s.scores + i * l.scores_ld, l.scores_ld, keys, c, common, visible[i], acc + i * ld + c, ld);
            }
          }
        });
      }
    });
  }
}

// ---- The interface of isa.h -------------------------------------------------------------------------------------------

inline int32_t visible_to_row(const Problem &p, const RowTile &tile, int32_t r) {
  return rules::visible_keys(p, tile.request, rules::unpack_row(tile.first_row + r, p.num_heads).token);
}

inline float cache_scale(const Problem &p) { return p.k_scale != nullptr ? *p.k_scale : 1.0f; }

void load_queries(const Problem &p, const rules::CpuThreadLayout &l, const RowTile &tile, const Scratch &s) {
  for (int32_t r = 0; r < tile.rows; ++r) {
    const int64_t at = rules::q_offset(p, tile.request, rules::unpack_row(tile.first_row + r, p.num_heads));
    if (multiplies_bf16(p)) {
      std::memcpy(s.q + r * l.q_ld, static_cast<const uint16_t *>(p.q) + at, sizeof(uint16_t) * static_cast<size_t>(p.qk_dim));
      continue;
    }
    load_row(p.q_dtype, p.q, at, p.qk_dim, s.q + r * l.q_ld);
    if (p.q_dtype == DType::f32) s.q_norms[r] = norm(s.q + r * l.q_ld, p.qk_dim);
  }
}

void chunk(const Problem &p, const rules::CpuThreadLayout &l, const RowTile &tile, rules::KeyRange keys, const Scratch &s,
           const Node &node) {
  const double scale = static_cast<double>(p.sm_scale) * static_cast<double>(cache_scale(p));
  const bool refined = p.q_dtype == DType::f32;
  int32_t seen[kTileRows];
  for (int32_t r = 0; r < tile.rows; ++r) {
    seen[r] = visible_to_row(p, tile, r);
    node.max[r] = kMinusInf;
    node.sum[r] = 0;
    for (int32_t c = 0; c < p.v_dim; c += Vec::width) Vec::zero().store(node.acc + r * l.node.acc_ld + c);
  }
  KeyRows found, next;
  find_keys(p, tile.request, {keys.begin, rules::min<int64_t>(keys.begin + kTileKeys, keys.end)}, &next);
  for (int64_t begin = keys.begin; begin < keys.end; begin += kTileKeys) {
    const rules::KeyRange part = {begin, rules::min<int64_t>(begin + kTileKeys, keys.end)};
    found = next;
    // The next tile comes to the cache meanwhile; behind the last one, the first of the chunk that mostly follows.
    find_keys(p, tile.request, {part.end, rules::min<int64_t>(part.end + kTileKeys, tile.keys)}, &next);
    const int32_t count = found.count;
    convert_keys(p, s, l, &found);
    with_keys(p, s, l, found, [&](const auto &rows) {
      scores_of(s, l, tile.rows, rows, count, p.qk_dim, refined ? kSegment : p.qk_dim,
                [&](int32_t k, int32_t n) { prefetch_keys(p, next, k, k + n); });
    });
    float kv_norms[kTileKeys], low[kTileKeys];
    for (int32_t k = 0; refined && k < count; ++k) kv_norms[k] = norm(s.kv + k * l.kv_ld, p.qk_dim);
    int32_t visible[kTileRows];
    for (int32_t r = 0; r < tile.rows; ++r) {
      visible[r] = static_cast<int32_t>(rules::clamp<int64_t>(seen[r] - part.begin, 0, count));
      if (visible[r] == 0) continue;
      float *const scores = s.scores + r * l.scores_ld;
      scale_scores(scores, visible[r], static_cast<float>(scale));
      const bool two_parts = refined && refine_scores(s.q + r * l.q_ld, s.q_norms[r], s.kv, l.kv_ld, kv_norms, p.qk_dim,
                                                      visible[r], scale, scores, low);
      softmax_row(scores, two_parts ? low : nullptr, visible[r], node.max + r, node.sum + r, node.acc + r * l.node.acc_ld,
                  p.v_dim);
    }
    with_keys(p, s, l, found, [&](const auto &rows) { add_values(s, l, tile.rows, rows, visible, p.v_dim, node.acc); });
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
    store_row(p.q_dtype, node.acc + r * l.node.acc_ld, cache_scale(p) / node.sum[r], p.v_dim, p.out, at);
    *lse = undefined ? std::numeric_limits<float>::quiet_NaN() : node.max[r] + std::log(node.sum[r]);
  }
}

}  // namespace
}  // namespace mlaverify::cpu
