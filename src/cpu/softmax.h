// From the scores of one row to its weights. Over the vector type `Vec`, as kernel.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/elements.h"

namespace mlaverify::cpu {
namespace {

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

}  // namespace
}  // namespace mlaverify::cpu
