// The two kernels behind the measured ceilings of a GPU (gpu_kernels.cu).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace mlaverify::cli {

// Fills `count` bf16 numbers with uniform random values in [-1, 1): products of random data take the power that real ones do.
cudaError_t fill_random_bf16(void *data, int64_t count, uint32_t seed, cudaStream_t stream);

// Reads `bytes` bytes (a multiple of 16) once. Something is written to `sink` only so that the reads cannot be left out.
cudaError_t read_all(const void *data, int64_t bytes, int sms, void *sink, cudaStream_t stream);

}  // namespace mlaverify::cli
