// Numbers of a row, a vector at a time: from the types of the cache, to those of the output, and exp. Over the vector type `Vec`, as kernel.h.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "rules/config_table.h"
#include "rules/problem.h"
#include "rules/row.h"
#include "rules/workspace.h"

namespace mlaverify::cpu {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr int32_t kTileKeys = rules::cpu_config().block_n;
constexpr int32_t kTileRows = rules::cpu_config().block_h;
static_assert(kTileKeys % (2 * Vec::width) == 0, "rows of scores are whole vectors, and pairs of them");

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

// Columns that a score sums apart from the others, before these sums are added in order: rounding adds up neither along the width nor
// along the sums (docs/tolerance.md). And columns of a key tile that are converted at a time: so many stay in L1 while they are used.
// Fewer for f32 queries, which need the shorter sums.
constexpr int32_t kColumns = Vec::score_columns, kFloatColumns = 32;
static_assert(kColumns <= rules::kCpuScoreColumns);
inline int32_t score_columns(const Problem &p) { return p.q_dtype == DType::f32 ? kFloatColumns : kColumns; }
constexpr int32_t kValueColumns = rules::max<int32_t>(kFloatColumns, Vec::width *int32_t{Vec::value_vectors});
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
  while (i + kFloatColumns <= n) each<kFloatColumns / Vec::width>([&](auto) { next(); });
  while (i + Vec::width <= n) next();
  if constexpr (Vec::width > 8) {
    if (i < n) next(n - i);
  }
}

// The byte at which number d of a part lies.
inline int32_t place_of(const rules::RowPart &part, int32_t d) {
  return part.at + (d - part.begin) * rules::dtype_bytes(part.dtype);
}

// Calls f(T(), load_of) for the numbers of a part, which have type T: load_of(row) is what loads a vector of a row's as f32, as for
// convert_row().
template <class F>
inline void with_loads(const rules::RowPart &part, F f) {
  const auto e4m3 = [](auto... x) { return Vec::load_e4m3(x...); };
  switch (part.dtype) {
    case DType::f32: return f(float(), [](const char *) { return [](auto... x) { return Vec::load(x...); }; });
    case DType::f16: return f(uint16_t(), [](const char *) { return [](auto... x) { return Vec::load_f16(x...); }; });
    case DType::bf16: return f(uint16_t(), [](const char *) { return [](auto... x) { return Vec::load_bf16(x...); }; });
    case DType::f8_e4m3:
      if (part.group < 0) return f(uint8_t(), [=](const char *) { return e4m3; });
      return f(uint8_t(), [=](const char *row) {
        return [=, scale = Vec::broadcast(rules::record_scales(row)[part.group])](auto... x) { return e4m3(x...) * scale; };
      });
    case DType::f8_e5m2: return f(uint8_t(), [](const char *) { return [](auto... x) { return Vec::load_e5m2(x...); }; });
    case DType::i32:
    case DType::f8_ds_mla: return;  // not the type of a part
  }
}

// Calls f(part, first, n) for the parts of numbers [d, d + n) of a row of type `t`: which of the n one begins with, and how many are in it.
template <class F>
inline void each_part(DType t, int32_t d, int32_t n, F f) {
  for (int32_t i = 0; i < n;) {
    const rules::RowPart part = rules::row_part(t, d + n, d + i);
    const int32_t here = rules::min(part.end - d, n) - i;
    f(part, i, here);
    i += here;
  }
}

// Numbers [d, d + n) of `count` rows of type `t` as f32, to rows of ld numbers. If there are `squares`, those of a row are added to its
// vector there.
inline void convert(DType t, const char *const *rows, int32_t count, int32_t d, int32_t n, float *to, int32_t ld,
                    float *squares) {
  each_part(t, d, n, [=](const rules::RowPart &part, int32_t first, int32_t here) {
    const int32_t at = place_of(part, d + first);
    with_loads(part, [=](auto type, auto load_of) {
      const auto from = [=](int32_t r) { return reinterpret_cast<const decltype(type) *>(rows[r] + at); };
      float *const out = to + first;
      if (squares == nullptr) {
        for (int32_t r = 0; r < count; ++r) convert_row(from(r), here, out + r * ld, load_of(rows[r]), [](Vec) {});
        return;
      }
      for (int32_t r = 0; r < count; ++r) {
        Vec sum = Vec::load(squares + r * Vec::width);
        convert_row(from(r), here, out + r * ld, load_of(rows[r]), [&](Vec x) { sum = fma(x, x, sum); });
        sum.store(squares + r * Vec::width);
      }
    });
  });
}

// The same transposed: number d + j of row i goes to to[j][i], in whole vectors of rows (there are as many) and of numbers. step() is
// called for each square of these.
template <class Step>
inline void convert_transposed(DType t, const char *const *rows, int32_t count, int32_t d, int32_t n, float *to, int32_t ld,
                               float *squares, Step step) {
  each_part(t, d, n, [=](const rules::RowPart &part, int32_t first, int32_t here) {
    const int32_t at = place_of(part, d + first);
    with_loads(part, [=](auto type, auto load_of) {
      const auto block = [=](int32_t r, int32_t j, auto... lanes) {
        step();
        Vec x[Vec::width];
        each<Vec::width>([&](auto i) {
          const char *const row = rows[r + i];
          x[i] = load_of(row)(reinterpret_cast<const decltype(type) *>(row + at) + j, lanes...);
        });
        if (squares != nullptr) {
          each<Vec::width>([&](auto i) {
            float *const sum = squares + (r + i) * Vec::width;
            fma(x[i], x[i], Vec::load(sum)).store(sum);
          });
        }
        transpose(x);
        each<Vec::width>([&](auto i) { x[i].store(to + (first + j + i) * ld + r); });
      };
      for (int32_t r = 0; r < count; r += Vec::width) {
        int32_t j = 0;
        for (; j + Vec::width <= here; j += Vec::width) block(r, j);
        if constexpr (Vec::width > 8) {
          if (j < here) block(r, j, here - j);
        }
      }
    });
  });
}

// to[j][i] = from[i][j], in whole vectors of rows and of columns.
inline void transpose(const float *from, int32_t from_ld, int32_t rows, int32_t columns, float *to, int32_t to_ld) {
  for (int32_t i = 0; i < rows; i += Vec::width) {
    for (int32_t j = 0; j < columns; j += Vec::width) {
      Vec x[Vec::width];
      each<Vec::width>([&](auto k) { x[k] = Vec::load(from + (i + k) * from_ld + j); });
      transpose(x);
      each<Vec::width>([&](auto k) { x[k].store(to + (j + k) * to_ld + i); });
    }
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
  return fill_below(y * pow2(n), Vec::zero(), x, -87.0f);
}

inline float exp(float x) {
  float lanes[Vec::width];
  exp(Vec::broadcast(x)).store(lanes);
  return lanes[0];
}

}  // namespace
}  // namespace mlaverify::cpu
