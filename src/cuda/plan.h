// What a call launches on a GPU of a given kind, which need not be present: the kernel, the schedule's parameters, the
// workspace. The backend launches exactly this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "rules/config_table.h"
#include "rules/problem.h"
#include "rules/workspace.h"

namespace mlaverify::cuda {

// What of a GPU a plan depends on.
struct Target {
  rules::Arch arch = rules::Arch::sm_86;
  int32_t sms = 0;
  const KernelSet *kernels = nullptr;  // null: older than sm_80
  rules::GpuRows tuned;                // go before the rows of the config table, but in the batch-invariant mode
};

// The kernels that a GPU of this row of the config table and compute capability (major * 10 + minor) runs; null: none.
const KernelSet *kernels_for(rules::Arch arch, int compute_capability);

// Why no plan is made for a call: sizes that fit no memory, for numbers of requests, rows and tiles have 32 bits; "": there is one.
std::string size_refusal(const Problem &p);

// The kernel for a call: that of the first row of the config table that fits the call and whose kernel can do it. The tensor-core
// kernels want certain types, widths and strides, some of them certain GPUs; the generic one takes what none of them can do.
struct Choice {
  VerifyKernel kernel;
  rules::GpuRow row;  // that decided
  const char *why;    // static storage

  bool tensor_core() const { return row.kernel != rules::GpuKernel::generic; }
};
Choice choose_kernel(const Target &target, const Problem &p);

// Everything about a call but the workspace's address.
struct Plan {
  Choice choice;
  Launch launch;
  int64_t row_tiles_of_all;
  int64_t series;          // of partial results
  const void *combine;     // the combine kernel
  int64_t combine_blocks;  // its blocks; 0: it is not launched
  std::size_t workspace_bytes;
};
Plan make_plan(const Target &target, const Problem &p);

}  // namespace mlaverify::cuda
