// The one macro that lets a rule be shared by CPU code, CUDA code and tests, and the integer helpers that rules need.
// Rules are always inlined: a translation unit compiled for a newer instruction set must never emit an out-of-line copy that
// the linker could pick for everybody else.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define MLAVERIFY_HD __host__ __device__ __forceinline__ constexpr
#else
#define MLAVERIFY_HD __attribute__((always_inline)) inline constexpr
#endif

namespace mlaverify::rules {

template <class T>
MLAVERIFY_HD T min(T a, T b) {
  return b < a ? b : a;
}

template <class T>
MLAVERIFY_HD T max(T a, T b) {
  return a < b ? b : a;
}

template <class T>
MLAVERIFY_HD T clamp(T x, T lo, T hi) {
  return max(lo, min(x, hi));
}

// For a >= 0, b > 0.
template <class T>
MLAVERIFY_HD T ceil_div(T a, T b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

template <class T>
MLAVERIFY_HD T round_up(T a, T b) {
  return ceil_div(a, b) * b;
}

}  // namespace mlaverify::rules
