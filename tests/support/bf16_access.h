// What AVX512-BF16 and AMX need beside the conversions of vec_access.h, as plain functions: products of pairs of bf16 numbers, and the operands
// of tile products. A tile: 16 rows of 16 pairs of bf16 numbers.
#pragma once

#include <cstdint>

#include "rules/problem.h"

namespace mlaverify::test {

struct Bf16Access {
  void (*round)(const float *from, uint16_t *to);                                             // 32 numbers
  void (*fp8_to_bf16)(DType type, const void *from, int32_t n, uint16_t *to);                 // n: a multiple of 32
  void (*scaled)(const uint16_t *from, float scale, uint16_t *to);                            // 32 numbers
  void (*pairs)(const uint16_t *x, const uint16_t *y, uint16_t *first, uint16_t *last);       // 32 numbers each
  void (*multiply_add)(const uint16_t *a, const uint16_t *b, const float *c, float *result);  // 16 lanes
  // amx_pack.h
  void (*pack_rows)(const uint16_t *const (&row)[16], int32_t width, uint32_t *to);
  void (*pack_values)(const char *const *keys, int32_t width, uint32_t *to);
  void (*clear_packed_key)(int32_t key, int32_t width, uint32_t *group);
  bool (*all_finite)(const char *row, int32_t n);
  void (*rounded_pairs)(const float *x, const float *y, uint16_t *to);  // 16 numbers each
};

const Bf16Access &bf16_access();

}  // namespace mlaverify::test
