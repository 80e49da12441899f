// The cache as the copy engine of Hopper sees it.
#pragma once

#include "cuda/launch.h"

namespace mlaverify::cuda {

// Describes a 16-bit cache for copies of boxes of `box_keys` keys x 64 numbers, whose rows land swizzled (wgmma.cuh). False where the
// driver cannot or the strides are beyond what it takes: then keys are to be gathered.
bool make_kv_map(const Problem &p, int32_t box_keys, TensorMap *map);

}  // namespace mlaverify::cuda
