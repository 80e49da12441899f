// What a call launches on a GPU, for people (`mlaverify plan`), and which kind of GPU a device is. In builds without CUDA both
// functions return UNSUPPORTED.
#pragma once

#include <cstddef>
#include <cstdint>

#include "api/status.h"
#include "rules/config_table.h"
#include "rules/problem.h"

namespace mlaverify {

struct GpuKind {
  rules::Arch arch = rules::Arch::sm_86;
  int32_t sms = 0;  // multiprocessors
};

// Of a CUDA device that is here.
Status gpu_kind(int32_t device, GpuKind *kind);

struct LaunchFacts {
  bool tensor_core;       // else the generic kernel
  const char *why;        // of that choice; static storage
  rules::GpuRow row;      // of the config table or the tune file, that decided
  int32_t rows, keys;     // of a tile
  int64_t row_tiles;      // of all requests
  int32_t blocks;         // of the verify kernel
  int32_t blocks_per_sm;  // that share a multiprocessor
  int32_t threads;        // of a block
  int32_t shared_bytes;   // of a block
  int32_t splits;         // of each request at most; 0: balanced shares, one a block, cut anywhere
  int32_t launches;       // 1, or 2 with the merge of partial results
  std::size_t workspace_bytes;
};

// The GPU need not be present. INVALID_ARGUMENT for an architecture that is no CUDA GPU, sms < 1, and a tune file that is not for it.
Status launch_facts(const GpuKind &gpu, const Problem &p, LaunchFacts *facts);

}  // namespace mlaverify
