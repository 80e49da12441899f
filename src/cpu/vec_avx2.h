// Eight float lanes of AVX2 + FMA + F16C. Same interface as vec_scalar.h.
#pragma once

#include "cpu/vec_x86.h"

namespace mlaverify::cpu {
namespace {

struct Vec {
  static constexpr int width = 8;
  // Register blocks of blocks.h: accumulators, operands and one more are 16 registers.
  static constexpr int score_accumulators = 12, score_vectors = 2, value_rows = 6, value_vectors = 2;
  static constexpr int score_columns = 32, steps_a_line = 4;
  static constexpr int transposing_rows = 4;           // so many take about as long as the transposition of keys
  static constexpr bool converts_as_it_loads = false;  // two vectors a block: conversions would cost as much as products
  static constexpr bool multiplies_bf16 = false;
  __m256 v;

  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
  static Vec load(const float *p) { return {_mm256_loadu_ps(p)}; }
  static Vec load_f16(const uint16_t *p) { return {_mm256_cvtph_ps(load_128(p))}; }
  static Vec load_bf16(const uint16_t *p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(p)), 16))};
  }
  // Both FP8 formats go through f16, whose conversion is exact and deaf to the denormals-are-zero mode. The bits of e4m3 under
  // an f16 exponent are worth 2^-8 of the value; its one NaN pattern has no counterpart and is set by hand.
  static Vec load_e4m3(const uint8_t *p) {
    const __m128i x = _mm_cvtepu8_epi16(load_64(p));
    const __m128i magnitude = _mm_and_si128(x, _mm_set1_epi16(0x7f));
    const __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_slli_epi16(_mm_and_si128(x, _mm_set1_epi16(0x80)), 8);
    const __m128i bits =
        _mm_or_si128(sign, _mm_or_si128(_mm_slli_epi16(magnitude, 7), _mm_and_si128(nan, _mm_set1_epi16(0x7e00))));
    return {_mm256_mul_ps(_mm256_cvtph_ps(bits), _mm256_set1_ps(256.0f))};
  }
  static Vec load_e5m2(const uint8_t *p) { return {_mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(load_64(p)), 8))}; }

  void store(float *p) const { _mm256_storeu_ps(p, v); }
  void store_f16(uint16_t *p) const { store_128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
  // Round to nearest, ties to even; NaN stays NaN (rules/number.h).
  void store_bf16(uint16_t *p) const {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i high = _mm256_srli_epi32(u, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i r = _mm256_blendv_epi8(rounded, quiet, nan);
    store_128(p, _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1)));
  }

 private:
  static __m128i load_128(const void *p) { return _mm_loadu_si128(static_cast<const __m128i *>(p)); }
  static __m128i load_64(const void *p) { return _mm_loadl_epi64(static_cast<const __m128i *>(p)); }
  static void store_128(void *p, __m128i x) { _mm_storeu_si128(static_cast<__m128i *>(p), x); }
};

// Keeps x in a register where it is used several times: g++ would make it a memory operand of each use, and loads are the
// limit.
inline Vec in_register(Vec x) {
  asm("" : "+x"(x.v));
  return x;
}
inline void load_bf16_pairs(const uint16_t *p, Vec *first, Vec *second) {
  const Vec x = in_register(Vec{_mm256_loadu_ps(reinterpret_cast<const float *>(p))});
  first->v = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x.v), 16));
  second->v = _mm256_and_ps(x.v, _mm256_castsi256_ps(_mm256_set1_epi32(-65536)));
}
inline void join_pairs(Vec *first, Vec *second) {
  const __m256 low = _mm256_unpacklo_ps(first->v, second->v), high = _mm256_unpackhi_ps(first->v, second->v);
  first->v = _mm256_permute2f128_ps(low, high, 0x20);
  second->v = _mm256_permute2f128_ps(low, high, 0x31);
}
inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec round(Vec x) { return {_mm256_round_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Vec pow2(Vec n) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23))};
}
inline Vec fill_below(Vec x, Vec fill, Vec a, float limit) {
  return {_mm256_blendv_ps(x.v, fill.v, _mm256_cmp_ps(a.v, _mm256_set1_ps(limit), _CMP_LT_OQ))};
}
inline Vec fill_from(Vec a, int count, float x) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 inside = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane));
  return {_mm256_blendv_ps(_mm256_set1_ps(x), a.v, inside)};
}
inline float sum(Vec a) { return _mm_cvtss_f32(four_sums(a.v, a.v, a.v, a.v)); }
inline float largest(Vec a) { return largest_lane(a.v); }
inline void transpose(Vec (&a)[8]) {
  __m256 t[8];
  for (int i = 0; i < 8; i += 2) {  // pairs of rows in pairs of lanes, of each half
    t[i] = _mm256_unpacklo_ps(a[i].v, a[i + 1].v);
    t[i + 1] = _mm256_unpackhi_ps(a[i].v, a[i + 1].v);
  }
  for (int i = 0; i < 8; i += 4) {  // four rows in four lanes
    a[i].v = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    a[i + 1].v = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    a[i + 2].v = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    a[i + 3].v = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    const __m256 x = a[i].v, y = a[i + 4].v;
    a[i].v = _mm256_permute2f128_ps(x, y, 0x20);
    a[i + 4].v = _mm256_permute2f128_ps(x, y, 0x31);
  }
}

}  // namespace
}  // namespace mlaverify::cpu
