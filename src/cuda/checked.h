// The checked mode: lengths and page ids of a call whose tensors are in device memory.
#pragma once

#include <cuda_runtime_api.h>

#include "api/status.h"
#include "rules/problem.h"

namespace mlaverify::cuda {

// What check_values() says of copies in host memory. Waits for the stream; UNSUPPORTED where it is being captured.
Status check_device_values(const Problem &problem, cudaStream_t stream);

}  // namespace mlaverify::cuda
