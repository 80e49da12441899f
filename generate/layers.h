// The parts of a layer between its matrix products: plain functions on one row each.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "rules/number.h"

namespace mlaverify::generate {

inline std::vector<float> widened(const uint16_t *bf16, int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = rules::bf16_to_float(bf16[i]);
  return out;
}

// out = x / rms(x) * weight, of weight.size() numbers; `out` may be `x`.
inline void rms_norm(const std::vector<float> &weight, double eps, const float *x, float *out) {
  double squares = 0;
  for (std::size_t i = 0; i < weight.size(); ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const auto scale = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(weight.size()) + eps));
  for (std::size_t i = 0; i < weight.size(); ++i) out[i] = x[i] * scale * weight[i];
}

// Rotary position embedding: pair (2i, 2i+1) of a vector at position p is turned by the angle p * theta^(-2i / width).
class Rotation {
 public:
  Rotation() = default;
  Rotation(int32_t width, int32_t positions, double theta) : pairs_(static_cast<std::size_t>(width / 2)) {
    turns_.reserve(static_cast<std::size_t>(positions) * pairs_);
    for (int32_t p = 0; p < positions; ++p) {
      for (std::size_t i = 0; i < pairs_; ++i) {
        const double angle = p * std::pow(theta, -2 * static_cast<double>(i) / width);
        turns_.push_back({static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))});
      }
    }
  }

  // Turns `x` in place.
  void apply(int32_t position, float *x) const {
    const Turn *turn = turns_.data() + static_cast<std::size_t>(position) * pairs_;
    for (std::size_t i = 0; i < pairs_; ++i) {
      const float even = x[2 * i], odd = x[2 * i + 1];
      x[2 * i] = even * turn[i].cos - odd * turn[i].sin;
      x[2 * i + 1] = even * turn[i].sin + odd * turn[i].cos;
    }
  }

 private:
  struct Turn {
    float cos, sin;
  };
  std::size_t pairs_ = 0;
  std::vector<Turn> turns_;  // [positions][pairs]
};

// gate = silu(gate) * up
inline void swiglu(int32_t width, const float *up, float *gate) {
  for (int32_t i = 0; i < width; ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
}

}  // namespace mlaverify::generate
