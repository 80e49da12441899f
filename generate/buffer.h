// Memory that a model computes in: of the host, or of a GPU.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>

#include "io/device_memory.h"
#include "mlaverify/mlaverify.h"

namespace mlaverify::generate {

class Buffer {
 public:
  // `device`: MLAVERIFY_HOST, or a CUDA device, >= 0. `moved` is called when addresses that reserve() gave are no longer valid; nullptr:
  // nobody wants to know.
  explicit Buffer(mlaverify_device device, std::function<void()> moved = nullptr) : device_(device), moved_(std::move(moved)) {}

  // Memory for `count` numbers at least, aligned as a workspace must be. New memory is filled with NaN (all bits set), and what lay in the
  // buffer before is lost then. Throws std::bad_alloc, io::DeviceError.
  template <class T>
  T *reserve(int64_t count) {
    grow(static_cast<std::size_t>(count) * sizeof(T));
    return static_cast<T *>(data_);
  }

  // To the buffer's beginning. Has ended when it returns; does not wait for work on a stream.
  void upload(const void *from, std::size_t bytes);

 private:
  struct Free {
    void operator()(void *p) const { std::free(p); }
  };
  void grow(std::size_t bytes);

  mlaverify_device device_;
  std::function<void()> moved_;
  void *data_ = nullptr;
  std::size_t bytes_ = 0;
  std::unique_ptr<void, Free> host_;
  io::DeviceMemory gpu_;
};

// From memory of `device` (as above) to the host's. Has ended when it returns; does not wait for work on a stream.
void copy_to_host(mlaverify_device device, const void *from, void *to, std::size_t bytes);

}  // namespace mlaverify::generate
