// The memory that calls work in where the caller gives none: one piece for each GPU stream, one for each host thread, kept for later calls.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "mlaverify/mlaverify.h"

namespace mlaverify_python {

// Whether this build has CUDA support.
bool with_cuda();

// Of the calling thread, aligned as the library wants it; valid until its next call. bad_alloc.
void *host_workspace(std::size_t bytes);

// Whether work on the stream is recorded in a graph instead of executed.
bool is_capturing(void *stream);

// Workspace of a stream of a GPU. Calls use it one after the other on the stream: the object holds a lock, so that the launches of two
// threads do not mix. Not for streams that are being captured: a graph may be replayed on another one. runtime_error where there is no
// memory.
class StreamWorkspace {
 public:
  StreamWorkspace(mlaverify_device device, void *stream, std::size_t bytes);
  void *data() const { return data_; }

 private:
  std::shared_ptr<void> piece_;
  std::unique_lock<std::mutex> lock_;
  void *data_ = nullptr;
};

}  // namespace mlaverify_python
