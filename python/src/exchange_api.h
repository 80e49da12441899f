// DLPack's C exchange interface (DLPack 1.3): a table of functions that the class of an array offers, so that a consumer sees an array
// without a call of Python code. torch has it from 2.10 on.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace mlaverify_python {

// As DLPack lays it out; what is not used here is void.
struct ExchangeApi {
  struct Header {
    uint32_t major, minor;
    Header *previous;
  } header;
  void (*managed_tensor_allocator)();
  void (*managed_tensor_from_py_object_no_sync)();
  void (*managed_tensor_to_py_object_no_sync)();
  // Both return 0, or another number with a Python exception set. What the first fills lives as long as the array.
  int (*dltensor_from_py_object_no_sync)(void *array, nanobind::dlpack::dltensor *out);
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void **stream);
};

// The interface of the class of `array`; null: it has none of its own. (A subclass may see memory differently, so what it inherits does
// not count.)
const ExchangeApi *exchange_api(nanobind::handle array);

}  // namespace mlaverify_python
