// Which calls the CPU computes by products of bf16 numbers where it has them (AVX512-BF16, AMX): the workspace has room for their operands.
#pragma once

#include "rules/hd.h"
#include "rules/number.h"
#include "rules/problem.h"
#include "rules/row.h"

namespace mlaverify::rules {

// Keys of a tile whose values are packed for such products.
constexpr int32_t kBf16TileKeys = 256;

// bf16 queries, over a cache whose numbers are bf16 numbers, FP8 included, and those of records but for their scales, in rows of whole
// vectors. The weights are rounded to bf16, which moves a row by 2.3e-3 of its norm or so; of the few numbers of a narrower row it can be
// more than docs/tolerance.md allows.
constexpr int32_t kBf16Vector = 32, kBf16LeastValue = 128;
MLAVERIFY_HD bool bf16_products(DType q, DType kv, int32_t qk_dim, int32_t v_dim) {
  return q == DType::bf16 && (kv == DType::bf16 || is_fp8(kv) || is_record(kv)) && qk_dim % kBf16Vector == 0 &&
         v_dim % kBf16Vector == 0 && v_dim >= kBf16LeastValue;
}
MLAVERIFY_HD bool bf16_products(const Problem &p) { return bf16_products(p.q_dtype, p.kv_dtype, p.qk_dim, p.v_dim); }

}  // namespace mlaverify::rules
