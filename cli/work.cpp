#include "work.h"

#include <algorithm>

#include "rules/mask.h"
#include "rules/number.h"
#include "rules/products.h"
#include "rules/row.h"

namespace mlaverify::cli {

Work &Work::operator+=(const Work &other) {
  bytes += other.bytes;
  flops += other.flops;
  return *this;
}

Work work_of(const Shape &shape) {
  double keys = 0;     // read from the cache
  double visible = 0;  // pairs of a query token and a key that it sees
  for (const int32_t len : shape.seq_lens) {
    keys += len;
    for (int32_t t = 0; t < shape.qlen; ++t) visible += rules::visible_keys(len, len, shape.qlen, t);
  }
  const double rows = static_cast<double>(shape.seq_lens.size()) * shape.qlen * shape.num_heads;
  const double dims = shape.qk_dim + shape.v_dim;
  Work work;
  work.bytes = keys * static_cast<double>(rules::row_bytes(shape.kv_dtype, shape.qk_dim)) +
               rows * dims * rules::dtype_bytes(shape.q_dtype);
  work.flops = 2 * dims * shape.num_heads * visible;
  return work;
}

Ceilings ceilings_of(const Shape &shape, const Ceilings &machine) {
  Ceilings c = machine;
  if (c.bf16_flops_per_second > 0 && rules::bf16_products(shape.q_dtype, shape.kv_dtype, shape.qk_dim, shape.v_dim))
    c.flops_per_second = c.bf16_flops_per_second;
  return c;
}

double floor_seconds(const Work &work, const Ceilings &ceilings) {
  return std::max(work.bytes / ceilings.bytes_per_second, work.flops / ceilings.flops_per_second);
}

}  // namespace mlaverify::cli
