// One PTX instruction a function, for what the CUDA headers lack. Instructions that touch shared memory carry a "memory"
// clobber, so that the compiler keeps them in order with ordinary accesses.
#pragma once

#include <cstdint>

namespace mlaverify::cuda::ptx {

// Address of shared memory in the 32-bit shared window.
__device__ __forceinline__ uint32_t shared_address(const void *p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// This thread's lane. Volatile: read again where it is needed, so that nothing derived from it is kept in registers meanwhile.
__device__ __forceinline__ int lane() {
  int lane;
  asm volatile("mov.u32 %0, %laneid;" : "=r"(lane));
  return lane;
}

// The same number, but what is computed from it stays where it is: dozens of addresses kept ready would not fit the registers.
__device__ __forceinline__ uint32_t not_hoisted(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// cp.async.cg: 16 bytes global -> shared, past L1. `valid` false: writes zeros and reads nothing.
__device__ __forceinline__ void cp_async_16(uint32_t to, const void *from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// The same of 4, 8 or 16 bytes, through L1.
template <int bytes>
__device__ __forceinline__ void cp_async(uint32_t to, const void *from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(bytes), "r"(valid ? bytes : 0)
               : "memory");
}

// Waits for all copies of this thread.
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Hardware barrier `id` of a block, over `threads` threads: wait for all, or arrive without waiting.
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Waits for all, and tells whether `x` is true for one of them.
__device__ __forceinline__ bool barrier_or(int id, int threads, bool x) {
  int any;
  asm volatile("{.reg .pred x, any; setp.ne.b32 x, %3, 0; bar.red.or.pred any, %1, %2, x; selp.b32 %0, 1, 0, any;}"
               : "=r"(any)
               : "r"(id), "r"(threads), "r"(static_cast<int>(x))
               : "memory");
  return any != 0;
}
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ldmatrix: four 8x8 matrices of 16-bit elements; lane 8i+j gives the address of row j of matrix i.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The way back: stores four 8x8 matrices (sm_90).
__device__ __forceinline__ void stmatrix_x4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// The same, each matrix transposed on its way.
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

// Zeros if not `valid`. Stays between the asm statements around it, so that not more loads wait in registers than stand together.
__device__ __forceinline__ float4 load_global_16(const float4 *from, bool valid) {
  float4 x;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
      : "l"(from), "r"(static_cast<int>(valid))
      : "memory");
  return x;
}

__device__ __forceinline__ void store_global_16(float4 *to, float a, float b, float c, float d) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

__device__ __forceinline__ void store_shared_16(uint32_t address, uint4 x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

__device__ __forceinline__ float2 load_shared_8(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}

__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

// The larger one of a number in shared memory and `x` takes its place.
__device__ __forceinline__ void shared_max(uint32_t address, float x) {
  // Numbers without a sign are in order as integers, the others in reverse order, and above those if they have none.
  const auto bits = static_cast<int32_t>(__float_as_uint(x));
  if (bits >= 0) {
    asm volatile("red.shared.max.s32 [%0], %1;" ::"r"(address), "r"(bits) : "memory");
  } else {
    asm volatile("red.shared.min.u32 [%0], %1;" ::"r"(address), "r"(bits) : "memory");
  }
}

// 2^x, relative error below 2^-22; 0 for -inf, NaN for NaN.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// True in one lane of a warp, which the compiler then knows to be alone: copy_box() needs no loop over lanes there.
__device__ __forceinline__ bool elect() {
  uint32_t elected;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p;}" : "=r"(elected));
  return elected != 0;
}

// mbarriers (byte counts, boxes and warpgroups: sm_90). A barrier in shared memory completes a phase when `arrivals` arrivals have
// come; phases alternate in parity, the first is 0.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0];}" ::"r"(barrier) : "memory");
}
// Arrives when all earlier cp.async of this thread are complete.
__device__ __forceinline__ void mbarrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and the phase completes only when as many more bytes have been copied.
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;}" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Brings a CUtensorMap near, ahead of its first use.
__device__ __forceinline__ void prefetch_map(const void *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// How the L2 cache is to treat what is copied: as the first to go, or like everything else.
__device__ __forceinline__ unsigned long long cache_policy(bool first_to_go) {
  unsigned long long first, normal;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
  return first_to_go ? first : normal;
}
// Copies `bytes` bytes, a multiple of 16 as both addresses are, to shared memory.
__device__ __forceinline__ void copy_bytes(uint32_t to, const void *from, int bytes, uint32_t barrier,
                                           unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
// Copies a box of a tensor (a CUtensorMap), whose first element is (x, y, z), to shared memory; outside the tensor it is zeros.
__device__ __forceinline__ void copy_box(uint32_t to, const void *map, int32_t x, int32_t y, int32_t z, uint32_t barrier,
                                         unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(policy)
      : "memory");
}
// The same to the same place in the shared memory of each block of the cluster whose bit is set in `blocks`; each one's barrier counts the
// bytes.
__device__ __forceinline__ void copy_box_to(uint32_t blocks, uint32_t to, const void *map, int32_t x, int32_t y, int32_t z,
                                            uint32_t barrier, unsigned long long policy) {
  asm volatile(
      "{.reg .b16 blocks; cvt.u16.u32 blocks, %6;\n"
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4}], [%5], blocks, %7;}" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "r"(blocks), "l"(policy)
      : "memory");
}
// Arrives at the same barrier of block `rank` of the cluster.
__device__ __forceinline__ void mbarrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// All threads of the cluster.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Waits for the phase of parity `parity` to complete.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .pred done;\n"
      "again_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again_%=;}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#else
  int done;
  do {
    asm volatile(
        "{.reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.b32 %0, 1, 0, done;}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
#endif
}
// Orders ordinary accesses to shared memory before those of wgmma.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers a thread of this warpgroup may have from here on.
template <int registers>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Programmatic dependent launch (sm_90): the next kernel may start; wait until the previous one is done and what it wrote is visible.
// What is overlapped is launching, fetching code and setting up shared memory. A verify kernel waits before it reads or writes anything, and
// lets the merge start behind that: so the merge may read inputs at once, and waits before it reads partial results or writes. It lets
// what follows start at once.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace mlaverify::cuda::ptx
