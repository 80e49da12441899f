// Blocks of scores and of values that lie in registers while they are summed, and what they multiply. Over the vector type `Vec`, as kernel.h.
#pragma once

#include <cstdint>

#include "cpu/elements.h"
#include "rules/row.h"

namespace mlaverify::cpu {
namespace {

// What the second product multiplies (`Operand`), where it takes that from, and how many keys of an output (`keys`) one of them sums.
// Weights of f32 products are [keys, ld], of bf16 products [rows, ld] floats.

struct FloatProducts {
  using Operand = Vec;
  static constexpr int32_t keys = 1;
  template <int C, class Keys>
  [[gnu::always_inline]] static void values(const Keys &keys, int32_t k, int32_t /*end*/, int64_t column, Operand (&b)[C]) {
    each<C>([&](auto j) { b[j] = keys.at(k, column + j * Vec::width); });
  }
  static const float *from_row(const float *weights, int64_t /*ld*/, int32_t r) { return weights + r; }
  static Operand weight(const float *weights, int64_t ld, int32_t r, int32_t k) { return Vec::broadcast(weights[k * ld + r]); }
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
  static const float *from_row(const float *weights, int64_t ld, int32_t r) { return weights + r * ld; }
  static Operand weight(const float *weights, int64_t ld, int32_t r, int32_t k) {
    return Operand::broadcast(reinterpret_cast<const uint16_t *>(weights + r * ld) + k);
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
  float scale[rules::kRecordGroups][kTileKeys];  // of records that are bf16 numbers now, without their scales
};

// The rows of a key tile, as the second product loads them: converted kValueColumns at a time, or as they lie in the cache.
struct ConvertedKeys {
  using Products = FloatProducts;
  const float *kv;
  int32_t first;  // column
  Vec at(int32_t key, int64_t column) const { return Vec::load(kv + key * kValueColumns + (column - first)); }
};
template <class T, Vec (*load)(const T *)>
struct CachedKeys {
  using Products = FloatProducts;
  const char *const *row;
  Vec at(int32_t key, int64_t column) const { return load(reinterpret_cast<const T *>(row[key]) + column); }
};
// bf16 rows as they lie in the cache, for accumulators in the order of load_bf16_pairs(): an instruction less a vector.
struct PairProducts : FloatProducts {
  template <int C, class Keys>
  [[gnu::always_inline]] static void values(const Keys &keys, int32_t k, int32_t /*end*/, int64_t column, Operand (&b)[C]) {
    const auto *const row = reinterpret_cast<const uint16_t *>(keys.row[k]) + column;
    each<(C + 1) / 2>([&](auto i) {
      constexpr int j = 2 * i();
      Operand second;
      load_bf16_pairs(row + j * Vec::width, &b[j], j + 1 < C ? &b[j + 1] : &second);
    });
  }
};
struct PairKeys {
  using Products = PairProducts;
  const char *const *row;
};
template <class V>
struct Bf16Keys {
  using Products = Bf16Products<V>;
  static constexpr bool has_scales = false;
  const char *const *row;
  typename V::Bf16Pairs at(int32_t key, int32_t column) const {
    return V::Bf16Pairs::load(reinterpret_cast<const uint16_t *>(row[key]) + column);
  }
};
// Of records: keys without the scales of their groups, and values with them.
template <class V>
struct RecordKeys : Bf16Keys<V> {
  static constexpr bool has_scales = true;
  const float (*scale)[kTileKeys];
};
template <class V>
struct RecordValues {
  using Products = Bf16Products<V>;
  float *values;
  uint16_t *row(int32_t key) const { return reinterpret_cast<uint16_t *>(values) + key * rules::kRecordScaled; }
  typename V::Bf16Pairs at(int32_t key, int32_t column) const { return V::Bf16Pairs::load(row(key) + column); }
};

// Brings keys to the cache while something else is computed, a line a step: many at once would block other loads. (In loops that are over
// in a few cycles a step costs more than it gives: Vec::steps_a_line of them share one.) In the order in which they lie, so that the
// processor's own prefetching takes part. Loops work on a copy, which stays in registers.
class LinesAhead {
 public:
  // Of keys of `bytes` bytes each.
  LinesAhead(const KeyRows &keys, int64_t bytes) : keys_(&keys), bytes_(bytes) {}

  [[gnu::always_inline]] void step() {
    if (at_ >= end_) {
      if (row_ == keys_->count) return;
      const char *const row = keys_->row[row_++];
      at_ = row - reinterpret_cast<uintptr_t>(row) % kLine;
      end_ = row + bytes_;
    }
    __builtin_prefetch(at_);
    at_ += kLine;
  }

  // As many steps as fetch one of `parts` equal parts of the keys.
  void fetch_part(int32_t parts) {
    const auto lines = static_cast<int32_t>((bytes_ + 2 * kLine - 2) / kLine);  // of a key, at most
    const int32_t steps = rules::ceil_div(keys_->count * lines, parts);
    for (int32_t i = 0; i < steps; ++i) step();
  }

 private:
  static constexpr int32_t kLine = 64;

  const KeyRows *keys_;
  int64_t bytes_;
  int32_t row_ = 0;
  const char *at_ = nullptr, *end_ = nullptr;
};

// sums[k][0 ... V vectors) = sum over columns [0, n) of x[column][0 ... V vectors) * y[k][column], or with `add` += that, for K rows of
// y: rows of queries or keys in the lanes, so that nothing is summed across them, and the other ones as `y`. x and sums have rows of ld
// numbers, y of y_ld.
template <int V, int K, int32_t y_ld>
inline void score_block(const float *x, int32_t ld, const float *y, int32_t n, bool add, float *sums, LinesAhead *ahead) {
  LinesAhead lines = *ahead;
  Vec c[K][V];
  each<K>([&](auto k) { each<V>([&](auto v) { c[k][v] = Vec::zero(); }); });
  for (int32_t d = 0; d < n; ++d) {
    if (d % Vec::steps_a_line == 0) lines.step();
    Vec a[V];
    each<V>([&](auto v) { a[v] = in_register(Vec::load(x + d * ld + v * Vec::width)); });
    each<K>([&](auto k) {
      const Vec b = in_register(Vec::broadcast(y[k * y_ld + d]));
      each<V>([&](auto v) { c[k][v] = fma(a[v], b, c[k][v]); });
    });
  }
  each<K>([&](auto k) {
    each<V>([&](auto v) {
      float *const to = sums + k * ld + v * Vec::width;
      (add ? Vec::load(to) + c[k][v] : c[k][v]).store(to);
    });
  });
  *ahead = lines;
}

// scores[r][k] = q[r] . key k of K from `first` on, for R rows, lanes along the width: products of pairs of bf16 numbers. The scale of a
// group of a record multiplies the sum over the group.
template <int R, int K, class Keys>
inline void score_pairs(const float *q, int32_t q_ld, const Keys &keys, int32_t first, int32_t width, float *scores,
                        int32_t scores_ld) {
  using Products = typename Keys::Products;
  using Operand = typename Products::Operand;
  Vec c[R][K];
  const auto add_columns = [&](int32_t d, int32_t end, Vec(&to)[R][K]) {
    for (; d < end; d += Products::columns) {
      Operand a[R];
      each<R>([&](auto r) { a[r] = Products::query(q + r * q_ld, d); });
      each<K>([&](auto k) {
        const Operand b = in_register(keys.at(first + k, d));
        each<R>([&](auto r) { to[r][k] = fma(a[r], b, to[r][k]); });
      });
    }
  };
  each<R>([&](auto r) { each<K>([&](auto k) { c[r][k] = Vec::zero(); }); });
  if constexpr (Keys::has_scales) {
    add_columns(rules::kRecordScaled, width, c);
    for (int32_t g = 0; g < rules::kRecordGroups; ++g) {
      Vec part[R][K];
      each<R>([&](auto r) { each<K>([&](auto k) { part[r][k] = Vec::zero(); }); });
      add_columns(g * rules::kRecordGroup, (g + 1) * rules::kRecordGroup, part);
      each<K>([&](auto k) {
        const Vec scale = Vec::broadcast(keys.scale[g][first + k]);
        each<R>([&](auto r) { c[r][k] = fma(part[r][k], scale, c[r][k]); });
      });
    }
  } else {
    add_columns(0, width, c);
  }
  each<R>([&](auto r) { sums(c[r], scores + r * scores_ld); });
}

// acc[r][0 ... C vectors), or with `first` 0, += sum over keys [begin, end) of weights[r][k] * key k, lanes along its columns from
// `column` on. `begin` is a multiple of the keys that one product sums.
template <int R, int C, class Keys>
inline void value_block(const float *weights, int32_t weights_ld, const Keys &keys, int32_t column, int32_t begin, int32_t end,
                        bool first, float *acc, int32_t acc_ld, LinesAhead *ahead) {
  LinesAhead lines = *ahead;
  using Products = typename Keys::Products;
  using Operand = typename Products::Operand;
  Vec c[R][C];
  each<R>(
      [&](auto r) { each<C>([&](auto j) { c[r][j] = first ? Vec::zero() : Vec::load(acc + r * acc_ld + j * Vec::width); }); });
  for (int32_t k = begin; k < end; k += Products::keys) {
    if (k % Vec::steps_a_line == 0) lines.step();
    Operand b[C];
    Products::values(keys, k, end, column, b);
    each<R>([&](auto r) {
      const Operand a = Products::weight(weights, weights_ld, r, k);
      each<C>([&](auto j) { c[r][j] = fma(a, b[j], c[r][j]); });
    });
  }
  each<R>([&](auto r) { each<C>([&](auto j) { c[r][j].store(acc + r * acc_ld + j * Vec::width); }); });
  *ahead = lines;
}

}  // namespace
}  // namespace mlaverify::cpu
