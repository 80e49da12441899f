// The choice of a token by its scores.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "generate/config.h"
#include "random.h"

namespace mlaverify::generate {

// The token with the greatest of kVocabulary scores, the first of equal ones.
inline uint8_t best_token(const float *logits) {
  return static_cast<uint8_t>(std::max_element(logits, logits + kVocabulary) - logits);
}

// A token drawn with probability softmax(logits / temperature), the best one for temperature 0. `random` decides alone: a caller that
// gives every position of every text its own draws the same token there whether it was drafted or not.
inline uint8_t pick_token(const float *logits, double temperature, cli::Random random) {
  const uint8_t best = best_token(logits);
  if (temperature == 0) return best;
  std::array<double, kVocabulary> weight;
  double sum = 0;
  for (std::size_t i = 0; i < weight.size(); ++i) {
    weight[i] = std::exp((static_cast<double>(logits[i]) - static_cast<double>(logits[best])) / temperature);
    sum += weight[i];
  }
  double left = random.uniform() * sum;
  for (std::size_t i = 0; i < weight.size(); ++i) {
    left -= weight[i];
    if (left < 0) return static_cast<uint8_t>(i);
  }
  return best;  // rounding has left a trifle
}

}  // namespace mlaverify::generate
