// FP8 numbers as numbers of a 16-bit type.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "rules/problem.h"

namespace mlaverify::cuda {

// Four FP8 numbers as f16, exactly, by two: neighbours are 0, 1 and 2, 3; `alternate`: 0, 2 and 1, 3.
template <DType cache, bool alternate>
__device__ __forceinline__ void widen_two(uint32_t four, uint32_t &first, uint32_t &second) {
  if constexpr (cache == DType::f8_e4m3) {
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b;}"
        : "=r"(first), "=r"(second)
        : "r"(alternate ? __byte_perm(four, 0, 0x3120) : four));
  } else {  // an E5M2 number is the upper half of an f16 one
    first = __byte_perm(four, 0, alternate ? 0x2404 : 0x1404);
    second = __byte_perm(four, 0, alternate ? 0x3414 : 0x3424);
  }
}

// 8 FP8 numbers as 8 numbers of T, exactly.
template <class T>
__device__ __forceinline__ uint4 widen(uint2 from, bool e4m3) {
  uint32_t to[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto two = static_cast<__nv_fp8x2_storage_t>((i < 2 ? from.x : from.y) >> (i % 2 * 16) & 0xffffu);
    const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(two, e4m3 ? __NV_E4M3 : __NV_E5M2);
    const float2 f = __half22float2(__half2(h));
    to[i] = T::pack(f.x, f.y);
  }
  return {to[0], to[1], to[2], to[3]};
}

}  // namespace mlaverify::cuda
