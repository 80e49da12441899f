// The oracle: one output row in float64, straight from the definition. No tiles, no splits, no derived bounds: it asks the
// plain element test of the mask rule for every key, so that a wrong bound elsewhere cannot hide. It backs the `reference`
// backend, and is what every test and `mlaverify check` compare with.
#pragma once

#include <vector>

#include "rules/problem.h"

namespace mlaverify {

class Oracle {
 public:
  // `problem` must be valid, and its lengths and page ids as the CPU backends demand.
  explicit Oracle(const Problem &problem);

  // Writes the v_dim numbers of (request, token, head) to `out`; returns its log-sum-exp (natural), -inf if it sees no key.
  double row(int32_t request, int32_t token, int32_t head, double *out);

 private:
  const Problem &problem_;
  std::vector<double> weights_;
};

}  // namespace mlaverify
