// cuBLAS, loaded where it is installed: nothing here depends on it, at run time or when compiled. In a build without CUDA it is never
// there. Failures of a product throw DeviceError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "io/device_memory.h"

namespace mlaverify::io {

class Cublas {
 public:
  Cublas();
  ~Cublas();
  Cublas(const Cublas &) = delete;
  Cublas &operator=(const Cublas &) = delete;

  bool usable() const { return handle_ != nullptr; }
  const std::string &missing() const { return missing_; }  // why it is not usable
  std::string version() const;                             // "cuBLAS 13.1"

  // Where products run from now on. Not for each of them: it takes cuBLAS its time. Once this is set products may be captured.
  void set_stream(const DeviceStream &stream);

  // Of `batch` products: out[b][r][n] = sum over k of weights[b][n][k] * x[b][r][k]; b < batch, r < rows, n < outputs,
  // k < inputs. x and out have strides, in elements, from row to row and from product to product; weights are contiguous.
  struct Product {
    int64_t batch, rows, outputs, inputs;
    const void *weights;
    const void *x;
    int64_t x_row_stride, x_batch_stride;
    void *out;
    int64_t out_row_stride, out_batch_stride;
  };
  enum class Numbers {
    bf16,  // of x, weights and out; sums in f32
    f32,   // all of them, and the products too: no TF32
  };
  // Products with the same sizes, strides and numbers are computed alike. That a row's bits then depend neither on its place nor on the
  // others cuBLAS does not promise.
  void multiply(const Product &product, Numbers numbers) const;

 private:
  template <class F>
  bool load(void *library, const char *name, F **function);

  std::string missing_;
  void *handle_ = nullptr;
  DeviceMemory workspace_;  // of its own cuBLAS would allocate some, which a capture makes part of the graph
  int (*create_)(void **) = nullptr;
  int (*destroy_)(void *) = nullptr;
  int (*set_stream_)(void *, void *) = nullptr;
  int (*set_workspace_)(void *, void *, std::size_t) = nullptr;
  int (*get_version_)(void *, int *) = nullptr;
  int (*gemm_)(void *, int, int, int, int, int, const void *, const void *, int, int, long long, const void *, int, int,
               long long, const void *, void *, int, int, long long, int, int, int) = nullptr;
};

}  // namespace mlaverify::io
