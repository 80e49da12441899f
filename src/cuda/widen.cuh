// FP8 numbers as numbers of a 16-bit type.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace mlaverify::cuda {

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
