// The arithmetic of the CPU backend over a vector type `Vec`, which the including file has defined. Everything here has
// internal linkage: each instruction set gets its own copy.
//
// One chunk of keys, for one row tile:
//   for each tile of up to 64 keys that some row sees
//     for each block of columns
//       convert it to f32                                   kv         [keys, columns] (L1)
//       key_scores += kv q^T, keys x rows in registers      key_scores [keys, rows]    (L1)
//     transpose them                                        scores     [rows, keys]    (L1)
//     f32 queries: scores too large for f32 again in f64
//     online softmax in place: scores become weights, max and sum move on, acc is rescaled where max grew
//     acc += weights kv[:, :Lv], rows x vectors in registers; keys are converted a block of columns at a time again, or as they are
//       loaded where that is cheap beside the products: the same bits
//   Where products take pairs of bf16 numbers (multiplies_bf16), only FP8 is converted, to these, and scores are rows x keys from the start.
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

// ---- Constants of loops -----------------------------------------------------------------------------------------------

// Calls f(integral constant n) for a run-time n in 1 ... limit.
template <int limit, class F>
inline void with_constant(int n, F f) {
  if constexpr (limit > 1) {
    if (n < limit) return with_constant<limit - 1>(n, f);
  }
  f(std::integral_constant<int, limit>());
}

// f(integral constant i) for i in 0 ... n-1: accumulators that only constants index stay in registers, if all of it is inlined.
template <int n, class F>
[[gnu::always_inline]] inline void each(F f) {
  if constexpr (n > 1) each<n - 1>(f);
  if constexpr (n > 0) f(std::integral_constant<int, n - 1>());
}

// ---- Elements ---------------------------------------------------------------------------------------------------------

// Columns that a score sums apart from the others, before these sums are added in order: rounding adds up neither along the width nor
// along the sums (docs/tolerance.md). And columns of a key tile that are converted at a time: so many stay in L1 while they are used.
constexpr int32_t kColumns = 32;
constexpr int32_t kValueColumns = rules::max<int32_t>(kColumns, Vec::width *int32_t{Vec::value_vectors});
static_assert(kValueColumns <= rules::kCpuValueColumns);

// n numbers (a multiple of 8) from `from` on as f32 to `to`; what is missing in the last vector is set to 0. keep(x): every vector.
// load(p): a vector from p; load(p, n): its first n lanes, where a vector is wider than rows are multiples of.
template <class T, class Load, class Keep>
inline void convert_row(const T *from, int32_t n, float *to, Load load, Keep keep) {
  int32_t i = 0;
  const auto next = [&](auto... lanes) {
    const Vec x = load(from + i, lanes...);
    x.store(to + i);
    keep(x);
    i += Vec::width;
  };
  while (i + kColumns <= n) each<kColumns / Vec::width>([&](auto) { next(); });
  while (i + Vec::width <= n) next();
  if constexpr (Vec::width > 8) {
    if (i < n) next(n - i);
  }
}

// Columns [d, d + n) of `count` rows as f32, to rows of ld numbers. If there are `squares`, those of a row are added to its vector there.
template <class T, class Load>
inline void convert(const char *const *rows, int32_t count, int32_t d, int32_t n, float *to, int32_t ld, float *squares,
                    Load load) {
  const auto from = [&](int32_t r) { return reinterpret_cast<const T *>(rows[r]) + d; };
  if (squares == nullptr) {
    for (int32_t r = 0; r < count; ++r) convert_row(from(r), n, to + r * ld, load, [](Vec) {});
    return;
  }
  for (int32_t r = 0; r < count; ++r) {
    Vec sum = Vec::load(squares + r * Vec::width);
    convert_row(from(r), n, to + r * ld, load, [&](Vec x) { sum = fma(x, x, sum); });
    sum.store(squares + r * Vec::width);
  }
}

inline void convert(DType t, const char *const *rows, int32_t count, int32_t d, int32_t n, float *to, int32_t ld,
                    float *squares) {
  const auto f32 = [](auto... x) { return Vec::load(x...); };
  const auto f16 = [](auto... x) { return Vec::load_f16(x...); };
  const auto bf16 = [](auto... x) { return Vec::load_bf16(x...); };
  const auto e4m3 = [](auto... x) { return Vec::load_e4m3(x...); };
  const auto e5m2 = [](auto... x) { return Vec::load_e5m2(x...); };
  switch (t) {
    case DType::f32: return convert<float>(rows, count, d, n, to, ld, squares, f32);
    case DType::f16: return convert<uint16_t>(rows, count, d, n, to, ld, squares, f16);
    case DType::bf16: return convert<uint16_t>(rows, count, d, n, to, ld, squares, bf16);
    case DType::f8_e4m3: return convert<uint8_t>(rows, count, d, n, to, ld, squares, e4m3);
    case DType::f8_e5m2: return convert<uint8_t>(rows, count, d, n, to, ld, squares, e5m2);
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

// What the second product multiplies (`Operand`), where it takes that from, and how many keys of an output (`keys`) one of them sums.

struct FloatProducts {
  using Operand = Vec;
  static constexpr int32_t keys = 1;
  template <int C, class Keys>
  [[gnu::always_inline]] static void values(const Keys &keys, int32_t k, int32_t /*end*/, int32_t column, Operand (&b)[C]) {
    each<C>([&](auto j) { b[j] = keys.at(k, column + j * Vec::width); });
  }
  static Operand weight(const float *weights, int32_t k) { return Vec::broadcast(weights[k]); }
};

// Of pairs of bf16 numbers, summed in f32. Rows of queries and of weights, half as long, lie in the places of those in f32.
template <class V>
struct Bf16Products {
  using Operand = typename V::Bf16Pairs;
  static constexpr int32_t columns = 2 * V::width, keys = 2;
  static constexpr int score_rows = V::pair_rows, score_keys = V::pair_keys;
  static Operand query(const float *q, int32_t column) { return Operand::load(reinterpret_cast<const uint16_t *>(q) + column); }
  // A key without a partner before `end` gets zeros for one: what lies there may be NaN.
  template <int C, class Keys>
  [[gnu::always_inline]] static void values(const Keys &keys, int32_t k, int32_t end, int32_t column, Operand (&b)[C]) {
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

// Where the rows of a key tile are in the cache. Behind the last, if there is one, it is repeated, for prefetches of a whole tile.
struct KeyRows {
  int32_t count;
  const char *row[kTileKeys];
};

// The rows of a key tile, as the second product loads them: converted kValueColumns at a time, or as they lie in the cache.
struct ConvertedKeys {
  using Products = FloatProducts;
  const float *kv;
  int32_t first;  // column
  Vec at(int32_t key, int32_t column) const { return Vec::load(kv + key * kValueColumns + (column - first)); }
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

// scores[k][0 ... V vectors of rows) = columns [0, columns) of q . key k, or with `add` += that, for K converted keys: rows in the lanes, so
// that nothing is summed across them. q and scores are `lanes` wide. Meanwhile the same block of columns of other keys, at bytes [at, at +
// kColumns * size) of rows ahead[0 ... K-1], comes to the L2 cache, one prefetch at a time: many at once would block other loads.
template <int V, int K>
inline void score_block(const float *q, int32_t lanes, const float *kv, int32_t columns, bool add, float *scores,
                        const char *const *ahead, int64_t at, int64_t size) {
  constexpr int prefetches = K > 16 ? 2 : 1;  // f32 keys have two lines each
  Vec c[K][V];
  each<K>([&](auto k) { each<V>([&](auto v) { c[k][v] = Vec::zero(); }); });
  for (int32_t d = 0; d < columns; ++d) {
    each<prefetches>([&](auto i) {
      const int32_t place = (d * prefetches + i) * (K / prefetches);
      if (i == 0 || size > 2) __builtin_prefetch(ahead[place / kColumns] + at + place % kColumns * size, 0, 2);
    });
    Vec a[V];
    each<V>([&](auto v) { a[v] = in_register(Vec::load(q + d * lanes + v * Vec::width)); });
    each<K>([&](auto k) {
      const Vec b = in_register(Vec::broadcast(kv[k * kColumns + d]));
      each<V>([&](auto v) { c[k][v] = fma(a[v], b, c[k][v]); });
    });
  }
  each<K>([&](auto k) {
    each<V>([&](auto v) {
      float *const to = scores + k * lanes + v * Vec::width;
      (add ? Vec::load(to) + c[k][v] : c[k][v]).store(to);
    });
  });
}

// scores[r][k] = q[r] . key k of K from `first` on, for R rows, lanes along the width: products of pairs of bf16 numbers.
template <int R, int K, class Keys>
inline void score_pairs(const float *q, int32_t q_ld, const Keys &keys, int32_t first, int32_t width, float *scores,
                        int32_t scores_ld) {
  using Products = typename Keys::Products;
  using Operand = typename Products::Operand;
  Vec c[R][K];
  each<R>([&](auto r) { each<K>([&](auto k) { c[r][k] = Vec::zero(); }); });
  for (int32_t d = 0; d < width; d += Products::columns) {
    Operand a[R];
    each<R>([&](auto r) { a[r] = Products::query(q + r * q_ld, d); });
    each<K>([&](auto k) {
      const Operand b = in_register(keys.at(first + k, d));
      each<R>([&](auto r) { c[r][k] = fma(a[r], b, c[r][k]); });
    });
  }
  each<R>([&](auto r) { sums(c[r], scores + r * scores_ld); });
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
  for (int32_t k = found->count; k > 0 && k < kTileKeys; ++k) found->row[k] = found->row[k - 1];
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

// Whether products take pairs of bf16 numbers.
inline bool multiplies_bf16(const Problem &p) { return Vec::multiplies_bf16 && rules::bf16_products(p); }

// Converts the keys of a tile that such products cannot take as they are, FP8, to bf16; `keys` then says where they lie.
// (V: not every Vec has what is behind its constants.)
template <class V = Vec>
inline void make_bf16_keys(const Problem &p, const Scratch &s, const rules::CpuThreadLayout &l, KeyRows *keys) {
  if constexpr (V::multiplies_bf16) {
    for (int32_t k = 0; rules::is_fp8(p.kv_dtype) && k < keys->count; ++k) {
      float *const to = s.kv + k * l.kv_bf16_ld;
      V::fp8_to_bf16(p.kv_dtype, keys->row[k], p.qk_dim, reinterpret_cast<uint16_t *>(to));
      keys->row[k] = reinterpret_cast<const char *>(to);
    }
  }
}

// Whether the second product converts cached rows as it loads them: 16-bit numbers take two or three instructions a vector, FP8 more.
inline bool loads_cached(const Problem &p) {
  return Vec::converts_as_it_loads && !rules::is_fp8(p.kv_dtype) && p.v_dim % Vec::width == 0;
}

// Rows of a tile in whole vectors.
inline int32_t lanes_of(int32_t rows) { return rules::round_up<int32_t>(rows, Vec::width); }

// Scores of f32 products. `next`: keys to prefetch meanwhile, if there are any.
inline void float_scores(const Problem &p, const Scratch &s, const rules::CpuThreadLayout &l, int32_t rows, const KeyRows &keys,
                         const KeyRows &next) {
  constexpr int V = Vec::score_vectors;
  const int32_t lanes = lanes_of(rows), count = keys.count, width = p.qk_dim;
  const int64_t size = rules::dtype_bytes(p.kv_dtype);
  const char *const *const ahead = next.count > 0 ? next.row : keys.row;
  for (int32_t d = 0; d < width; d += kColumns) {
    const int32_t n = rules::min(kColumns, width - d);
    convert(p.kv_dtype, keys.row, count, d, n, s.kv, kColumns, p.q_dtype == DType::f32 ? s.squares : nullptr);
    for (int32_t r = 0; r < lanes; r += V * Vec::width) {
      with_constant<V>(rules::min(V, (lanes - r) / Vec::width), [&](auto nv) {
        // Blocks of fewer keys, at the end, come in steps only: those behind the last key are there, whatever they hold.
        constexpr int K = Vec::score_accumulators / nv(), step = K >= 24 ? 8 : K >= 12 ? 4 : 2;
        static_assert(kTileKeys % step == 0);
        for (int32_t k = 0; k < count; k += K) {
          with_constant<K / step>(rules::min(K, rules::round_up(count - k, step)) / step, [&](auto steps) {
            score_block<nv(), steps() * step>(s.q + d * lanes + r, lanes, s.kv + k * kColumns, n, d > 0,
                                              s.key_scores + k * lanes + r, ahead + k, d * size, size);
          });
        }
      });
    }
  }
  for (int32_t r = 0; r < lanes; r += Vec::width) {
    for (int32_t k = 0; k < count; k += Vec::width) {
      Vec x[Vec::width];
      each<Vec::width>([&](auto i) { x[i] = Vec::load(s.key_scores + (k + i) * lanes + r); });
      transpose(x);
      each<Vec::width>([&](auto i) { x[i].store(s.scores + (r + i) * l.scores_ld + k); });
    }
  }
}

template <class Keys>
inline void pair_scores(const Problem &p, const Scratch &s, const rules::CpuThreadLayout &l, int32_t rows, const Keys &keys,
                        int32_t count, const KeyRows &next) {
  constexpr int R = Keys::Products::score_rows, K = Keys::Products::score_keys;
  for (int32_t k = 0; k < count; k += K) {
    prefetch_keys(p, next, k, k + K);
    with_constant<K>(rules::min(K, count - k), [&](auto nk) {
      for (int32_t r = 0; r < rows; r += R) {
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
                      const KeyRows &next) {
  if constexpr (V::multiplies_bf16) {
    if (multiplies_bf16(p)) return pair_scores(p, s, l, rows, Bf16Keys<V>{keys.row}, keys.count, next);
  }
  float_scores(p, s, l, rows, keys, next);
}

// Multiplies the n scores of one row with `scale`, and fills their last vector with -inf.
inline void scale_scores(float *scores, int32_t n, float scale) {
  for (int32_t i = 0; i < n; i += Vec::width) {
    Vec x = Vec::load(scores + i) * Vec::broadcast(scale);
    if (n - i < Vec::width) x = fill_from(x, n - i, kMinusInf);
    x.store(scores + i);
  }
}

// f32 queries: a bound of the scaled score up to which f32 sums are relied on. With terms of one sign and of one size, whose rounding
// does not average out, a score of 1024 columns is off by up to 9e-7 of |q| |k| scale (measured), the weight of its key by as much as the
// score, and its row by less than half of that; a row may be off by 2e-5 (docs/tolerance.md).
constexpr float kTrustedScore = 48;

// Scores from here on have no second part: their weights follow from f32 alone. Below, the second part is at most 32.
constexpr float kTwoPartScore = 0x1p30f;

// A bound of the Euclidean norm of a row from its `squares`: infinity where f32 cannot tell it, and not so small that squares, or products
// of rows with such bounds, could have got lost.
inline float norm_bound(const float *squares) {
  const float s = sum(Vec::load(squares));
  return s < 0x1p80f ? std::sqrt(rules::max(s, 0x1p-80f)) : std::numeric_limits<float>::infinity();
}

// For one row of f32 queries, after scale_scores(): recomputes in f64 the scores whose bound is not trusted, as scores[i] + low[i].
// False if there are none; `low` is then not written. It has room for kTileKeys. kv_largest[i]: the largest of the first i + 1 norms;
// key(i): converted key i.
template <class Key>
inline bool refine_scores(const float *q, float q_norm, const float *kv_norms, const float *kv_largest, int32_t width,
                          int32_t n, double scale, Key key, float *scores, float *low) {
  const float factor = q_norm * std::abs(static_cast<float>(scale));
  const auto trusted = [=](float kv_norm) { return factor * kv_norm <= kTrustedScore; };  // (NaN: no)
  if (trusted(kv_largest[n - 1])) return false;
  for (int32_t i = 0; i < kTileKeys; ++i) low[i] = 0;
  for (int32_t i = 0; i < n; ++i) {
    if (trusted(kv_norms[i])) continue;
    const double score = dot_f64(q, key(i), width) * scale;
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

// Of columns [begin, end). visible[r]: keys of the tile that row r sees, the first ones.
template <class Keys>
inline void add_columns(const Scratch &s, const rules::CpuThreadLayout &l, int32_t rows, const Keys &keys,
                        const int32_t *visible, int32_t begin, int32_t end, float *acc) {
  using Products = typename Keys::Products;
  constexpr int R = Vec::value_rows, C = Vec::value_vectors;
  const int32_t ld = l.node.acc_ld;
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

template <class V = Vec>
inline void add_values(const Problem &p, const Scratch &s, const rules::CpuThreadLayout &l, int32_t rows, const KeyRows &keys,
                       const int32_t *visible, float *acc) {
  const auto all_columns = [&](const auto &k) { add_columns(s, l, rows, k, visible, 0, p.v_dim, acc); };
  if constexpr (V::multiplies_bf16) {
    if (multiplies_bf16(p)) {
      for (int32_t r = 0; r < rows; ++r) Bf16Products<V>::round_weights(s.scores + r * l.scores_ld, visible[r]);
      return all_columns(Bf16Keys<V>{keys.row});
    }
  }
  if constexpr (V::converts_as_it_loads) {
    if (loads_cached(p)) {
      if (p.kv_dtype == DType::bf16) return all_columns(CachedKeys<uint16_t, Vec::load_bf16>{keys.row});
      if (p.kv_dtype == DType::f16) return all_columns(CachedKeys<uint16_t, Vec::load_f16>{keys.row});
      return all_columns(CachedKeys<float, Vec::load>{keys.row});
    }
  }
  for (int32_t c = 0; c < p.v_dim; c += kValueColumns) {
    const int32_t n = rules::min(kValueColumns, p.v_dim - c);
    convert(p.kv_dtype, keys.row, keys.count, c, n, s.kv, kValueColumns, nullptr);
    add_columns(s, l, rows, ConvertedKeys{s.kv, c}, visible, c, c + n, acc);
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
  const int32_t lanes = lanes_of(tile.rows), size = rules::dtype_bytes(p.q_dtype);
  const bool f32 = p.q_dtype == DType::f32;
  for (int32_t first = 0; first < lanes; first += Vec::width) {
    const int32_t count = rules::min(Vec::width, tile.rows - first);
    const char *rows[Vec::width];
    for (int32_t i = 0; i < count; ++i) rows[i] = static_cast<const char *>(p.q) + query_offset(p, tile, first + i) * size;
    // Converted where keys will lie. What is in rows that are missing is multiplied, too, but not looked at.
    std::memset(s.kv, 0, sizeof(float) * Vec::width * kColumns);
    std::memset(s.squares, 0, sizeof(float) * Vec::width * kTileKeys);
    for (int32_t d = 0; d < p.qk_dim; d += kColumns) {
      const int32_t n = rules::min(kColumns, p.qk_dim - d);
      convert(p.q_dtype, rows, count, d, n, s.kv, kColumns, f32 ? s.squares : nullptr);
      for (int32_t j = 0; j < n; j += Vec::width) {
        Vec x[Vec::width];
        each<Vec::width>([&](auto i) { x[i] = Vec::load(s.kv + i * kColumns + j); });
        transpose(x);
        each<Vec::width>([&](auto i) { x[i].store(s.q + (d + j + i) * lanes + first); });
      }
    }
    for (int32_t i = 0; f32 && i < count; ++i) s.q_norms[first + i] = norm_bound(s.squares + i * Vec::width);
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
    if (multiplies_bf16(p)) make_bf16_keys(p, s, l, &found);
    if (refined) std::memset(s.squares, 0, sizeof(float) * Vec::width * kTileKeys);
    scores_of(p, s, l, tile.rows, found, next);
    float kv_norms[kTileKeys], kv_largest[kTileKeys], low[kTileKeys];
    for (int32_t k = 0; refined && k < count; ++k) {
      kv_norms[k] = norm_bound(s.squares + k * Vec::width);
      kv_largest[k] = k == 0 ? kv_norms[k] : rules::max(kv_largest[k - 1], kv_norms[k]);
    }
    bool converted = false;
    const auto whole_key = [&](int32_t k) {
      if (!converted) convert(p.kv_dtype, found.row, count, 0, p.qk_dim, s.kv, l.kv_ld, nullptr);
      converted = true;
      return s.kv + k * l.kv_ld;
    };
    int32_t visible[kTileRows];
    for (int32_t r = 0; r < tile.rows; ++r) {
      visible[r] = static_cast<int32_t>(rules::clamp<int64_t>(seen[r] - part.begin, 0, count));
      if (visible[r] == 0) continue;
      float *const scores = s.scores + r * l.scores_ld;
      scale_scores(scores, visible[r], static_cast<float>(scale));
      const bool two_parts =
          refined && refine_scores(static_cast<const float *>(p.q) + query_offset(p, tile, r), s.q_norms[r], kv_norms,
                                   kv_largest, p.qk_dim, visible[r], scale, whole_key, scores, low);
      softmax_row(scores, two_parts ? low : nullptr, visible[r], node.max + r, node.sum + r, node.acc + r * l.node.acc_ld,
                  p.v_dim);
    }
    add_values(p, s, l, tile.rows, found, visible, node.acc);
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
