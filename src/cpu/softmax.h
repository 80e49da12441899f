// From the scores of one row to its weights. Over the vector type `Vec`, as kernel.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cpu/elements.h"

namespace mlaverify::cpu {
namespace {

constexpr float kLeast = std::numeric_limits<float>::lowest();  // only -inf is below

inline void scale_row(float *row, int32_t n, float factor) {
  for (int32_t i = 0; i < n; i += Vec::width) (Vec::load(row + i) * Vec::broadcast(factor)).store(row + i);
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

// For one row of f32 queries: recomputes in f64 the scaled scores whose bound is not trusted, as scores[i * ld] + low[i * low_ld], for its
// n > 0 visible keys. False if there are none; `low` is then not written. kv_largest[i]: the largest of the first i + 1 norms; key(i):
// converted key i.
template <class Key>
inline bool refine_scores(const float *q, float q_norm, const float *kv_norms, const float *kv_largest, int32_t width,
                          int32_t n, double scale, Key key, float *scores, int32_t ld, float *low, int32_t low_ld) {
  const float factor = q_norm * std::abs(static_cast<float>(scale));
  const auto trusted = [=](float kv_norm) { return factor * kv_norm <= kTrustedScore; };  // (NaN: no)
  if (trusted(kv_largest[n - 1])) return false;
  for (int32_t i = 0; i < n; ++i) {
    if (trusted(kv_norms[i])) continue;
    const double score = dot_f64(q, key(i), width) * scale;
    float &high = scores[i * ld];
    high = static_cast<float>(score);
    if (std::abs(high) < kTwoPartScore) low[i * low_ld] = static_cast<float>(score - static_cast<double>(high));
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
    scale_row(acc, v_dim, shrink);
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

// Vectors at(0) ... at(Vec::width - 1) summed in the order in which sum() takes lanes.
template <class At>
inline Vec sum_as_lanes(At at) {
  static_assert(Vec::width == 8 || Vec::width == 16);
  const auto eighth = [&](int32_t i) {
    if constexpr (Vec::width == 16) return at(i) + at(i + 8);
    return at(i);
  };
  return ((eighth(0) + eighth(1)) + (eighth(2) + eighth(3))) + ((eighth(4) + eighth(5)) + (eighth(6) + eighth(7)));
}

// softmax_row() of as many rows as a vector has lanes, over a tile of `count` keys: the same bits. scores [count, ld] times `scale` become
// weights, 0 for keys that a row does not see. visible[i]: keys that row i sees, the first ones. low: [count, Vec::width], or null.
// shrink[i]: what the acc of row i is to be multiplied with. There is room for scores of kTileKeys.
inline void softmax_lanes(float *scores, int32_t ld, int32_t count, const float *low, const int32_t *visible, float scale,
                          float *max_out, float *sum_out, float *shrink) {
  constexpr int32_t chains = 4;  // of the maximum
  const int32_t end = rules::round_up(count, Vec::width);
  float limits[Vec::width];
  bool all = true;  // rows see all keys
  for (int32_t i = 0; i < Vec::width; ++i) {
    limits[i] = static_cast<float>(visible[i]);
    all = all && visible[i] == end;
  }
  const Vec factor = Vec::broadcast(scale), limit = Vec::load(limits), nothing = Vec::broadcast(kMinusInf);
  const auto softmax = [&](auto masked) {
    const auto score = [&](int32_t k) {
      const Vec x = Vec::load(scores + k * ld) * factor;
      return masked() ? fill_below(x, nothing, limit, static_cast<float>(k + 1)) : x;
    };
    const Vec before = Vec::load(max_out);
    Vec largest[chains];
    each<chains>([&](auto i) { largest[i] = before; });
    for (int32_t k = 0; k < end; k += chains) each<chains>([&](auto i) { largest[i] = max(score(k + i), largest[i]); });
    const Vec now = max(max(largest[0], largest[1]), max(largest[2], largest[3]));
    const Vec reference = fill_below(now, Vec::zero(), now, kLeast);  // all scores -inf: weights 0, not NaN
    for (int32_t k = 0; k < end; ++k) {
      Vec x = score(k) - reference;
      if (low != nullptr) x = x + Vec::load(low + k * Vec::width);
      exp(x).store(scores + k * ld);
    }
    const Vec smaller = fill_below(exp(before - reference), Vec::broadcast(1.0f), before, kLeast);
    smaller.store(shrink);
    const Vec total = sum_as_lanes([&](int32_t i) {
      Vec t = Vec::load(scores + i * ld);
      for (int32_t k = i + Vec::width; k < end; k += Vec::width) t = t + Vec::load(scores + k * ld);
      return t;
    });
    (Vec::load(sum_out) * smaller + total).store(sum_out);
    now.store(max_out);
  };
  all ? softmax(std::false_type()) : softmax(std::true_type());
}

}  // namespace
}  // namespace mlaverify::cpu
