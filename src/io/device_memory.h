// Memory, streams and captured graphs of a CUDA device: for the command line program, examples and tests; the library itself
// owns none of them. In a build without CUDA (cuda_built() false) every constructor throws, so that callers need no #if.
// Failures throw DeviceError with the CUDA error's text.
#pragma once

#include <cstddef>
#include <functional>
#include <stdexcept>

#include "io/tensor_buffer.h"
#include "mlaverify/mlaverify.h"

namespace mlaverify::io {

class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

bool cuda_built();

class DeviceMemory {
 public:
  DeviceMemory() = default;
  // Contents are uninitialised. `device`: a CUDA device, >= 0.
  DeviceMemory(std::size_t bytes, int device);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory &&other) noexcept;
  DeviceMemory &operator=(DeviceMemory &&other) noexcept;

  std::size_t bytes() const { return bytes_; }
  template <class T = void>
  T *data() const {
    return static_cast<T *>(data_);
  }

  // Each has ended when it returns. None waits for a DeviceStream: synchronise that first.
  void upload(const void *from, std::size_t bytes, std::size_t offset = 0);
  void download(void *to, std::size_t bytes, std::size_t offset = 0) const;
  void poison();  // all bytes 0xff: NaN in every floating-point type here

 private:
  void *data_ = nullptr;
  std::size_t bytes_ = 0;
  int device_ = 0;
};

// From memory of `device`. As DeviceMemory::download.
void copy_to_host(int device, const void *from, void *to, std::size_t bytes);

// Copies all of `buffer`, into which `view` looks, to the device, and moves `view` to the same place there.
inline DeviceMemory to_device(const TensorBuffer &buffer, mlaverify_tensor *view, int device) {
  DeviceMemory memory(buffer.bytes(), device);
  memory.upload(buffer.data(), buffer.bytes());
  view->data = memory.data<char>() + (static_cast<const char *>(view->data) - buffer.data<char>());
  view->device = device;
  return memory;
}

// A stream that does not wait for the default stream.
class DeviceStream {
 public:
  explicit DeviceStream(int device);
  ~DeviceStream();
  DeviceStream(const DeviceStream &) = delete;
  DeviceStream &operator=(const DeviceStream &) = delete;

  void *handle() const { return stream_; }  // cudaStream_t
  int device() const { return device_; }
  void synchronize() const;  // also reports what failed on the device

  // Seconds that the device takes for what `enqueue` puts on this stream, by its own clock. Returns when it has ended.
  double seconds_of(const std::function<void()> &enqueue) const;

 private:
  void *stream_ = nullptr;
  int device_ = 0;
};

// The time that the device takes for what is put on a stream between start() and stop(), by its own clock; where that is captured, of each
// replay of the graph.
class DeviceStopwatch {
 public:
  explicit DeviceStopwatch(int device);
  ~DeviceStopwatch();
  DeviceStopwatch(DeviceStopwatch &&other) noexcept;
  DeviceStopwatch &operator=(DeviceStopwatch &&) = delete;

  void start(void *stream);  // a cudaStream_t of the device
  void stop(void *stream);
  double seconds() const;  // of the last time; waits for its end

 private:
  void *start_ = nullptr, *stop_ = nullptr;
};

// What `record` puts on the stream, captured (and not run). `stream` must outlive it.
class DeviceGraph {
 public:
  DeviceGraph(const DeviceStream &stream, const std::function<void()> &record);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph &) = delete;
  DeviceGraph &operator=(const DeviceGraph &) = delete;

  void replay() const;  // on the stream; returns at once
  int kernel_nodes() const { return kernel_nodes_; }
  int other_nodes() const { return other_nodes_; }  // copies, fills, host functions, ...

 private:
  const DeviceStream &stream_;
  void *graph_ = nullptr;
  void *executable_ = nullptr;
  int kernel_nodes_ = 0, other_nodes_ = 0;
};

}  // namespace mlaverify::io
