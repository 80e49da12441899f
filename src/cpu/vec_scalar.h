// Eight float lanes in portable C++. kernel.h is compiled over this and over vec_avx2.h and vec_avx512.h, over the last with
// and without bf16 products.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "rules/number.h"

namespace mlaverify::cpu {
namespace {

struct Vec {
  static constexpr int width = 8;
  static constexpr int score_accumulators = 12, score_vectors = 2, value_rows = 6,
                       value_vectors = 2;  // register blocks of blocks.h
  static constexpr int score_columns = 32, steps_a_line = 4;
  static constexpr int transposing_rows = 4;  // so many take about as long as the transposition of keys
  static constexpr bool converts_as_it_loads = false;
  static constexpr bool multiplies_bf16 = false;
  float v[width];

  static Vec zero() { return broadcast(0.0f); }
  static Vec broadcast(float x) {
    Vec r;
    for (float &lane : r.v) lane = x;
    return r;
  }
  static Vec load(const float *p) {
    Vec r;
    for (int i = 0; i < width; ++i) r.v[i] = p[i];
    return r;
  }
  template <class T, class Convert>
  static Vec load_with(const T *p, Convert convert) {
    Vec r;
    for (int i = 0; i < width; ++i) r.v[i] = convert(p[i]);
    return r;
  }
  static Vec load_f16(const uint16_t *p) {
    return load_with(p, [](uint16_t x) { return rules::f16_to_float(x); });
  }
  static Vec load_bf16(const uint16_t *p) {
    return load_with(p, [](uint16_t x) { return rules::bf16_to_float(x); });
  }
  static Vec load_e4m3(const uint8_t *p) {
    return load_with(p, [](uint8_t x) { return rules::e4m3_to_float(x); });
  }
  static Vec load_e5m2(const uint8_t *p) {
    return load_with(p, [](uint8_t x) { return rules::e5m2_to_float(x); });
  }

  void store(float *p) const {
    for (int i = 0; i < width; ++i) p[i] = v[i];
  }
  void store_f16(uint16_t *p) const {
    for (int i = 0; i < width; ++i) p[i] = rules::float_to_f16(v[i]);
  }
  void store_bf16(uint16_t *p) const {
    for (int i = 0; i < width; ++i) p[i] = rules::float_to_bf16(v[i]);
  }
};

inline Vec in_register(Vec x) { return x; }
// The bf16 numbers of two vectors, in pairs in the lanes: the first ones of the pairs, the second ones. join_pairs() puts them in their
// places.
inline void load_bf16_pairs(const uint16_t *p, Vec *first, Vec *second) {
  for (int i = 0; i < Vec::width; ++i) {
    first->v[i] = rules::bf16_to_float(p[2 * i]);
    second->v[i] = rules::bf16_to_float(p[2 * i + 1]);
  }
}
inline void join_pairs(Vec *first, Vec *second) {
  const Vec a = *first, b = *second;
  for (int i = 0; i < 2 * Vec::width; ++i) {
    (i < Vec::width ? first : second)->v[i % Vec::width] = (i % 2 == 0 ? a : b).v[i / 2];
  }
}
inline Vec operator+(Vec a, Vec b) {
  for (int i = 0; i < Vec::width; ++i) a.v[i] += b.v[i];
  return a;
}
inline Vec operator-(Vec a, Vec b) {
  for (int i = 0; i < Vec::width; ++i) a.v[i] -= b.v[i];
  return a;
}
inline Vec operator*(Vec a, Vec b) {
  for (int i = 0; i < Vec::width; ++i) a.v[i] *= b.v[i];
  return a;
}
// a * b + c.
inline Vec fma(Vec a, Vec b, Vec c) {
  for (int i = 0; i < Vec::width; ++i) c.v[i] += a.v[i] * b.v[i];
  return c;
}
// The larger; `b` where either is NaN.
inline Vec max(Vec a, Vec b) {
  for (int i = 0; i < Vec::width; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
// Nearest integer, for |x| < 2^22; ties either way, anything for other x.
inline Vec round(Vec x) {
  constexpr float shift = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for a fraction
  for (float &lane : x.v) lane = (lane + shift) - shift;
  return x;
}
// 2^n for integers n in -126 ... 127; anything finite or NaN for other n.
inline Vec pow2(Vec n) {
  for (float &lane : n.v) {
    const float inside = lane >= -126.0f && lane <= 127.0f ? lane : 0.0f;
    lane = rules::float_from_bits(static_cast<uint32_t>(static_cast<int32_t>(inside) + 127) << 23);
  }
  return n;
}
// `fill` where a < limit, x elsewhere (and where a is NaN).
inline Vec fill_below(Vec x, Vec fill, Vec a, float limit) {
  for (int i = 0; i < Vec::width; ++i) x.v[i] = a.v[i] < limit ? fill.v[i] : x.v[i];
  return x;
}
// The lanes i >= count set to x.
inline Vec fill_from(Vec a, int count, float x) {
  for (int i = 0; i < Vec::width; ++i) a.v[i] = i < count ? a.v[i] : x;
  return a;
}
inline float sum(Vec a) { return ((a.v[0] + a.v[1]) + (a.v[2] + a.v[3])) + ((a.v[4] + a.v[5]) + (a.v[6] + a.v[7])); }
// a . b in f64, of n floats (a multiple of 8).
inline double dot_f64(const float *a, const float *b, int32_t n) {
  double c[8] = {};
  for (int32_t i = 0; i < n; i += 8) {
    for (int j = 0; j < 8; ++j) c[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  }
  return ((c[0] + c[1]) + (c[2] + c[3])) + ((c[4] + c[5]) + (c[6] + c[7]));
}
inline float largest(Vec a) {
  float m = a.v[0];
  for (int i = 1; i < Vec::width; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
// Lane j of a[i] becomes lane i of a[j].
inline void transpose(Vec (&a)[Vec::width]) {
  for (int i = 0; i < Vec::width; ++i) {
    for (int j = 0; j < i; ++j) std::swap(a[i].v[j], a[j].v[i]);
  }
}

}  // namespace
}  // namespace mlaverify::cpu
