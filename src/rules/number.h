// The 16- and 8-bit number formats: exact conversion to float, and from float rounding to nearest, ties to even. Bit-level and
// constexpr, so that no compiler flag, processor mode (flush-to-zero included) or library changes a value.
#pragma once

#include "rules/hd.h"
#include "rules/problem.h"

namespace mlaverify::rules {

MLAVERIFY_HD float float_from_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
MLAVERIFY_HD uint32_t bits_from_float(float x) { return __builtin_bit_cast(uint32_t, x); }

// Of an element; records are arrays of bytes.
MLAVERIFY_HD int32_t dtype_bytes(DType t) {
  return t == DType::f32 || t == DType::i32 ? 4 : t == DType::f16 || t == DType::bf16 ? 2 : 1;
}
// FP8 with one scale.
MLAVERIFY_HD bool is_fp8(DType t) { return t == DType::f8_e4m3 || t == DType::f8_e5m2; }

MLAVERIFY_HD float bf16_to_float(uint16_t x) { return float_from_bits(static_cast<uint32_t>(x) << 16); }

MLAVERIFY_HD uint16_t float_to_bf16(float x) {
  const uint32_t u = bits_from_float(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);  // NaN stays NaN
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// A small float with `E` exponent and `M` mantissa bits, whose top exponent is infinity and NaN (IEEE) unless `finite`, where
// only the all-ones pattern is NaN. `x` holds it in the low 1 + E + M bits.
template <int E, int M, bool finite>
MLAVERIFY_HD float small_to_float(uint32_t x) {
  constexpr uint32_t top = (1u << E) - 1;
  constexpr int bias = (1 << (E - 1)) - 1;
  const uint32_t sign = (x >> (E + M)) << 31;
  uint32_t e = (x >> M) & top;
  uint32_t m = x & ((1u << M) - 1);
  if (finite ? (e == top && m == (1u << M) - 1) : e == top) {
    return float_from_bits(sign | 0x7f800000u | (finite ? 0x400000u : m << (23 - M)) | (!finite && m != 0 ? 0x400000u : 0u));
  }
  if (e == 0) {
    if (m == 0) return float_from_bits(sign);
    int shift = 0;
    while ((m & (1u << M)) == 0) {
      m <<= 1;
      ++shift;
    }
    return float_from_bits(sign | static_cast<uint32_t>(127 - bias + 1 - shift) << 23 | (m & ((1u << M) - 1)) << (23 - M));
  }
  return float_from_bits(sign | static_cast<uint32_t>(static_cast<int>(e) - bias + 127) << 23 | m << (23 - M));
}

// Rounds to nearest, ties to even. Beyond the largest finite value: infinity for IEEE formats, unless `finite`, which
// saturates.
template <int E, int M, bool finite>
MLAVERIFY_HD uint32_t float_to_small(float x) {
  constexpr uint32_t top = (1u << E) - 1;
  constexpr int bias = (1 << (E - 1)) - 1;
  constexpr uint32_t largest = finite ? (top << M | ((1u << M) - 2)) : (top << M) - 1;
  const uint32_t u = bits_from_float(x);
  const uint32_t sign = (u >> 31) << (E + M);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return sign | top << M | (finite ? (1u << M) - 1 : 1u << (M - 1));
  const int e = static_cast<int>(a >> 23) - 127;
  const uint32_t m = (a & 0x7fffffu) | 0x800000u;
  // The mantissa shifted right so that the last kept bit is worth one unit in the last place; more below the normal range.
  const int drop = 23 - M + (e < 1 - bias ? 1 - bias - e : 0);
  if (drop > 25 || (a >> 23) == 0) return sign;  // below half of the smallest subnormal (float subnormals lie far below)
  const uint32_t kept = m >> drop;
  const uint32_t rest = m & ((1u << drop) - 1);
  const uint32_t half = 1u << (drop - 1);
  const uint32_t rounded = kept + (rest > half || (rest == half && (kept & 1u)) ? 1 : 0);
  const uint32_t r = e < 1 - bias ? rounded : (static_cast<uint32_t>(e + bias - 1) << M) + rounded;
  if (a == 0x7f800000u || e > bias + 1 || r > largest) return sign | (finite ? largest : top << M);
  return sign | r;
}

MLAVERIFY_HD float f16_to_float(uint16_t x) { return small_to_float<5, 10, false>(x); }
MLAVERIFY_HD uint16_t float_to_f16(float x) { return static_cast<uint16_t>(float_to_small<5, 10, false>(x)); }
MLAVERIFY_HD float e4m3_to_float(uint8_t x) { return small_to_float<4, 3, true>(x); }
MLAVERIFY_HD uint8_t float_to_e4m3(float x) { return static_cast<uint8_t>(float_to_small<4, 3, true>(x)); }
MLAVERIFY_HD float e5m2_to_float(uint8_t x) { return small_to_float<5, 2, false>(x); }
MLAVERIFY_HD uint8_t float_to_e5m2(float x) { return static_cast<uint8_t>(float_to_small<5, 2, false>(x)); }

// Element `i` of an array of floating-point type `t`, as float.
MLAVERIFY_HD float load_float(DType t, const void *data, int64_t i) {
  switch (t) {
    case DType::f32: return static_cast<const float *>(data)[i];
    case DType::f16: return f16_to_float(static_cast<const uint16_t *>(data)[i]);
    case DType::bf16: return bf16_to_float(static_cast<const uint16_t *>(data)[i]);
    case DType::f8_e4m3: return e4m3_to_float(static_cast<const uint8_t *>(data)[i]);
    case DType::f8_e5m2: return e5m2_to_float(static_cast<const uint8_t *>(data)[i]);
    case DType::i32:
    case DType::f8_ds_mla: break;
  }
  return float_from_bits(0x7fc00000u);
}

MLAVERIFY_HD void store_float(DType t, void *data, int64_t i, float x) {
  switch (t) {
    case DType::f32: static_cast<float *>(data)[i] = x; break;
    case DType::f16: static_cast<uint16_t *>(data)[i] = float_to_f16(x); break;
    case DType::bf16: static_cast<uint16_t *>(data)[i] = float_to_bf16(x); break;
    case DType::f8_e4m3: static_cast<uint8_t *>(data)[i] = float_to_e4m3(x); break;
    case DType::f8_e5m2: static_cast<uint8_t *>(data)[i] = float_to_e5m2(x); break;
    case DType::i32:
    case DType::f8_ds_mla: break;
  }
}

static_assert(bf16_to_float(float_to_bf16(1.0f)) == 1.0f && float_to_bf16(1.00390625f) == 0x3f80 &&
              float_to_bf16(1.01171875f) == 0x3f82);
static_assert(f16_to_float(0x3c00) == 1.0f && f16_to_float(0x0001) == 5.9604644775390625e-8f &&
              f16_to_float(0x7bff) == 65504.0f);
static_assert(float_to_f16(65519.0f) == 0x7bff && float_to_f16(65520.0f) == 0x7c00 &&
              float_to_f16(2.98023223876953125e-8f) == 0);
static_assert(e4m3_to_float(0x7e) == 448.0f && e4m3_to_float(0x01) == 0.001953125f && float_to_e4m3(1e9f) == 0x7e);
static_assert(e5m2_to_float(0x7b) == 57344.0f && e5m2_to_float(0x01) == 1.52587890625e-5f);

}  // namespace mlaverify::rules
