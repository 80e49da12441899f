#include "oracle/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rules/mask.h"
#include "rules/number.h"
#include "rules/pack.h"
#include "rules/paging.h"
#include "rules/row.h"

namespace mlaverify {

Oracle::Oracle(const Problem &problem) : problem_(problem) {}

double Oracle::row(int32_t request, int32_t token, int32_t head, double *out) {
  const Problem &p = problem_;
  const double k_scale = p.k_scale != nullptr ? static_cast<double>(*p.k_scale) : 1.0;
  const double scale = static_cast<double>(p.sm_scale);
  constexpr double inf = std::numeric_limits<double>::infinity();

  const int64_t q_at = rules::q_offset(p, request, {token, head});
  std::vector<double> q(static_cast<std::size_t>(p.qk_dim));
  for (int32_t d = 0; d < p.qk_dim; ++d)
    q[static_cast<std::size_t>(d)] = static_cast<double>(rules::load_float(p.q_dtype, p.q, q_at + d));

  // Scores of the keys that the row sees, in order.
  weights_.clear();
  std::vector<const char *> keys;
  double largest = -inf;
  bool nan = false;
  // Keys beyond what the block table can hold are seen by no valid call: a huge seq_len need not be walked through.
  const int64_t last = std::min<int64_t>(p.seq_lens[request], rules::table_keys(p));
  for (int64_t key = 0; key < last; ++key) {
    if (!rules::sees(p, request, token, key)) continue;
    const char *row = rules::row_at(p, rules::key_offset(p, request, key));
    double dot = 0;
    for (int32_t d = 0; d < p.qk_dim; ++d) {
      dot += q[static_cast<std::size_t>(d)] * (static_cast<double>(rules::row_number(p.kv_dtype, row, d)) * k_scale);
    }
    weights_.push_back(dot * scale);
    keys.push_back(row);
    largest = std::max(largest, dot * scale);
    nan = nan || std::isnan(dot * scale);
  }

  std::fill(out, out + p.v_dim, 0.0);
  if (keys.empty()) return -inf;
  if (nan) largest = std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (double &w : weights_) {
    w = std::exp(w - largest);
    sum += w;
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const double weight = weights_[i] / sum;
    for (int32_t c = 0; c < p.v_dim; ++c)
      out[c] += weight * (static_cast<double>(rules::row_number(p.kv_dtype, keys[i], c)) * k_scale);
  }
  return largest + std::log(sum);
}

}  // namespace mlaverify
