// What a layer does between its matrix products and attention: each step a plain function of a row and a column of its result, the same
// on the host and on a GPU. Arrays lie where the model computes.
#pragma once

#include <cmath>
#include <cstdint>
#include <variant>
#include <vector>

#include "generate/sequences.h"
#include "rules/number.h"

namespace mlaverify::generate {

inline std::vector<float> widened(const uint16_t *bf16, int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = rules::bf16_to_float(bf16[i]);
  return out;
}

// out = x / rms(x) * weight, row by row; `out` may be `x`. Strides in elements, from row to row.
struct Norm {
  const std::vector<float> *weight;  // the model's: on the host
  double eps;
  const float *x;
  int64_t x_stride;
  float *out;
  int64_t out_stride;

  MLAVERIFY_HD_INLINE static float scale(double sum_of_squares, int64_t width, double eps) {
    return static_cast<float>(1 / std::sqrt(sum_of_squares / static_cast<double>(width) + eps));
  }
  MLAVERIFY_HD_INLINE static float number(float x, float scale, float weight) { return x * scale * weight; }
};

// Rotary position embedding: pair (2i, 2i+1) of a vector at position p is turned by the angle p * theta^(-2i / width).
struct Turn {
  float cos, sin;
};

// Of all positions: [positions, width / 2].
inline std::vector<Turn> turns_of(int32_t width, int32_t positions, double theta) {
  std::vector<Turn> turns;
  turns.reserve(static_cast<std::size_t>(positions) * static_cast<std::size_t>(width / 2));
  for (int32_t p = 0; p < positions; ++p) {
    for (int32_t i = 0; i < width / 2; ++i) {
      const double angle = p * std::pow(theta, -2 * static_cast<double>(i) / width);
      turns.push_back({static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))});
    }
  }
  return turns;
}

// Number `column` of the vector `x` of `width` numbers, rotated.
MLAVERIFY_HD float rotated(const Turn *turns, int32_t width, int32_t position, const float *x, int32_t column) {
  const Turn turn = turns[static_cast<int64_t>(position) * (width / 2) + column / 2];
  const float even = x[column & ~1], odd = x[column | 1];
  return (column & 1) == 0 ? even * turn.cos - odd * turn.sin : even * turn.sin + odd * turn.cos;
}

// What is cached of a token goes to its slot: its normed latent, and the key that all heads share, rotated.
struct StoreLatents {
  Sequences sequences;
  int32_t page_size, rank, rope;
  const Turn *turns;
  const float *latent;  // [rows, rank + rope]
  uint16_t *cache;      // [pages, page_size, rank + rope], bf16

  MLAVERIFY_HD int64_t rows() const { return sequences.rows(); }
  MLAVERIFY_HD int32_t columns() const { return rank + rope; }
  MLAVERIFY_HD void operator()(int64_t row, int32_t column) const {
    const float *x = latent + row * columns();
    const float number = column < rank ? x[column] : rotated(turns, rope, sequences.position(row), x + rank, column - rank);
    cache[sequences.slot(row, page_size) * columns() + column] = rules::float_to_bf16(number);
  }
};

// The queries of attention, a row for each token and head: the head's query in the space of the latents, and its rotated part.
struct MakeQueries {
  Sequences sequences;
  int32_t heads, rank, nope, rope;
  const Turn *turns;
  const float *in_latent_space;  // [tokens, heads, rank]
  const float *query;            // [tokens, heads, nope + rope]
  uint16_t *q;                   // [tokens, heads, rank + rope], bf16

  MLAVERIFY_HD int64_t rows() const { return sequences.rows() * heads; }
  MLAVERIFY_HD int32_t columns() const { return rank + rope; }
  MLAVERIFY_HD void operator()(int64_t row, int32_t column) const {
    const float number = column < rank ? in_latent_space[row * rank + column]
                                       : rotated(turns, rope, sequences.position(row / heads),
                                                 query + row * (nope + rope) + nope, column - rank);
    q[row * columns() + column] = rules::float_to_bf16(number);
  }
};

// Arrays of [num_rows, width] numbers, of which each is changed by itself.
struct Elements {
  int64_t num_rows;
  int32_t width;

  MLAVERIFY_HD int64_t rows() const { return num_rows; }
  MLAVERIFY_HD int32_t columns() const { return width; }
  MLAVERIFY_HD int64_t at(int64_t row, int32_t column) const { return row * width + column; }
};

// out = x, which is bf16
struct Widen : Elements {
  const uint16_t *x;
  float *out;

  MLAVERIFY_HD void operator()(int64_t row, int32_t column) const {
    out[at(row, column)] = rules::bf16_to_float(x[at(row, column)]);
  }
};

// sum += x
struct Add : Elements {
  const float *x;
  float *sum;

  MLAVERIFY_HD void operator()(int64_t row, int32_t column) const { sum[at(row, column)] += x[at(row, column)]; }
};

// gate = silu(gate) * up
struct SwiGlu : Elements {
  const float *up;
  float *gate;

  MLAVERIFY_HD_INLINE void operator()(int64_t row, int32_t column) const {
    float &g = gate[at(row, column)];
    g = g / (1 + std::exp(-g)) * up[at(row, column)];
  }
};

using Step = std::variant<StoreLatents, MakeQueries, Widen, Add, SwiGlu>;

}  // namespace mlaverify::generate
