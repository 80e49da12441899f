// The tolerance policy (docs/tolerance.md), in one place: what it means that a computed row agrees with the oracle's.
#pragma once

#include <string>

#include "rules/problem.h"

namespace mlaverify {

struct Tolerance {
  double out;  // |o - ref| <= out * |ref| in the Euclidean norm of the row
  double lse;  // |lse - ref| <= lse * max(1, |ref|)
};

Tolerance tolerance_for(DType q_dtype);

// What one row is off by: to be compared with tolerance_for(). Infinity where special values differ.
struct RowError {
  double out = 0;  // relative to the norm of the row
  double lse = 0;  // relative to max(1, |lse|)
  bool ok = true;
  std::string why;  // empty if ok
};

// Compares row `out` (type of q, `v_dim` contiguous elements) and `lse` with the oracle's. A row without keys must be exactly 0
// and -inf; NaN and infinity belong only where the oracle has them.
RowError compare_row(DType q_dtype, int32_t v_dim, const void *out, float lse, const double *want_out, double want_lse);

}  // namespace mlaverify
