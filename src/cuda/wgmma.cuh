// wgmma of Hopper (sm_90a), as the kernel of verify_sm90.cuh uses it: f16 or bf16, f32 accumulators, operands in shared memory
// as blocks of 64 columns: rows of 128 bytes whose 16-byte chunks are swizzled by the row (swizzled<128> of tile.cuh).
//
// Issued by all 128 threads of a warpgroup; accumulators must not be touched between wgmma_commit() and the wait for it. Warp w of
// the group has rows 16 w ... 16 w + 15; register i of n8 block j is where mma_row() and mma_col() say.
#pragma once

#include "cuda/mma.cuh"

namespace mlaverify::cuda {

// Lower half of a matrix descriptor (PTX ISA, "Matrix descriptor format"): start and leading byte offset in units of 16. The upper half is
// the same for all: 8 rows take 1024 bytes, 128-byte swizzle. Addresses n bytes further on: + (n >> 4). (64-bit sums would cost more
// instructions than the small products have time for.)
__device__ __forceinline__ uint32_t wgmma_descriptor(uint32_t address, uint32_t leading) {
  return (address & 0x3ffff) >> 4 | (leading >> 4) << 16;
}
#define MLAVERIFY_UPPER "1073741888"  // 1024 >> 4 | 1 << 30

// Columns along the products (K-major); the leading offset is not used.
__device__ __forceinline__ uint32_t k_major(uint32_t address) { return wgmma_descriptor(address, 16); }

// Rows along the products (MN-major), the next 64 columns `block_bytes` away.
__device__ __forceinline__ uint32_t mn_major(uint32_t address, uint32_t block_bytes) {
  return wgmma_descriptor(address, block_bytes);
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `pending` of the newest groups are in flight.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Behind a wait: what reads or changes these accumulators comes after it. (To the compiler a wait has nothing to do with them.)
template <int n>
__device__ __forceinline__ void wgmma_done(float (&d)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Ahead of wgmma_fence(): operands in these registers are made before it.
template <int n>
__device__ __forceinline__ void wgmma_ready(uint32_t (&a)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

// Lists of asm operands: ten names that begin with the digits d, and eight registers.
#define MLAVERIFY_TEN(d) "%" #d "0, %" #d "1, %" #d "2, %" #d "3, %" #d "4, %" #d "5, %" #d "6, %" #d "7, %" #d "8, %" #d "9, "
#define MLAVERIFY_8(x, i)                                                                                                   \
  "+f"(x[(i)]), "+f"(x[(i) + 1]), "+f"(x[(i) + 2]), "+f"(x[(i) + 3]), "+f"(x[(i) + 4]), "+f"(x[(i) + 5]), "+f"(x[(i) + 6]), \
      "+f"(x[(i) + 7])
#define MLAVERIFY_32(x, i) MLAVERIFY_8(x, i), MLAVERIFY_8(x, (i) + 8), MLAVERIFY_8(x, (i) + 16), MLAVERIFY_8(x, (i) + 24)

template <class T>
struct Wgmma;

// scores: d (+)= a b^T, 64 rows x 64 keys x 16 columns; `first`: without the old d.
// values: d += a b, 64 rows x 256 columns x 16 keys; `a` in registers as mma.sync has it.
#define MLAVERIFY_D128                                                                                                      \
  "{" MLAVERIFY_TEN() MLAVERIFY_TEN(1) MLAVERIFY_TEN(2) MLAVERIFY_TEN(3) MLAVERIFY_TEN(4) MLAVERIFY_TEN(5) MLAVERIFY_TEN(6) \
      MLAVERIFY_TEN(7) MLAVERIFY_TEN(8) MLAVERIFY_TEN(9) MLAVERIFY_TEN(10)                                                  \
          MLAVERIFY_TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127}, "
#define MLAVERIFY_WGMMA(T, TYPES)                                                                       \
  template <>                                                                                           \
  struct Wgmma<T> {                                                                                     \
    static __device__ __forceinline__ void scores(float (&d)[32], uint32_t a, uint32_t b, bool first) { \
      asm volatile(                                                                                     \
          "{.reg .pred p; .reg .b32 upper; .reg .b64 a, b; setp.ne.b32 p, %34, 0;\n"                    \
          "mov.b32 upper, " MLAVERIFY_UPPER                                                             \
          "; mov.b64 a, {%32, upper}; mov.b64 b, {%33, upper};\n"                                       \
          "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPES " {" MLAVERIFY_TEN() MLAVERIFY_TEN(1)     \
              MLAVERIFY_TEN(2) "%30, %31}, a, b, p, 1, 1, 0, 0;}\n"                                     \
          : MLAVERIFY_32(d, 0)                                                                          \
          : "r"(a), "r"(b), "r"(static_cast<int>(!first)));                                             \
    }                                                                                                   \
    static __device__ __forceinline__ void values(float (&d)[128], const uint32_t *a, uint32_t b) {     \
      asm volatile("{.reg .b32 upper; .reg .b64 b; mov.b32 upper, " MLAVERIFY_UPPER                     \
                   "; mov.b64 b, {%132, upper};\n"                                                      \
                   "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPES " " MLAVERIFY_D128              \
                   "{%128, %129, %130, %131}, b, 1, 1, 1, 1;}\n"                                        \
                   : MLAVERIFY_32(d, 0), MLAVERIFY_32(d, 32), MLAVERIFY_32(d, 64), MLAVERIFY_32(d, 96)  \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));                               \
    }                                                                                                   \
  };

MLAVERIFY_WGMMA(Bf16, "bf16.bf16")
MLAVERIFY_WGMMA(F16, "f16.f16")

// The same shapes with fewer rows: d (+)= a b^T, 64 keys or columns x `rows` rows x 16, `a` in registers, b's columns along the products;
// `first`: without the old d.
template <class T, int rows>
struct WgmmaOfRegisters;

#define MLAVERIFY_D16 MLAVERIFY_TEN() "%10, %11, %12, %13, %14, %15"
#define MLAVERIFY_WGMMA_OF_REGISTERS(T, TYPES, ROWS, D, D_OUT, A0, A1, A2, A3, B, P)                                       \
  template <>                                                                                                              \
  struct WgmmaOfRegisters<T, ROWS> {                                                                                       \
    static __device__ __forceinline__ void multiply(float (&d)[ROWS / 2], const uint32_t *a, uint32_t b, bool first) {     \
      asm volatile("{.reg .pred p; .reg .b32 upper; .reg .b64 b; setp.ne.b32 p, " P ", 0; mov.b32 upper, " MLAVERIFY_UPPER \
                   "; mov.b64 b, {" B                                                                                      \
                   ", upper};\n"                                                                                           \
                   "wgmma.mma_async.sync.aligned.m64n" #ROWS "k16.f32." TYPES " {" D "}, {" A0 ", " A1 ", " A2 ", " A3     \
                   "}, b, p, 1, 1, 0;}\n"                                                                                  \
                   : D_OUT                                                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(static_cast<int>(!first)));                   \
    }                                                                                                                      \
  };

MLAVERIFY_WGMMA_OF_REGISTERS(F16, "f16.f16", 16, "%0, %1, %2, %3, %4, %5, %6, %7", MLAVERIFY_8(d, 0), "%8", "%9", "%10", "%11",
                             "%12", "%13")
MLAVERIFY_WGMMA_OF_REGISTERS(Bf16, "bf16.bf16", 16, "%0, %1, %2, %3, %4, %5, %6, %7", MLAVERIFY_8(d, 0), "%8", "%9", "%10",
                             "%11", "%12", "%13")
#define MLAVERIFY_D_OUT MLAVERIFY_8(d, 0), MLAVERIFY_8(d, 8)
MLAVERIFY_WGMMA_OF_REGISTERS(F16, "f16.f16", 32, MLAVERIFY_D16, MLAVERIFY_D_OUT, "%16", "%17", "%18", "%19", "%20", "%21")
MLAVERIFY_WGMMA_OF_REGISTERS(Bf16, "bf16.bf16", 32, MLAVERIFY_D16, MLAVERIFY_D_OUT, "%16", "%17", "%18", "%19", "%20", "%21")
#undef MLAVERIFY_D_OUT
#define MLAVERIFY_D_OUT MLAVERIFY_32(d, 0)
MLAVERIFY_WGMMA_OF_REGISTERS(F16, "f16.f16", 64, MLAVERIFY_TEN() MLAVERIFY_TEN(1) MLAVERIFY_TEN(2) "%30, %31", MLAVERIFY_D_OUT,
                             "%32", "%33", "%34", "%35", "%36", "%37")
#undef MLAVERIFY_D_OUT

#undef MLAVERIFY_D16
#undef MLAVERIFY_WGMMA_OF_REGISTERS
#undef MLAVERIFY_WGMMA
#undef MLAVERIFY_UPPER
#undef MLAVERIFY_D128
#undef MLAVERIFY_32
#undef MLAVERIFY_8
#undef MLAVERIFY_TEN

}  // namespace mlaverify::cuda
