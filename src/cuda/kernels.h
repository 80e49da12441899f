// The compiled kernels: one set per architecture (kernels.cu, compiled once for each), from which the backend picks.
#pragma once

#include <vector>

#include "rules/config_table.h"
#include "rules/hd.h"
#include "rules/problem.h"

namespace mlaverify::cuda {

// A kernel over row tiles; takes a Launch.
struct VerifyKernel {
  int32_t rows, keys;  // of a tile
  int32_t threads, blocks_per_sm;
  int32_t shared_bytes;  // of a block
  const void *function;
  bool copies_boxes = false;  // wants Launch::kv_map where pages allow it
  bool f16_parts = false;     // writes partial results in f16, but in the batch-invariant mode
};

// A tensor-core kernel and what it is compiled for.
struct TensorKernel {
  DType type;  // of q and out, and of a 16-bit cache
  int32_t qk_dim, v_dim;
  VerifyKernel kernel;
  bool records = false;  // for a cache of them, and no other
};

// Tile of the generic kernel.
constexpr int32_t kGenericRows = 8, kGenericKeys = 16;
constexpr int32_t generic_shared_bytes(int32_t qk_dim) {
  return 4 * (kGenericRows * qk_dim + kGenericKeys * (qk_dim + 1) + kGenericRows * kGenericKeys + 3 * kGenericRows);
}

// The combine kernel: slices of the parts of a row; threads of a block, a warp a slice; blocks for each multiprocessor, as many as have room
// there at a time. (In the batch-invariant mode only two have: the third begins when one of them ends.)
constexpr int32_t kCombineSlices = rules::gpu_config().s2_num_warps;
constexpr int32_t kCombineThreads = 32 * kCombineSlices;
MLAVERIFY_HD int32_t combine_blocks_per_sm(bool f16_parts) { return f16_parts ? 2 : 3; }
static_assert(rules::gpu_config().s2_block_s == kCombineThreads);

// Shares of a call at most: more than any GPU has room for.
constexpr int32_t kMaxShares = 512;

struct KernelSet {
  std::vector<TensorKernel> tensor;
  VerifyKernel generic;  // shared_bytes 0: generic_shared_bytes() of the width
  // Of parts in f32, of parts in f16, and of chunks in the batch-invariant mode; take a Launch.
  const void *combine, *combine_f16, *combine_chunks;
};

// The set of compiled code `arch`: 80, 86 or 90.
template <int arch>
const KernelSet &kernel_set();

// Tensor-core kernels of compute capability 9.0 alone, to be preferred there: for a cache of the type of q, and for one of FP8 or of
// records.
const std::vector<TensorKernel> &hopper_kernels();
const std::vector<TensorKernel> &hopper_fp8_kernels(DType cache);

}  // namespace mlaverify::cuda
