// In builds without CUDA: see gpu.cpp.
#include "gpu.h"
#include "io/device_memory.h"

namespace mlaverify::cli {

GpuInfo gpu_info(int) { throw io::DeviceError("this build has no CUDA support"); }
void replay_first_graph(int) { throw io::DeviceError("this build has no CUDA support"); }
GpuCeilings measure_gpu_ceilings(int) { throw io::DeviceError("this build has no CUDA support"); }

}  // namespace mlaverify::cli
