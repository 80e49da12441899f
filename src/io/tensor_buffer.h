// A tensor that owns its host memory: contiguous, 64-byte aligned. Used by the command line program, examples and tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "mlaverify/mlaverify.h"
#include "rules/number.h"

namespace mlaverify::io {

class TensorBuffer {
 public:
  TensorBuffer() = default;
  // Contents are uninitialised. Throws std::bad_alloc.
  TensorBuffer(DType dtype, std::vector<int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {
    constexpr std::size_t alignment = 64;
    const std::size_t size = rules::round_up(bytes() + 1, alignment);
    data_.reset(std::aligned_alloc(alignment, size));
    if (!data_) throw std::bad_alloc();
  }

  DType dtype() const { return dtype_; }
  const std::vector<int64_t> &shape() const { return shape_; }
  int64_t size() const {
    int64_t n = 1;
    for (int64_t s : shape_) n *= s;
    return n;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * static_cast<std::size_t>(rules::dtype_bytes(dtype_)); }
  explicit operator bool() const { return data_ != nullptr; }

  template <class T = void>
  T *data() {
    return static_cast<T *>(data_.get());
  }
  template <class T = void>
  const T *data() const {
    return static_cast<const T *>(data_.get());
  }

  // The contiguous view of it for a call; an absent tensor (default-constructed) gives an absent view.
  mlaverify_tensor view() const {
    mlaverify_tensor t = {};
    t.device = MLAVERIFY_HOST;
    if (!data_) return t;
    t.data = data_.get();
    t.dtype = static_cast<mlaverify_dtype>(dtype_);
    t.ndim = static_cast<int32_t>(shape_.size());
    int64_t stride = 1;
    for (std::size_t i = shape_.size(); i-- > 0;) {
      t.shape[i] = shape_[i];
      t.strides[i] = stride;
      stride *= shape_[i];
    }
    return t;
  }

 private:
  struct Free {
    void operator()(void *p) const { std::free(p); }
  };
  DType dtype_ = DType::f32;
  std::vector<int64_t> shape_;
  std::unique_ptr<void, Free> data_;
};

}  // namespace mlaverify::io
