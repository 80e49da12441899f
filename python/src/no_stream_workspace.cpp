// Builds without CUDA: the library refuses GPU tensors before anything asks for workspace on a stream.
#include <stdexcept>

#include "workspace.h"

namespace mlaverify_python {

bool with_cuda() { return false; }

bool is_capturing(void *) { return false; }

StreamWorkspace::StreamWorkspace(mlaverify_device, void *, std::size_t) {
  throw std::runtime_error("workspace: this build has no CUDA support");
}

}  // namespace mlaverify_python
