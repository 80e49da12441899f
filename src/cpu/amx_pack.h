// Operands of AMX's product of bf16 tiles, put together by AVX-512: amx.h says which go where. Behind vec_avx512.h, with AVX512-BF16.
#pragma once

#include "cpu/vec_avx512.h"

namespace mlaverify::cpu {
namespace {

constexpr int32_t kSide = 16;             // rows of a tile; a row has 64 bytes
constexpr int32_t kGroup = 32;            // bf16 numbers in a row of a tile: what a product sums
constexpr int32_t kTile = kSide * kSide;  // 4-byte numbers, or pairs of bf16, of a tile

// 16 rows of `width` numbers as B, width / 32 tiles; a null row is zeros.
inline void pack_rows(const uint16_t *const (&row)[kSide], int32_t width, uint32_t *to) {
  for (int32_t d = 0; d < width; d += kGroup, to += kTile) {
    Vec x[kSide];  // a pair in each lane
#pragma GCC unroll 16
    for (int r = 0; r < kSide; ++r) x[r] = row[r] != nullptr ? Vec{_mm512_loadu_ps(row[r] + d)} : Vec::zero();
    transpose(x);
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) _mm512_storeu_ps(to + i * kSide, x[i].v);
  }
}

// 32 keys of `width` values as B: two tiles for each 32 columns. values(k, column): 32 numbers of key k.
template <class Values>
inline void pack_values(Values values, int32_t width, uint32_t *to) {
  for (int32_t k = 0; k < kGroup; k += 2) {
    uint32_t *pairs = to + k / 2 * kSide;
    for (int32_t c = 0; c < width; c += kGroup, pairs += 2 * kTile) {
      const Bf16Pairs a = values(k, c), b = values(k + 1, c);
      _mm512_storeu_si512(pairs, first_pairs(a, b).v);
      _mm512_storeu_si512(pairs + kTile, last_pairs(a, b).v);
    }
  }
}

// Sets key `k` of a packed group to zeros.
inline void clear_packed_key(int32_t k, int32_t width, uint32_t *group) {
  const __m512i other = _mm512_set1_epi32(k % 2 == 0 ? static_cast<int32_t>(0xffff0000u) : 0xffff);
  uint32_t *pairs = group + k / 2 * kSide;
  for (int32_t c = 0; c < width; c += kSide, pairs += kTile)
    _mm512_storeu_si512(pairs, _mm512_and_si512(_mm512_loadu_si512(pairs), other));
}

// Whether n bf16 numbers, a multiple of 32, are all finite.
inline bool all_finite(const char *row, int32_t n) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 others = 0;
  for (int32_t i = 0; i < n; i += kGroup) {
    const __m512i x = _mm512_loadu_si512(row + 2 * i);
    others |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
  }
  return others == 0;
}

// 32 rounded numbers, pairs of one of x and the one in the same lane of y.
inline __m512i rounded_pairs(Vec x, Vec y) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i places = _mm512_add_epi32(_mm512_or_si512(lanes, _mm512_slli_epi32(lanes, 16)), _mm512_set1_epi32(16 << 16));
  return _mm512_permutexvar_epi16(places, Bf16Pairs::round(x, y).v);
}

}  // namespace
}  // namespace mlaverify::cpu
