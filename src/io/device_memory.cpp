// With CUDA; no_device_memory.cpp stands in for it in builds without.
#include "io/device_memory.h"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>
#include <vector>

namespace mlaverify::io {
namespace {

void demand(cudaError_t error, const std::string &what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky must not come up again in a later call
  throw DeviceError(what + ": " + cudaGetErrorString(error));
}

cudaStream_t as_stream(void *stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(void *event) { return static_cast<cudaEvent_t>(event); }

// In a capture as a node of the graph.
void record(void *event, cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  demand(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing");
  const unsigned flags = capture == cudaStreamCaptureStatusNone ? cudaEventRecordDefault : cudaEventRecordExternal;
  demand(cudaEventRecordWithFlags(as_event(event), stream, flags), "cudaEventRecord");
}

// Makes a device current for a scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    demand(cudaGetDevice(&before_), "cudaGetDevice");
    demand(cudaSetDevice(device), "CUDA device " + std::to_string(device));
  }
  ~CurrentDevice() { cudaSetDevice(before_); }
  CurrentDevice(const CurrentDevice &) = delete;
  CurrentDevice &operator=(const CurrentDevice &) = delete;

 private:
  int before_ = 0;
};

}  // namespace

bool cuda_built() { return true; }

DeviceMemory::DeviceMemory(std::size_t bytes, int device) : bytes_(bytes), device_(device) {
  const CurrentDevice current(device);
  demand(cudaMalloc(&data_, rules::max<std::size_t>(bytes, 1)),
         std::to_string(bytes) + " bytes on CUDA device " + std::to_string(device));
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) cudaFree(data_);
}

DeviceMemory::DeviceMemory(DeviceMemory &&other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), device_(other.device_) {}

DeviceMemory &DeviceMemory::operator=(DeviceMemory &&other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  return *this;
}

void DeviceMemory::upload(const void *from, std::size_t bytes, std::size_t offset) {
  if (bytes == 0) return;
  const CurrentDevice current(device_);
  demand(cudaMemcpy(data<char>() + offset, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
  demand(cudaStreamSynchronize(nullptr), "copy to the device");  // the last of it may still be in a staging buffer
}

void DeviceMemory::download(void *to, std::size_t bytes, std::size_t offset) const {
  copy_to_host(device_, data<char>() + offset, to, bytes);
}

void DeviceMemory::poison() {
  if (bytes_ == 0) return;
  const CurrentDevice current(device_);
  demand(cudaMemset(data_, 0xff, bytes_), "fill on the device");
  demand(cudaStreamSynchronize(nullptr), "fill on the device");
}

void copy_to_host(int device, const void *from, void *to, std::size_t bytes) {
  if (bytes == 0) return;
  const CurrentDevice current(device);
  demand(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy from the device");
}

DeviceStream::DeviceStream(int device) : device_(device) {
  const CurrentDevice current(device);
  cudaStream_t stream = nullptr;
  demand(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  stream_ = stream;
}

DeviceStream::~DeviceStream() { cudaStreamDestroy(as_stream(stream_)); }

void DeviceStream::synchronize() const { demand(cudaStreamSynchronize(as_stream(stream_)), "work on the device"); }

double DeviceStream::seconds_of(const std::function<void()> &enqueue) const {
  const CurrentDevice current(device_);
  DeviceStopwatch watch(device_);
  watch.start(stream_);
  enqueue();
  watch.stop(stream_);
  return watch.seconds();
}

DeviceStopwatch::DeviceStopwatch(int device) {
  const CurrentDevice current(device);
  cudaEvent_t event = nullptr;
  demand(cudaEventCreate(&event), "cudaEventCreate");
  start_ = event;
  if (const cudaError_t error = cudaEventCreate(&event); error != cudaSuccess) {
    cudaEventDestroy(as_event(start_));
    demand(error, "cudaEventCreate");
  }
  stop_ = event;
}

DeviceStopwatch::~DeviceStopwatch() {
  if (start_ != nullptr) cudaEventDestroy(as_event(start_));
  if (stop_ != nullptr) cudaEventDestroy(as_event(stop_));
}

DeviceStopwatch::DeviceStopwatch(DeviceStopwatch &&other) noexcept
    : start_(std::exchange(other.start_, nullptr)), stop_(std::exchange(other.stop_, nullptr)) {}

void DeviceStopwatch::start(void *stream) { record(start_, as_stream(stream)); }
void DeviceStopwatch::stop(void *stream) { record(stop_, as_stream(stream)); }

double DeviceStopwatch::seconds() const {
  float ms = 0;
  demand(cudaEventSynchronize(as_event(stop_)), "work on the device");
  demand(cudaEventElapsedTime(&ms, as_event(start_), as_event(stop_)), "cudaEventElapsedTime");
  return static_cast<double>(ms) * 1e-3;
}

DeviceGraph::DeviceGraph(const DeviceStream &stream, const std::function<void()> &record) : stream_(stream) {
  const CurrentDevice current(stream.device());
  const cudaStream_t s = as_stream(stream.handle());
  cudaGraph_t graph = nullptr;
  demand(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  try {
    record();
  } catch (...) {
    if (cudaStreamEndCapture(s, &graph) == cudaSuccess) cudaGraphDestroy(graph);
    throw;
  }
  demand(cudaStreamEndCapture(s, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  try {
    std::size_t count = 0;
    demand(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
    std::vector<cudaGraphNode_t> nodes(count);
    demand(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes");
    for (const cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type;
      demand(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
      ++(type == cudaGraphNodeTypeKernel ? kernel_nodes_ : other_nodes_);
    }
    demand(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  } catch (...) {
    cudaGraphDestroy(graph);
    throw;
  }
  graph_ = graph;
  executable_ = executable;
}

DeviceGraph::~DeviceGraph() {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
  cudaGraphDestroy(static_cast<cudaGraph_t>(graph_));
}

void DeviceGraph::replay() const {
  demand(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), as_stream(stream_.handle())), "cudaGraphLaunch");
}

}  // namespace mlaverify::io
