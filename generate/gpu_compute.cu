// The model on a GPU: each step of a layer a small kernel, each product one of cuBLAS, all on one stream.
#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>

#include "generate/compute.h"
#include "generate/model.h"
#include "io/cublas.h"
#include "io/device_memory.h"

namespace mlaverify::generate {
namespace {

constexpr int kGpu = 0;
constexpr int kThreads = 256;
// Rows of every product: cuBLAS chooses its kernel, and with it the order of sums, by the sizes, so that a row gets the same bits only if
// these never change. Fewer rows are computed with others of no meaning, more in several products.
constexpr int64_t kProductRows = 64;
constexpr int64_t kMostBlocks = 1 << 16;
constexpr std::size_t kMostGraphs = 256;  // some hundred kilobytes each

void demand(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky must not come up again in a later call
  throw io::DeviceError(std::string(what) + ": " + cudaGetErrorString(error));
}

template <class S>
__global__ void step_kernel(S step) {
  for (int64_t row = blockIdx.x; row < step.rows(); row += gridDim.x) {
    for (int32_t column = threadIdx.x; column < step.columns(); column += kThreads) step(row, column);
  }
}

// A block a row: kThreads sums of every kThreads-th square, then those of a warp, then those of the warps.
__global__ void norm_kernel(Norm norm, const float *weight, int64_t width, int64_t rows) {
  constexpr int warps = kThreads / 32;
  __shared__ double sums[warps];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float *x = norm.x + row * norm.x_stride;
    float *out = norm.out + row * norm.out_stride;
    double squares = 0;
    for (int64_t i = threadIdx.x; i < width; i += kThreads) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    for (int lanes = 16; lanes > 0; lanes /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, lanes);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0;
    for (int warp = 0; warp < warps; ++warp) squares += sums[warp];
    const float scale = Norm::scale(squares, width, norm.eps);
    for (int64_t i = threadIdx.x; i < width; i += kThreads) out[i] = Norm::number(x[i], scale, weight[i]);
    __syncthreads();  // the sums are written again for the next row
  }
}

class GpuCompute : public Compute {
 public:
  explicit GpuCompute(const Weights &weights) {
    if (!cublas_.usable()) {
      throw io::DeviceError("cuBLAS, by which text is generated on a GPU, is missing: " + cublas_.missing() +
                            "; the cpu backend needs none");
    }
    cublas_.set_stream(stream_);
    weights.for_each([this](const std::vector<float> &vector) { keep(&vector, vector); },
                     [this](const Matrix &matrix) { keep(&matrix, matrix.widened()); });
  }

  mlaverify_device device() const override { return kGpu; }
  void *stream() const override { return stream_.handle(); }
  void synchronize() const override { stream_.synchronize(); }
  int64_t padded_rows(int64_t rows) const override { return rules::round_up(rows, kProductRows); }

  void multiply(const std::vector<Product> &products, int64_t rows) override {
    for (const Product &p : products) {
      for (int64_t first = 0; first < rows; first += kProductRows) {
        cublas_.multiply({p.matrix->heads(), kProductRows, p.matrix->outputs(), p.matrix->inputs(), copy_of(p.matrix),
                          p.x + first * p.x_stride, p.x_stride, p.x_head_stride, p.out + first * p.out_stride, p.out_stride,
                          p.out_head_stride},
                         io::Cublas::Numbers::f32);
      }
    }
  }

  void run(const Norm &norm, int64_t rows) override {
    norm_kernel<<<blocks(rows), kThreads, 0, cuda_stream()>>>(norm, copy_of(norm.weight),
                                                              static_cast<int64_t>(norm.weight->size()), rows);
    demand(cudaGetLastError(), "norm kernel");
  }

  void run(const Step &step) override {
    std::visit([this](const auto &s) { step_kernel<<<blocks(s.rows()), kThreads, 0, cuda_stream()>>>(s); }, step);
    demand(cudaGetLastError(), "kernel of a layer");
  }

  // The first time as it comes: arrays find their sizes, and kernels are loaded.
  void repeat(const Key &key, const std::function<void()> &enqueue) override {
    const auto found = graphs_.find(key);
    if (found == graphs_.end()) {
      if (graphs_.size() >= kMostGraphs) forget();
      graphs_.emplace(key, nullptr);
      enqueue();
      return;
    }
    if (!found->second) found->second = std::make_unique<io::DeviceGraph>(stream_, enqueue);
    found->second->replay();
  }
  void forget() override {
    synchronize();
    graphs_.clear();
  }

 private:
  static unsigned blocks(int64_t rows) { return static_cast<unsigned>(std::min(rows, kMostBlocks)); }
  cudaStream_t cuda_stream() const { return static_cast<cudaStream_t>(stream_.handle()); }

  void keep(const void *host, const std::vector<float> &numbers) {
    const std::size_t bytes = numbers.size() * sizeof(float);
    io::DeviceMemory memory(bytes, kGpu);
    memory.upload(numbers.data(), bytes);
    copies_.emplace(host, std::move(memory));
  }
  const float *copy_of(const void *host) const { return copies_.at(host).data<float>(); }

  io::DeviceStream stream_{kGpu};
  io::Cublas cublas_;
  std::map<Key, std::unique_ptr<io::DeviceGraph>> graphs_;     // null: of work that has been done once
  std::unordered_map<const void *, io::DeviceMemory> copies_;  // by the address of what they are of
};

}  // namespace

std::unique_ptr<Compute> compute_on_gpu(const Weights &weights) { return std::make_unique<GpuCompute>(weights); }

}  // namespace mlaverify::generate
