// The conversions of an instruction set's vector type as plain functions over `width` elements, so that a test needs none of the
// flags that the type is compiled with.
#pragma once

#include <cstdint>

namespace mlaverify::test {

struct VecAccess {
  const char *name;
  int width;
  void (*load_f16)(const uint16_t *, float *);
  void (*load_bf16)(const uint16_t *, float *);
  void (*load_bf16_pairs)(const uint16_t *, float *);  // joined again: two vectors
  void (*load_e4m3)(const uint8_t *, float *);
  void (*load_e5m2)(const uint8_t *, float *);
  void (*store_f16)(const float *, uint16_t *);
  void (*store_bf16)(const float *, uint16_t *);
  float (*sum)(const float *);
  float (*largest)(const float *);
};

template <class Vec>
constexpr VecAccess vec_access(const char *name) {
  return {name,
          Vec::width,
          [](const uint16_t *p, float *x) { Vec::load_f16(p).store(x); },
          [](const uint16_t *p, float *x) { Vec::load_bf16(p).store(x); },
          [](const uint16_t *p, float *x) {
            Vec first, second;
            load_bf16_pairs(p, &first, &second);
            join_pairs(&first, &second);
            first.store(x);
            second.store(x + Vec::width);
          },
          [](const uint8_t *p, float *x) { Vec::load_e4m3(p).store(x); },
          [](const uint8_t *p, float *x) { Vec::load_e5m2(p).store(x); },
          [](const float *x, uint16_t *p) { Vec::load(x).store_f16(p); },
          [](const float *x, uint16_t *p) { Vec::load(x).store_bf16(p); },
          [](const float *x) { return sum(Vec::load(x)); },
          [](const float *x) { return largest(Vec::load(x)); }};
}

const VecAccess &scalar_vec();
const VecAccess &avx2_vec();
const VecAccess &avx512_vec();

}  // namespace mlaverify::test
