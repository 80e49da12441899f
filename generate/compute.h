// Where a model's numbers lie and are computed, attention aside: on the host, or on a GPU, with matrix products by cuBLAS. Either way a
// row's results have the same bits whatever rows are computed with it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "generate/layers.h"
#include "generate/matrix.h"
#include "mlaverify/mlaverify.h"

namespace mlaverify::generate {

class Compute {
 public:
  Compute() = default;
  virtual ~Compute() = default;
  Compute(const Compute &) = delete;
  Compute &operator=(const Compute &) = delete;

  virtual mlaverify_device device() const = 0;  // of all arrays that are computed with: MLAVERIFY_HOST, or a CUDA device
  virtual void *stream() const = 0;             // a cudaStream_t; null on the host, where everything has ended when it returns
  virtual void synchronize() const = 0;
  // multiply() may read, and write nonsense to, this many rows of its arrays.
  virtual int64_t padded_rows(int64_t rows) const = 0;

  // The products do not depend on each other. Of the matrices and weights of the model only.
  virtual void multiply(const std::vector<Product> &products, int64_t rows) = 0;
  virtual void run(const Norm &norm, int64_t rows) = 0;
  virtual void run(const Step &step) = 0;

  // Work that is the same whenever `key` is, but for the numbers in its arrays: `enqueue` calls the functions above, and none that
  // allocates or waits where it has been called with that key before. On a GPU it is captured in a graph then, which is replayed from there
  // on.
  using Key = std::array<int64_t, 4>;
  virtual void repeat(const Key &key, const std::function<void()> &enqueue) = 0;
  // Arrays have moved: work that has been captured is captured anew.
  virtual void forget() = 0;
};

struct Weights;

// On at most `threads` >= 1 threads.
std::unique_ptr<Compute> compute_on_host(int threads);

// On CUDA device 0, with copies of all weights. Throws io::DeviceError, also where there is no cuBLAS.
std::unique_ptr<Compute> compute_on_gpu(const Weights &weights);

}  // namespace mlaverify::generate
