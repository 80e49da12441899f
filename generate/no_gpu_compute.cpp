// In builds without CUDA: see gpu_compute.cu.
#include "generate/compute.h"
#include "io/device_memory.h"

namespace mlaverify::generate {

std::unique_ptr<Compute> compute_on_gpu(const Weights & /*weights*/) {
  throw io::DeviceError("this build has no CUDA support");
}

}  // namespace mlaverify::generate
