#include <cuda_bf16.h>

#include "gpu_kernels.h"

namespace mlaverify::cli {
namespace {

constexpr int kThreads = 512, kBlocksPerSm = 4;
constexpr int kLoads = 4;  // in flight in a thread, of 16 bytes each

__global__ void fill_kernel(__nv_bfloat16 *data, int64_t count, uint32_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;  // an integer hash; any will do
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    data[i] = __float2bfloat16(static_cast<float>(x >> 8) * (2.0f / 16777216.0f) - 1.0f);
  }
}

// Each block reads stretches of kThreads * kLoads chunks of 16 bytes.
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) read_kernel(const uint4 *data, int64_t count, uint32_t *sink) {
  constexpr int64_t kStretch = kThreads * kLoads;
  uint32_t sum = 0;
  for (int64_t at = blockIdx.x * kStretch + threadIdx.x; at < count; at += gridDim.x * kStretch) {
    uint4 x[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t j = at + i * kThreads;
      x[i] = j < count ? __ldcs(data + j) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum += x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;
}

}  // namespace

cudaError_t fill_random_bf16(void *data, int64_t count, uint32_t seed, cudaStream_t stream) {
  fill_kernel<<<1024, kThreads, 0, stream>>>(static_cast<__nv_bfloat16 *>(data), count, seed);
  return cudaGetLastError();
}

cudaError_t read_all(const void *data, int64_t bytes, int sms, void *sink, cudaStream_t stream) {
  read_kernel<<<kBlocksPerSm * sms, kThreads, 0, stream>>>(static_cast<const uint4 *>(data), bytes / 16,
                                                           static_cast<uint32_t *>(sink));
  return cudaGetLastError();
}

}  // namespace mlaverify::cli
