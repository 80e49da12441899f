// Sixteen float lanes of AVX-512 (F, BW, DQ, VL). Same interface as vec_scalar.h; loads and stores of the first `n` lanes beside it, since
// rows are multiples of 8. Lanes that are not loaded are 0. With AVX512-BF16 (and VBMI), products of pairs of bf16 numbers as well.
#pragma once

#include <cstring>

#include "cpu/vec_x86.h"
#include "rules/number.h"

namespace mlaverify::cpu {
namespace {

#if defined(__AVX512BF16__)
// The bf16 numbers that the codes of an FP8 type stand for (exactly: bf16 has more of everything), in two bytes; codes without their sign.
struct Fp8AsBf16 {
  alignas(64) uint8_t high[128] = {}, low[128] = {};
  explicit constexpr Fp8AsBf16(DType t) {
    for (uint8_t code = 0; code < 128; ++code) {
      const float x = t == DType::f8_e4m3 ? rules::e4m3_to_float(code) : rules::e5m2_to_float(code);
      high[code] = static_cast<uint8_t>(rules::bits_from_float(x) >> 24);
      low[code] = static_cast<uint8_t>(rules::bits_from_float(x) >> 16);
    }
  }
};
constexpr Fp8AsBf16 kE4m3AsBf16(DType::f8_e4m3), kE5m2AsBf16(DType::f8_e5m2);
#endif

struct Vec {
  static constexpr int width = 16;
  // Register blocks of blocks.h: accumulators, operands and one more are 32 registers.
  static constexpr int score_accumulators = 24, score_vectors = 4, value_rows = 6, value_vectors = 4;
  static constexpr int score_columns = 64, steps_a_line = 1;
  static constexpr int pair_rows = 4, pair_keys = 6;
  static constexpr int transposing_rows = 7;          // so many take about as long as the transposition of keys
  static constexpr bool converts_as_it_loads = true;  // two instructions for six products
  __m512 v;

#if defined(__AVX512BF16__)
  static constexpr bool multiplies_bf16 = true;
  struct Bf16Pairs {
    __m512i v;
    static Bf16Pairs zero() { return {_mm512_setzero_si512()}; }
    static Bf16Pairs load(const uint16_t *p) { return {_mm512_loadu_si512(p)}; }
    static Bf16Pairs broadcast(const uint16_t *pair) {
      int32_t x;
      std::memcpy(&x, pair, sizeof x);
      return {_mm512_set1_epi32(x)};
    }
    // 32 numbers rounded to nearest, ties to even.
    static Bf16Pairs round(Vec low, Vec high) { return {reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.v, low.v))}; }
    void store(uint16_t *p) const { _mm512_storeu_si512(p, v); }
  };

  // n numbers of FP8 type `t` (a multiple of 32) as bf16, 64 at a time.
  static void fp8_to_bf16(DType t, const void *from, int32_t n, uint16_t *to) {
    const Fp8AsBf16 &table = t == DType::f8_e4m3 ? kE4m3AsBf16 : kE5m2AsBf16;
    const __m512i high_0 = _mm512_load_si512(table.high), high_1 = _mm512_load_si512(table.high + 64);
    const __m512i low_0 = _mm512_load_si512(table.low), low_1 = _mm512_load_si512(table.low + 64);
    const __m512i halves_in_turn = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);  // which the unpacking puts right
    for (int32_t i = 0; i < n; i += 64) {
      const __mmask64 there = n - i < 64 ? 0xffffffffu : ~__mmask64{0};
      const __m512i codes =
          _mm512_permutexvar_epi64(halves_in_turn, _mm512_maskz_loadu_epi8(there, static_cast<const uint8_t *>(from) + i));
      const __m512i sign = _mm512_and_si512(codes, _mm512_set1_epi8(-128));
      const __m512i high = _mm512_or_si512(sign, _mm512_permutex2var_epi8(high_0, codes, high_1));
      const __m512i low = _mm512_permutex2var_epi8(low_0, codes, low_1);
      _mm512_storeu_si512(to + i, _mm512_unpacklo_epi8(low, high));
      if (n - i >= 64) _mm512_storeu_si512(to + i + 32, _mm512_unpackhi_epi8(low, high));
    }
  }

  // 32 bf16 numbers times `scale`, rounded.
  static Bf16Pairs scaled(Bf16Pairs x, Vec scale) {
    const Vec low = bf16(_mm512_castsi512_si256(x.v)), high = bf16(_mm512_extracti64x4_epi64(x.v, 1));
    return Bf16Pairs::round({_mm512_mul_ps(low.v, scale.v)}, {_mm512_mul_ps(high.v, scale.v)});
  }
#else
  static constexpr bool multiplies_bf16 = false;
#endif

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float *p) { return {_mm512_loadu_ps(p)}; }
  static Vec load(const float *p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
  static Vec load_f16(const uint16_t *p) { return f16(load_256(p)); }
  static Vec load_f16(const uint16_t *p, int n) { return f16(load_256(p, n)); }
  static Vec load_bf16(const uint16_t *p) { return bf16(load_256(p)); }
  static Vec load_bf16(const uint16_t *p, int n) { return bf16(load_256(p, n)); }
  static Vec load_e4m3(const uint8_t *p) { return e4m3(load_128(p)); }
  static Vec load_e4m3(const uint8_t *p, int n) { return e4m3(load_128(p, n)); }
  static Vec load_e5m2(const uint8_t *p) { return e5m2(load_128(p)); }
  static Vec load_e5m2(const uint8_t *p, int n) { return e5m2(load_128(p, n)); }

  void store(float *p, int n = width) const { _mm512_mask_storeu_ps(p, first(n), v); }
  void store_f16(uint16_t *p, int n = width) const {
    store_256(p, n, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  // Round to nearest, ties to even; NaN stays NaN (rules/number.h). (The instruction for it takes denormals for zero.)
  void store_bf16(uint16_t *p, int n = width) const {
    const __m512i u = _mm512_castps_si512(v);
    const __m512i high = _mm512_srli_epi32(u, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    store_256(p, n, _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet)));
  }

 private:
  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
  static __m256i load_256(const void *p) { return _mm256_loadu_si256(static_cast<const __m256i *>(p)); }
  static __m256i load_256(const void *p, int n) { return _mm256_maskz_loadu_epi16(first(n), p); }
  static __m128i load_128(const void *p) { return _mm_loadu_si128(static_cast<const __m128i *>(p)); }
  static __m128i load_128(const void *p, int n) { return _mm_maskz_loadu_epi8(first(n), p); }
  static void store_256(void *p, int n, __m256i x) { _mm256_mask_storeu_epi16(p, first(n), x); }

  static Vec f16(__m256i x) { return {_mm512_cvtph_ps(x)}; }
  static Vec bf16(__m256i x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))}; }
  // As in vec_avx2.h.
  static Vec e4m3(__m128i bytes) {
    const __m256i x = _mm256_cvtepu8_epi16(bytes);
    const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi16(0x7f));
    const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x80)), 8);
    const __m256i bits = _mm256_or_si256(
        sign, _mm256_or_si256(_mm256_slli_epi16(magnitude, 7), _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00))));
    return {_mm512_mul_ps(_mm512_cvtph_ps(bits), _mm512_set1_ps(256.0f))};
  }
  static Vec e5m2(__m128i bytes) { return {_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8))}; }
};

inline Vec in_register(Vec x) {
  asm("" : "+v"(x.v));
  return x;
}
#if defined(__AVX512BF16__)
using Bf16Pairs = Vec::Bf16Pairs;
inline Bf16Pairs in_register(Bf16Pairs x) {
  asm("" : "+v"(x.v));
  return x;
}
// c + a.first * b.first + a.second * b.second in each lane; denormals are taken for zero, in operands and results.
inline Vec fma(Bf16Pairs a, Bf16Pairs b, Vec c) {
  return {_mm512_dpbf16_ps(c.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}
// For each lane of a result: where its number of x is, and its number of y behind the 32 of x.
inline __m512i pair_places(int32_t first) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_add_epi32(_mm512_or_si512(lanes, _mm512_slli_epi32(lanes, 16)),
                          _mm512_set1_epi32((32 << 16) + first * 0x10001));
}
// Pairs of a number of x and the one in the same place of y: of the first sixteen, of the last sixteen.
inline Bf16Pairs first_pairs(Bf16Pairs x, Bf16Pairs y) { return {_mm512_permutex2var_epi16(x.v, pair_places(0), y.v)}; }
inline Bf16Pairs last_pairs(Bf16Pairs x, Bf16Pairs y) { return {_mm512_permutex2var_epi16(x.v, pair_places(16), y.v)}; }
#endif
inline void load_bf16_pairs(const uint16_t *p, Vec *first, Vec *second) {
  const Vec x = in_register(Vec{_mm512_loadu_ps(p)});
  first->v = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x.v), 16));
  second->v = _mm512_and_ps(x.v, _mm512_castsi512_ps(_mm512_set1_epi32(-65536)));
}
inline void join_pairs(Vec *first, Vec *second) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512 a = first->v, b = second->v;
  first->v = _mm512_permutex2var_ps(a, low, b);
  second->v = _mm512_permutex2var_ps(a, _mm512_add_epi32(low, _mm512_set1_epi32(8)), b);
}
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec round(Vec x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Vec pow2(Vec n) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
inline Vec fill_below(Vec x, Vec fill, Vec a, float limit) {
  return {_mm512_mask_mov_ps(x.v, _mm512_cmp_ps_mask(a.v, _mm512_set1_ps(limit), _CMP_LT_OQ), fill.v)};
}
inline Vec fill_from(Vec a, int count, float x) {
  return {_mm512_mask_mov_ps(_mm512_set1_ps(x), static_cast<__mmask16>((1u << count) - 1), a.v)};
}
// The halves added, then as in vec_avx2.h. (sums() has an order of its own.)
inline __m256 halves(Vec a) { return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)); }
inline float sum(Vec a) { return _mm_cvtss_f32(four_sums(halves(a), halves(a), halves(a), halves(a))); }
inline float largest(Vec a) { return largest_lane(_mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1))); }
// Pairs of lanes, then of pairs, within each quarter, then the quarters: a few shuffles for four sums.
inline __m512 pairs(__m512 a, __m512 b) { return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); }
inline __m128 four_sums(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512d ab = _mm512_castps_pd(pairs(a, b)), cd = _mm512_castps_pd(pairs(c, d));
  const __m512 t = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  const __m256 u = _mm256_add_ps(_mm512_castps512_ps256(t), _mm512_extractf32x8_ps(t, 1));
  return _mm_add_ps(_mm256_castps256_ps128(u), _mm256_extractf128_ps(u, 1));
}
template <int n>
inline void sums(const Vec (&a)[n], float *out) {
  store_sums<n>([&](int i, int j, int k, int l) { return four_sums(a[i].v, a[j].v, a[k].v, a[l].v); }, out);
}
inline void transpose(Vec (&a)[16]) {
  const auto low = [](__m512 x, __m512 y) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
  };
  const auto high = [](__m512 x, __m512 y) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
  };
  __m512 t[16];
  for (int i = 0; i < 16; i += 4) {  // four rows in four lanes, of each quarter
    const __m512 x = _mm512_unpacklo_ps(a[i].v, a[i + 1].v), y = _mm512_unpacklo_ps(a[i + 2].v, a[i + 3].v);
    const __m512 z = _mm512_unpackhi_ps(a[i].v, a[i + 1].v), w = _mm512_unpackhi_ps(a[i + 2].v, a[i + 3].v);
    t[i] = low(x, y);
    t[i + 1] = high(x, y);
    t[i + 2] = low(z, w);
    t[i + 3] = high(z, w);
  }
  for (int i = 0; i < 4; ++i) {  // the quarters
    const __m512 x = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x44), y = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x44);
    const __m512 z = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xee), w = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xee);
    a[i].v = _mm512_shuffle_f32x4(x, y, 0x88);
    a[i + 4].v = _mm512_shuffle_f32x4(x, y, 0xdd);
    a[i + 8].v = _mm512_shuffle_f32x4(z, w, 0x88);
    a[i + 12].v = _mm512_shuffle_f32x4(z, w, 0xdd);
  }
}

}  // namespace
}  // namespace mlaverify::cpu
