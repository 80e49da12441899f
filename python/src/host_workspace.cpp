#include <memory>
#include <new>

#include "workspace.h"

namespace mlaverify_python {
namespace {

struct AlignedDelete {
  void operator()(char *p) const { ::operator delete[](p, std::align_val_t{MLAVERIFY_WORKSPACE_ALIGNMENT}); }
};

}  // namespace

void *host_workspace(std::size_t bytes) {
  thread_local std::unique_ptr<char[], AlignedDelete> memory;
  thread_local std::size_t size = 0;
  if (size < bytes) {
    memory.reset();
    size = 0;
    memory.reset(static_cast<char *>(::operator new[](bytes, std::align_val_t{MLAVERIFY_WORKSPACE_ALIGNMENT})));
    size = bytes;
  }
  return memory.get();
}

}  // namespace mlaverify_python
