// What the kernels share about final results: the state of a row, its log-sum-exp and the factor of its accumulators. Maxima
// are in log2 units (scores times log2 e).
#pragma once

#include "cuda/ptx.cuh"
#include "rules/mask.h"
#include "rules/merge.h"
#include "rules/pack.h"
#include "rules/problem.h"

namespace mlaverify::cuda {

constexpr float kMinusInf = -__builtin_huge_valf();

struct RowState {
  rules::SoftmaxState softmax;
  bool has_keys;
};

// A row without keys: -inf. A row whose scores are all -inf: NaN, as by definition.
__device__ __forceinline__ float lse_of(RowState s) {
  if (!s.has_keys) return kMinusInf;
  if (rules::weighs_nothing(s.softmax)) return __int_as_float(0x7fc00000);
  return (s.softmax.max + log2f(s.softmax.sum)) * 0.6931471805599453f;
}

// out = factor * acc. 0 for a row without keys (its acc is 0).
__device__ __forceinline__ float row_scale(RowState s, float k_scale) {
  if (!s.has_keys) return 0.0f;
  return rules::weighs_nothing(s.softmax) ? __int_as_float(0x7fc00000) : k_scale / s.softmax.sum;
}

}  // namespace mlaverify::cuda
