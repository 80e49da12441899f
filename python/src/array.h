// Arrays as Python hands them over, seen as the library's tensors. Nothing is copied.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <vector>

#include "mlaverify/mlaverify.h"

namespace mlaverify_python {

namespace nb = nanobind;

// How a function uses an argument.
enum class Use { input, output };

constexpr mlaverify_dtype kOwnDtype = -1;
constexpr mlaverify_dtype kBytes = -2;                 // plain memory: uint8
constexpr mlaverify_dtype kInt32 = -3, kFloat32 = -4;  // that type, and no bits of it in another

// The number of a dtype by the library's name ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "f8_ds_mla"); None: kOwnDtype. ValueError for
// other names, which begins with `argument`.
mlaverify_dtype dtype_argument(nb::handle name, const char *argument);

// The arrays of one call, and its stream.
class Arrays {
 public:
  // `stream`: a number, an object with `cuda_stream`, `ptr` or `__cuda_stream__`, or None: the current stream of the framework that
  // `array` is of. Only where the array is on a GPU must there be one: ValueError otherwise.
  Arrays(nb::handle stream, nb::handle array);

  void *stream() const { return stream_; }

  // A view of `array`, which must live as long as the view, as these Arrays must; None: an absent tensor. `dtype` says what the bits of
  // an integer array mean. TypeError: no array, or a type that no tensor has; ValueError: memory that cannot be reached or written, a
  // dtype of another width.
  mlaverify_tensor view(nb::handle array, const char *name, Use use = Use::input, mlaverify_dtype dtype = kOwnDtype);

 private:
  void *current_stream(nb::handle array);
  mlaverify_tensor view_of_other(nb::handle array, const char *name, Use use, mlaverify_dtype dtype);

  void *stream_ = nullptr;
  nb::handle described_;  // the array that the stream came from, and DLPack's description of it
  nb::dlpack::dltensor description_;
  std::vector<nb::ndarray<nb::ro>> imports_;  // of arrays that came over __dlpack__
};

}  // namespace mlaverify_python
