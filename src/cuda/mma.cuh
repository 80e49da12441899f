// mma.sync m16n8k16 with f32 accumulators, and the element types it takes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace mlaverify::cuda {

struct Bf16 {
  using Element = __nv_bfloat16;
  static __device__ __forceinline__ float2 unpack(uint32_t x) {
    return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
  }
  // Two floats rounded to nearest, `low` in the lower half.
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&x);
  }
  // d += a * b.
  static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

struct F16 {
  using Element = __half;
  static __device__ __forceinline__ float2 unpack(uint32_t x) { return __half22float2(*reinterpret_cast<const __half2 *>(&x)); }
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    const __half2 x = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&x);
  }
  static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

// Where lane `lane` finds accumulator register r of an m16n8 tile.
__device__ __forceinline__ constexpr int mma_row(int lane, int r) { return lane / 4 + (r / 2) * 8; }
__device__ __forceinline__ constexpr int mma_col(int lane, int r) { return (lane % 4) * 2 + r % 2; }

}  // namespace mlaverify::cuda
