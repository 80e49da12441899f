#include "array.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>

#include "exchange_api.h"

namespace mlaverify_python {
namespace {

using DLTensor = nb::dlpack::dltensor;

[[noreturn]] void type_error(const std::string &text) { throw nb::type_error(text.c_str()); }
[[noreturn]] void value_error(const std::string &text) { throw nb::value_error(text.c_str()); }

// ---- Element types ------------------------------------------------------------------------------------------------

struct ElementType {
  mlaverify_dtype dtype;
  const char *name;        // the library's
  const char *array_name;  // NumPy's, ml_dtypes' and torch's
  uint8_t dlpack_code, bits;
  mlaverify_dtype alone = kOwnDtype;  // asks for this type and nothing else
};

constexpr uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6, kFloat8E4M3FN = 10,
                  kFloat8E5M2 = 12;  // DLPack's codes
constexpr ElementType kTypes[] = {
    {MLAVERIFY_F32, "f32", "float32", kFloat, 32, kFloat32},
    {MLAVERIFY_F16, "f16", "float16", kFloat, 16},
    {MLAVERIFY_BF16, "bf16", "bfloat16", kBfloat, 16},
    {MLAVERIFY_F8_E4M3, "f8_e4m3", "float8_e4m3fn", kFloat8E4M3FN, 8},
    {MLAVERIFY_F8_E5M2, "f8_e5m2", "float8_e5m2", kFloat8E5M2, 8},
    {MLAVERIFY_I32, "i32", "int32", kInt, 32, kInt32},
    {MLAVERIFY_F8_DS_MLA, "f8_ds_mla", nullptr, 0, 8},  // records, which only bytes with that name given can be
};

const ElementType &type_of(mlaverify_dtype dtype) {
  for (const ElementType &t : kTypes) {
    if (t.dtype == dtype) return t;
  }
  return kTypes[0];  // not reached
}

// The dtype of an array whose own is `own` (null: none of the library's, called `own_name`), taken as `wanted`.
mlaverify_dtype taken_as(const char *name, const ElementType *own, const std::string &own_name, mlaverify_dtype wanted) {
  constexpr struct {
    mlaverify_dtype wanted, dtype;
    const char *array_name;
  } kFixed[] = {{kBytes, kBytes, "uint8"}, {kInt32, MLAVERIFY_I32, "int32"}, {kFloat32, MLAVERIFY_F32, "float32"}};
  for (const auto &fixed : kFixed) {
    if (wanted != fixed.wanted) continue;
    if (own_name == fixed.array_name) return fixed.dtype;
    type_error(std::string(name) + ": got " + own_name + ", must be " + fixed.array_name);
  }
  if (wanted == kOwnDtype || (own != nullptr && own->dtype == wanted)) {
    if (own != nullptr) return own->dtype;
    type_error(std::string(name) + ": got " + own_name + ", must be f32, f16, bf16, f8_e4m3 or f8_e5m2" +
               (own_name.compare(0, 4, "uint") == 0 ? " (or say what its bits are: dtype, kv_dtype)" : ""));
  }
  const ElementType &type = type_of(wanted);
  const std::string integer = "int" + std::to_string(type.bits);
  if (own_name != integer && own_name != "u" + integer) {
    value_error(std::string(name) + ": got " + own_name + ", must be " + type.name + " or integers of " +
                std::to_string(type.bits) + " bits where the dtype " + type.name + " is given");
  }
  return wanted;
}

mlaverify_dtype dtype_by_name(const char *name, const std::string &own, mlaverify_dtype wanted) {
  const ElementType *type = nullptr;
  for (const ElementType &t : kTypes) {
    if (t.array_name != nullptr && own == t.array_name) type = &t;
  }
  return taken_as(name, type, own, wanted);
}

mlaverify_dtype dtype_by_code(const char *name, nb::dlpack::dtype own, mlaverify_dtype wanted) {
  for (const ElementType &t : kTypes) {
    if (t.array_name != nullptr && own.code == t.dlpack_code && own.bits == t.bits && own.lanes == 1 &&
        (wanted == kOwnDtype || wanted == t.dtype || wanted == t.alone)) {
      return t.dtype;
    }
  }
  std::string own_name = own.code == kInt       ? "int"
                         : own.code == kUInt    ? "uint"
                         : own.code == kFloat   ? "float"
                         : own.code == kComplex ? "complex"
                         : own.code == kBool    ? "bool of bits "
                                                : "DLPack type " + std::to_string(own.code) + " of bits ";
  own_name += std::to_string(own.bits);
  if (own.lanes != 1) type_error(std::string(name) + ": got vectors as elements, must be numbers");
  return taken_as(name, nullptr, own_name, wanted);
}

// An address or a handle that Python has as a number.
void *pointer(uintptr_t number) {
  return reinterpret_cast<void *>(number);  // NOLINT(performance-no-int-to-ptr): there is no other way
}

// ---- Views --------------------------------------------------------------------------------------------------------

// What follows from DLPack's description of an array.
mlaverify_tensor from_dltensor(const DLTensor &d, const char *name, mlaverify_dtype dtype) {
  mlaverify_tensor t = {};
  t.data = static_cast<char *>(d.data) + d.byte_offset;
  t.dtype = dtype_by_code(name, d.dtype, dtype);
  switch (d.device.device_type) {
    case nb::device::cpu::value:
    case nb::device::cuda_host::value: t.device = MLAVERIFY_HOST; break;
    case nb::device::cuda::value:
    case nb::device::cuda_managed::value: t.device = d.device.device_id; break;
    default:
      value_error(std::string(name) + ": got DLPack device type " + std::to_string(d.device.device_type) +
                  ", must be host memory or a CUDA device");
  }
  t.ndim = d.ndim;  // the library refuses more than a tensor has room for
  int64_t contiguous = 1;
  for (int32_t i = d.ndim; i-- > 0;) {
    if (i >= 4) continue;
    t.shape[i] = d.shape[i];
    if (d.strides != nullptr) {
      t.strides[i] = d.strides[i];
    } else {
      t.strides[i] = contiguous;
      contiguous *= d.shape[i];
    }
  }
  return t;
}

// A class of a module that some code has imported; null: none has.
nb::handle imported_class(const char *module, const char *name) {
  PyObject *modules = PyImport_GetModuleDict();  // borrowed
  PyObject *m = PyDict_GetItemString(modules, module);
  if (m == nullptr) return {};
  PyObject *found = PyObject_GetAttrString(m, name);
  if (found == nullptr) {
    PyErr_Clear();  // a module that is being imported right now
    return {};
  }
  return found;  // the classes asked for are never freed
}

bool is_instance(nb::handle object, nb::handle type) { return type.is_valid() && nb::isinstance(object, type); }

nb::handle numpy_array() {
  static nb::handle type;
  if (!type.is_valid()) type = imported_class("numpy", "ndarray");
  return type;
}

nb::handle torch_tensor() {
  static nb::handle type;
  if (!type.is_valid()) type = imported_class("torch", "Tensor");
  return type;
}

// NumPy's own DLPack knows neither the types of ml_dtypes nor, in older versions, read-only arrays.
mlaverify_tensor from_numpy(nb::handle array, const char *name, Use use, mlaverify_dtype dtype) {
  const nb::object own = array.attr("dtype");
  const auto item_bytes = nb::cast<int64_t>(own.attr("itemsize"));
  const auto own_name = nb::cast<std::string>(own.attr("name"));
  if (!nb::cast<bool>(own.attr("isnative"))) {
    type_error(std::string(name) + ": got numbers in the other byte order, must be in this machine's");
  }
  if (!array.type().is(numpy_array()) && nb::hasattr(array, "mask")) {
    type_error(std::string(name) + ": got an array with a mask, must be without one");
  }
  mlaverify_tensor t = {};
  t.dtype = dtype_by_name(name, own_name, dtype);
  t.device = MLAVERIFY_HOST;
  const nb::object flags = array.attr("flags");
  if (use == Use::output && !nb::cast<bool>(flags.attr("writeable"))) {
    value_error(std::string(name) + ": got a read-only array, must be writeable");
  }
  const auto interface = nb::cast<nb::dict>(array.attr("__array_interface__"));
  t.data = pointer(nb::cast<uintptr_t>(nb::object(interface["data"])[0]));
  const auto shape = nb::cast<nb::tuple>(array.attr("shape")), strides = nb::cast<nb::tuple>(array.attr("strides"));
  t.ndim = static_cast<int32_t>(nb::len(shape));
  for (int32_t i = 0; i < t.ndim && i < 4; ++i) {
    t.shape[i] = nb::cast<int64_t>(shape[static_cast<std::size_t>(i)]);
    const auto bytes = nb::cast<int64_t>(strides[static_cast<std::size_t>(i)]);
    if (bytes % item_bytes != 0) {
      value_error(std::string(name) + ": got a stride of " + std::to_string(bytes) + " bytes, must be whole elements of " +
                  std::to_string(item_bytes));
    }
    t.strides[i] = bytes / item_bytes;
  }
  return t;
}

// The numbers of z.conj().imag are those in memory with the other sign, which DLPack does not say.
void refuse_negative(nb::handle tensor, const char *name) {
  static PyObject *const is_neg = PyUnicode_InternFromString("is_neg");
  PyObject *const arguments[] = {tensor.ptr()};
  const nb::object negative = nb::steal(PyObject_VectorcallMethod(is_neg, arguments, 1, nullptr));
  if (!negative.is_valid()) throw nb::python_error();
  if (negative.is(Py_True)) {
    value_error(std::string(name) + ": got a tensor with the negative bit set, must be without it: call its resolve_neg()");
  }
}

// Versions of torch without the exchange interface, and subclasses of its tensors.
mlaverify_tensor from_torch(nb::handle tensor, const char *name, mlaverify_dtype dtype) {
  mlaverify_tensor t = {};
  const auto own_name = nb::cast<std::string>(nb::str(nb::object(tensor.attr("dtype"))));
  t.dtype = dtype_by_name(name, own_name.substr(own_name.find('.') + 1), dtype);
  const nb::object device = tensor.attr("device");
  const auto device_type = nb::cast<std::string>(device.attr("type"));
  if (device_type != "cpu" && device_type != "cuda") {
    value_error(std::string(name) + ": got a tensor on " + device_type + ", must be on cpu or cuda");
  }
  t.device = device_type == "cpu" ? MLAVERIFY_HOST : nb::cast<int32_t>(device.attr("index"));
  t.data = pointer(nb::cast<uintptr_t>(tensor.attr("data_ptr")()));
  const auto shape = nb::cast<nb::tuple>(tensor.attr("shape")), strides = nb::cast<nb::tuple>(tensor.attr("stride")());
  t.ndim = static_cast<int32_t>(nb::len(shape));
  for (int32_t i = 0; i < t.ndim && i < 4; ++i) {
    t.shape[i] = nb::cast<int64_t>(shape[static_cast<std::size_t>(i)]);
    t.strides[i] = nb::cast<int64_t>(strides[static_cast<std::size_t>(i)]);
  }
  return t;
}

// DLPack's description of an array; TypeError where its framework has none.
DLTensor describe(const ExchangeApi &api, nb::handle array, const char *name) {
  DLTensor d;
  if (api.dltensor_from_py_object_no_sync(array.ptr(), &d) == 0) return d;
  const nb::python_error error;  // takes the exception, whose text may have a C++ stack below the first line
  const auto why = nb::cast<std::string>(nb::str(error.value()));
  type_error(std::string(name) + ": got an array without memory to look at, must be a dense one on a CPU or a GPU: " +
             why.substr(0, why.find('\n')));
}

// ---- Streams ------------------------------------------------------------------------------------------------------

constexpr int32_t kCuda = nb::device::cuda::value, kCudaManaged = nb::device::cuda_managed::value;

// What the array says about itself, which may not be true.
bool on_gpu(nb::handle array, const char *name) {
  if (PyType_Check(array.ptr()) || !nb::hasattr(array, "__dlpack_device__")) return false;
  const nb::object device = array.attr("__dlpack_device__")();
  const bool is_pair = PyTuple_Check(device.ptr()) && nb::len(device) == 2;
  const nb::object number = nb::steal(is_pair ? PyNumber_Index(PyTuple_GetItem(device.ptr(), 0)) : nullptr);
  int overflow = 0;
  const long long type = number.is_valid() ? PyLong_AsLongLongAndOverflow(number.ptr(), &overflow) : -1;
  if (type < 0) {
    PyErr_Clear();
    type_error(std::string(name) + ": got " + nb::cast<std::string>(nb::repr(device)) +
               " from __dlpack_device__, must be a device type and a number");
  }
  return type == kCuda || type == kCudaManaged;
}

// The capsule of an array with DLPack, made for work on `stream` (None: on a CPU). What its __dlpack__ raises is passed on.
nb::object capsule_of(nb::handle array, const nb::object &stream) {
  const nb::object method = array.attr("__dlpack__");
  nb::dict options;
  if (!stream.is_none()) options["stream"] = stream;
  try {
    return method(nb::arg("max_version") = nb::make_tuple(1, 1), **options);
  } catch (nb::python_error &e) {
    if (!e.matches(PyExc_TypeError)) throw;
  }
  return method(**options);  // older than DLPack 1
}

void *given_stream(nb::handle stream) {
  nb::object number;
  if (nb::isinstance<nb::int_>(stream) && !nb::isinstance<nb::bool_>(stream)) {
    number = nb::borrow(stream);
  } else if (nb::hasattr(stream, "cuda_stream")) {  // torch
    number = stream.attr("cuda_stream");
  } else if (nb::hasattr(stream, "__cuda_stream__")) {  // (version, handle)
    number = nb::object(stream.attr("__cuda_stream__")())[1];
  } else if (nb::hasattr(stream, "ptr")) {  // CuPy
    number = stream.attr("ptr");
  }
  uintptr_t value = 0;
  if (!number.is_valid() || !nb::try_cast(number, value)) {
    type_error("stream: got " + nb::cast<std::string>(nb::repr(stream)) +
               ", must be a cudaStream_t as a number, or a stream of torch, CuPy or cuda.core");
  }
  return pointer(value);
}

}  // namespace

mlaverify_dtype dtype_argument(nb::handle name, const char *argument) {
  if (name.is_none()) return kOwnDtype;
  std::string text;
  nb::try_cast(name, text);
  for (const ElementType &t : kTypes) {
    if (t.dtype != MLAVERIFY_I32 && text == t.name) return t.dtype;
  }
  value_error(std::string(argument) + ": got " + nb::cast<std::string>(nb::repr(name)) +
              ", must be None, 'f32', 'f16', 'bf16', 'f8_e4m3', 'f8_e5m2' or 'f8_ds_mla'");
}

// The stream that work on `array` goes to where the caller names none.
void *Arrays::current_stream(nb::handle array) {
  if (const ExchangeApi *api = exchange_api(array)) {
    const DLTensor &d = description_ = describe(*api, array, "q");
    described_ = array;
    if (d.device.device_type != kCuda && d.device.device_type != kCudaManaged) return nullptr;
    void *stream = nullptr;
    if (api->current_work_stream(d.device.device_type, d.device.device_id, &stream) != 0) throw nb::python_error();
    return stream;
  }
  if (is_instance(array, torch_tensor())) {
    if (!nb::cast<bool>(array.attr("is_cuda"))) return nullptr;
    const nb::object current = nb::module_::import_("torch").attr("cuda").attr("current_stream")(array.attr("device"));
    return pointer(nb::cast<uintptr_t>(current.attr("cuda_stream")));
  }
  if (!is_instance(array, numpy_array()) && on_gpu(array, "q")) {
    value_error("stream: is missing, must be given for GPU arrays of a framework that does not tell its current one");
  }
  return nullptr;
}

Arrays::Arrays(nb::handle stream, nb::handle array) {
  stream_ = stream.is_none() ? current_stream(array) : given_stream(stream);
}

mlaverify_tensor Arrays::view(nb::handle array, const char *name, Use use, mlaverify_dtype dtype) {
  if (array.is_none()) return {};
  const ExchangeApi *api = exchange_api(array);
  if (api == nullptr && is_instance(array, numpy_array())) return from_numpy(array, name, use, dtype);
  const bool torch = is_instance(array, torch_tensor());
  if (torch) refuse_negative(array, name);
  if (array.is(described_)) return from_dltensor(description_, name, dtype);
  if (api != nullptr) return from_dltensor(describe(*api, array, name), name, dtype);
  return torch ? from_torch(array, name, dtype) : view_of_other(array, name, use, dtype);
}

// Over the protocol, which has the producer put its own work before what comes on the call's stream.
mlaverify_tensor Arrays::view_of_other(nb::handle array, const char *name, Use use, mlaverify_dtype dtype) {
  nb::object source = nb::borrow(array);
  if (!PyType_Check(array.ptr()) && nb::hasattr(array, "__dlpack__")) {
    nb::object stream = nb::none();
    if (on_gpu(array, name))
      stream = nb::int_(stream_ == nullptr ? 1 : reinterpret_cast<intptr_t>(stream_));  // 1: the legacy stream
    source = capsule_of(array, stream);
    if (!PyCapsule_CheckExact(source.ptr())) source = nb::none();
  }
  nb::ndarray<> writeable;
  nb::ndarray<nb::ro> readable;
  if (source.is_none() || (use == Use::output ? !nb::try_cast(source, writeable) : !nb::try_cast(source, readable))) {
    type_error(std::string(name) + ": got " + nb::cast<std::string>(nb::repr(array.type())) + ", must be an array" +
               (use == Use::output ? " that can be written to" : "") + " with DLPack (__dlpack__)");
  }
  if (use == Use::output) readable = nb::ndarray<nb::ro>(writeable);
  imports_.push_back(readable);
  int64_t shape[4], strides[4];
  const std::size_t ndim = readable.ndim();
  for (std::size_t i = 0; i < ndim && i < 4; ++i) {
    shape[i] = static_cast<int64_t>(readable.shape(i));
    strides[i] = readable.stride(i);
  }
  DLTensor d;
  d.data = const_cast<void *>(readable.data());
  d.device = {readable.device_type(), readable.device_id()};
  d.ndim = static_cast<int32_t>(ndim);
  d.dtype = readable.dtype();
  d.shape = shape;
  d.strides = strides;
  return from_dltensor(d, name, dtype);
}

}  // namespace mlaverify_python
