#include "oracle/tolerance.h"

#include <cmath>
#include <cstdio>
#include <limits>

#include "rules/number.h"

namespace mlaverify {
namespace {

// NaN, +infinity, -infinity or finite.
int kind(double x) { return std::isnan(x) ? 1 : std::isinf(x) ? (x > 0 ? 2 : 3) : 0; }

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2e", x);
  return text;
}

RowError differ(std::string why) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  return {inf, inf, false, std::move(why)};
}

}  // namespace

Tolerance tolerance_for(DType q_dtype) { return q_dtype == DType::f32 ? Tolerance{2e-5, 1e-5} : Tolerance{4e-3, 2e-3}; }

RowError compare_row(DType q_dtype, int32_t v_dim, const void *out, float lse, const double *want_out, double want_lse) {
  const double got_lse = static_cast<double>(lse);
  if (kind(got_lse) != kind(want_lse)) {
    return differ("lse is " + std::to_string(lse) + ", expected " + std::to_string(want_lse));
  }
  const bool no_key = kind(want_lse) == 3;
  double error = 0, norm = 0;
  for (int32_t c = 0; c < v_dim; ++c) {
    const double got = static_cast<double>(rules::load_float(q_dtype, out, c));
    const double want = want_out[c];
    // A finite oracle value beyond the range of f16 rounds to infinity: compare what the type can hold.
    const double stored = kind(want) == 0 && q_dtype == DType::f16
                              ? static_cast<double>(rules::f16_to_float(rules::float_to_f16(static_cast<float>(want))))
                              : want;
    if (kind(got) != kind(stored) || (no_key && got != 0)) {
      return differ("out[" + std::to_string(c) + "] is " + std::to_string(got) + ", expected " + std::to_string(want));
    }
    if (kind(stored) != 0) continue;
    error += (got - want) * (got - want);
    norm += want * want;
  }
  const Tolerance tolerance = tolerance_for(q_dtype);
  // The absolute part (1e-7, as in the conformance oracle) only matters for rows that are zero but for rounding.
  RowError e;
  e.out = std::sqrt(error) / (std::sqrt(norm) + 1e-7 / tolerance.out);
  e.lse = kind(want_lse) == 0 ? std::abs(got_lse - want_lse) / std::fmax(1.0, std::abs(want_lse)) : 0.0;
  if (!(e.out <= tolerance.out)) e.why = "out is off by " + number(e.out) + " of its norm, at most " + number(tolerance.out);
  if (!(e.lse <= tolerance.lse)) e.why = "lse is off by " + number(e.lse) + ", at most " + number(tolerance.lse);
  e.ok = e.why.empty();
  return e;
}

}  // namespace mlaverify
