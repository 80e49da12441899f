#include "gpu.h"

namespace mlaverify::cli {

StatedGpu stated_gpu(rules::Arch arch) {
  switch (arch) {
    case rules::Arch::sm_80: return {"NVIDIA A100 80GB SXM", "data sheet", 108, {2039e9, 312e12}};
    case rules::Arch::sm_86: return {"NVIDIA A10", "data sheet", 72, {600e9, 125e12}};
    case rules::Arch::sm_90: return {"NVIDIA H200", "measured", 132, {4570e9, 795e12}};
    case rules::Arch::sm_100: return {"NVIDIA B200", "data sheet", 148, {8000e9, 2250e12}};
    case rules::Arch::cpu:
    case rules::Arch::gfx942: break;
  }
  return {"", "", 0, {}};
}

}  // namespace mlaverify::cli
