// FP8 numbers as numbers of a 16-bit type.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "cuda/mma.cuh"
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

// 8 bf16 numbers as those of T: rounded, and infinite beyond its range.
template <class T>
__device__ __forceinline__ uint32_t from_bf16(uint32_t two) {
  const float2 x = Bf16::unpack(two);
  return T::pack(x.x, x.y);
}
template <>
__device__ __forceinline__ uint32_t from_bf16<Bf16>(uint32_t two) {
  return two;
}
template <class T>
__device__ __forceinline__ uint4 from_bf16(uint4 x) {
  return {from_bf16<T>(x.x), from_bf16<T>(x.y), from_bf16<T>(x.z), from_bf16<T>(x.w)};
}

// Two, or eight, numbers of T times scales, rounded.
template <class T>
__device__ __forceinline__ uint32_t scaled(uint32_t two, float low, float high) {
  const float2 x = T::unpack(two);
  return T::pack(x.x * low, x.y * high);
}

template <class T>
__device__ __forceinline__ uint4 scaled(uint4 eight, float scale) {
  return {scaled<T>(eight.x, scale, scale), scaled<T>(eight.y, scale, scale), scaled<T>(eight.z, scale, scale),
          scaled<T>(eight.w, scale, scale)};
}

}  // namespace mlaverify::cuda
