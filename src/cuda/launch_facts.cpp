#include "backends/launch_facts.h"

#include <string>

#include "cuda/plan.h"
#include "cuda/tune_file.h"

namespace mlaverify {
namespace {

const cuda::KernelSet *kernels_for(rules::Arch arch) {
  switch (arch) {
    case rules::Arch::sm_80: return cuda::kernels_for(arch, 80);
    case rules::Arch::sm_86: return cuda::kernels_for(arch, 86);
    case rules::Arch::sm_90: return cuda::kernels_for(arch, 90);
    case rules::Arch::sm_100: return cuda::kernels_for(arch, 100);
    case rules::Arch::cpu:
    case rules::Arch::gfx942: break;
  }
  return nullptr;
}

}  // namespace

Status launch_facts(const GpuKind &gpu, const Problem &p, LaunchFacts *facts) {
  const cuda::TuneSetting &tune = cuda::tune_setting();
  const cuda::Target target = {gpu.arch, gpu.sms, kernels_for(gpu.arch), tune.rows()};
  if (target.kernels == nullptr) {
    return {MLAVERIFY_ERR_INVALID_ARGUMENT,
            "arch: got " + std::string(rules::arch_name(gpu.arch)) + ", must be that of a CUDA GPU"};
  }
  if (gpu.sms < 1) return {MLAVERIFY_ERR_INVALID_ARGUMENT, "sms: got " + std::to_string(gpu.sms) + ", must be >= 1"};
  if (!tune.status.ok()) return tune.status;
  if (tune.set) {
    if (Status s = check_card(tune.file, gpu.arch, gpu.sms); !s.ok()) return s;
  }
  if (const std::string why = cuda::size_refusal(p); !why.empty()) return {MLAVERIFY_ERR_INVALID_ARGUMENT, "cuda: " + why};
  const cuda::Plan plan = cuda::make_plan(target, p);
  if (plan.workspace_bytes == SIZE_MAX) return {MLAVERIFY_ERR_INVALID_ARGUMENT, "cuda: the workspace fits no memory"};
  const cuda::VerifyKernel &kernel = plan.choice.kernel;
  facts->tensor_core = plan.choice.tensor_core();
  facts->why = plan.choice.why;
  facts->row = plan.choice.row;
  facts->rows = kernel.rows;
  facts->keys = kernel.keys;
  facts->row_tiles = plan.row_tiles_of_all;
  facts->blocks = plan.launch.blocks;
  facts->blocks_per_sm = kernel.blocks_per_sm;
  facts->threads = kernel.threads;
  facts->shared_bytes = kernel.shared_bytes;
  facts->splits = plan.launch.splits;
  facts->launches = plan.combine_blocks > 0 ? 2 : 1;
  facts->workspace_bytes = plan.workspace_bytes;
  return {};
}

}  // namespace mlaverify
