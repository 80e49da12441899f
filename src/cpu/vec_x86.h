// What the vector types of AVX2 and AVX-512 have in common: sums across lanes, and products in f64.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace mlaverify::cpu {
namespace {

// Lanes (0+1)+(2+3) of each half, then the halves, of four vectors at once.
inline __m128 four_sums(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 t = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
}

// The sums of n vectors; four(i, j, k, l): those of four of them.
template <int n, int i = 0, class Four>
inline void store_sums(Four four, float *out) {
  constexpr int last = n - 1;  // a short group repeats its last member
  const __m128 s = four(i, i + 1 < n ? i + 1 : last, i + 2 < n ? i + 2 : last, i + 3 < n ? i + 3 : last);
  if constexpr (i + 4 <= n) {
    _mm_storeu_ps(out + i, s);
  } else {
    alignas(16) float sums[4];
    _mm_store_ps(sums, s);
    for (int j = 0; i + j < n; ++j) out[i + j] = sums[j];
  }
  if constexpr (i + 4 < n) store_sums<n, i + 4>(four, out);
}

inline float largest_lane(__m256 a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// a . b in f64, of n floats (a multiple of 8).
inline double dot_f64(const float *a, const float *b, int32_t n) {
  __m256d c[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};
  for (int32_t i = 0; i < n; i += 8) {
    for (int j = 0; j < 2; ++j) {
      c[j] = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_loadu_ps(a + i + 4 * j)), _mm256_cvtps_pd(_mm_loadu_ps(b + i + 4 * j)), c[j]);
    }
  }
  const __m256d s = _mm256_add_pd(c[0], c[1]);
  const __m128d t = _mm_add_pd(_mm256_castpd256_pd128(s), _mm256_extractf128_pd(s, 1));
  return _mm_cvtsd_f64(_mm_add_sd(t, _mm_unpackhi_pd(t, t)));
}

}  // namespace
}  // namespace mlaverify::cpu
