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

// n numbers from byte `at` on of `count` rows as f32, to rows of ld numbers. If there are `squares`, those of a row are added to its vector
// there. load_of(row): what loads a vector of the row's numbers, as for convert_row().
template <class T, class LoadOf>
inline void convert(const char *const *rows, int32_t count, int32_t at, int32_t n, float *to, int32_t ld, float *squares,
                    LoadOf load_of) {
  const auto from = [&](int32_t r) { return reinterpret_cast<const T *>(rows[r] + at); };
  if (squares == nullptr) {
    for (int32_t r = 0; r < count; ++r) convert_row(from(r), n, to + r * ld, load_of(rows[r]), [](Vec) {});
    return;
  }
  for (int32_t r = 0; r < count; ++r) {
    Vec sum = Vec::load(squares + r * Vec::width);
    convert_row(from(r), n, to + r * ld, load_of(rows[r]), [&](Vec x) { sum = fma(x, x, sum); });
    sum.store(squares + r * Vec::width);
  }
}

// The byte at which number d of a part lies.
inline int32_t place_of(const rules::RowPart &part, int32_t d) {
  return part.at + (d - part.begin) * rules::dtype_bytes(part.dtype);
}

// The same of numbers [d, d + n), which are in one part of their rows.
inline void convert(const rules::RowPart &part, const char *const *rows, int32_t count, int32_t d, int32_t n, float *to,
                    int32_t ld, float *squares) {
  const auto f32 = [](const char *) { return [](auto... x) { return Vec::load(x...); }; };
  const auto f16 = [](const char *) { return [](auto... x) { return Vec::load_f16(x...); }; };
  const auto bf16 = [](const char *) { return [](auto... x) { return Vec::load_bf16(x...); }; };
  const auto e4m3 = [](const char *) { return [](auto... x) { return Vec::load_e4m3(x...); }; };
  const auto e5m2 = [](const char *) { return [](auto... x) { return Vec::load_e5m2(x...); }; };
  const auto scaled = [&](const char *row) {
    return [scale = Vec::broadcast(rules::record_scales(row)[part.group])](auto... x) { return Vec::load_e4m3(x...) * scale; };
  };
  const int32_t at = place_of(part, d);
  switch (part.dtype) {
    case DType::f32: return convert<float>(rows, count, at, n, to, ld, squares, f32);
    case DType::f16: return convert<uint16_t>(rows, count, at, n, to, ld, squares, f16);
    case DType::bf16: return convert<uint16_t>(rows, count, at, n, to, ld, squares, bf16);
    case DType::f8_e4m3:
      if (part.group >= 0) return convert<uint8_t>(rows, count, at, n, to, ld, squares, scaled);
      return convert<uint8_t>(rows, count, at, n, to, ld, squares, e4m3);
    case DType::f8_e5m2: return convert<uint8_t>(rows, count, at, n, to, ld, squares, e5m2);
    case DType::i32:
    case DType::f8_ds_mla: return;  // not the type of a part
  }
}

// The same of any numbers of rows of type `t`.
inline void convert(DType t, const char *const *rows, int32_t count, int32_t d, int32_t n, float *to, int32_t ld,
                    float *squares) {
  for (const int32_t end = d + n; d < end;) {
    const rules::RowPart part = rules::row_part(t, end, d);
    const int32_t here = rules::min(part.end, end) - d;
    convert(part, rows, count, d, here, to, ld, squares);
    d += here;
    to += here;
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

}  // namespace
}  // namespace mlaverify::cpu
