// mlaverify._core: what the package needs of the library. Positional arguments only; the package's functions give them names and
// defaults.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "call.h"
#include "workspace.h"

namespace mlaverify_python {
namespace {

std::string refusal(nb::handle value, const char *name, const char *must) {
  return std::string(name) + ": got " + nb::cast<std::string>(nb::repr(value)) + ", must be " + must;
}

// Another exception than `type` is the value's own, and is passed on.
void take_error(PyObject *type) {
  if (PyErr_ExceptionMatches(type) == 0) throw nb::python_error();
  PyErr_Clear();
}

// An int32_t or int64_t; TypeError for what is no integer, ValueError for one that does not fit.
template <class Integer = int32_t>
Integer integer(nb::handle value, const char *name) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    take_error(PyExc_TypeError);
    throw nb::type_error(refusal(value, name, "an int").c_str());
  }
  using Limits = std::numeric_limits<Integer>;
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || number < Limits::min() || number > Limits::max()) {
    throw nb::value_error(refusal(value, name, sizeof(Integer) == 4 ? "a 32-bit int" : "a 64-bit int").c_str());
  }
  return static_cast<Integer>(number);
}

double real(nb::handle value, const char *name) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number != -1.0 || PyErr_Occurred() == nullptr) return number;
  if (PyErr_ExceptionMatches(PyExc_OverflowError) != 0) {
    PyErr_Clear();
    throw nb::value_error(refusal(value, name, "a 64-bit float").c_str());
  }
  take_error(PyExc_TypeError);
  throw nb::type_error(refusal(value, name, "a float").c_str());
}

bool is_true(nb::handle value, const char *name) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth >= 0) return truth != 0;
  // An array of several numbers: NumPy raises the first, torch the second.
  take_error(PyErr_ExceptionMatches(PyExc_ValueError) != 0 ? PyExc_ValueError : PyExc_RuntimeError);
  throw nb::type_error(refusal(value, name, "a bool").c_str());
}

double scale(nb::handle value, const char *name) {
  const double number = real(value, name);
  if (std::isfinite(number) && std::abs(number) > static_cast<double>(std::numeric_limits<float>::max())) {
    throw nb::value_error(refusal(value, name, "a 32-bit float").c_str());
  }
  return number;
}

// By the name that the library gives it; "auto" leaves the choice to the library.
mlaverify_backend backend_number(nb::handle name) {
  std::string text, known = "auto";
  nb::try_cast(name, text);
  if (text == known) return MLAVERIFY_BACKEND_AUTO;
  for (int32_t i = 0; i < mlaverify_backend_count(); ++i) {
    mlaverify_backend_info info = {};
    info.size = sizeof(info);
    raise_on_error(mlaverify_get_backend_info(i, &info));
    if (text == info.name) return info.backend;
    known += std::string(", ") + info.name;
  }
  throw nb::value_error(("backend: got " + nb::cast<std::string>(nb::repr(name)) + ", must be one of " + known).c_str());
}

// Positional arguments that may be None. Their number is the package's matter.
class Positional {
 public:
  Positional(const nb::args &args, std::size_t count) : args_(args) {
    if (args.size() != count) throw nb::type_error(("takes " + std::to_string(count) + " arguments").c_str());
  }
  nb::handle next() { return args_[at_++]; }

 private:
  const nb::args &args_;
  std::size_t at_ = 0;
};

// From q to stream in the order of CallArguments; one more argument follows.
CallArguments call_arguments(Positional *args) {
  CallArguments c;
  for (nb::handle *array : {&c.q, &c.kv_cache, &c.out, &c.lse, &c.block_table, &c.seq_lens, &c.real_seq_lens, &c.k_scale}) {
    *array = args->next();
  }
  c.v_head_dim = integer(args->next(), "v_head_dim");
  c.qlen = integer(args->next(), "qlen");
  if (const nb::handle page_size = args->next(); !page_size.is_none()) c.page_size = integer(page_size, "page_size");
  c.num_kv_splits = integer(args->next(), "num_kv_splits");
  c.sm_scale = scale(args->next(), "sm_scale");
  if (is_true(args->next(), "batch_invariant")) c.flags |= MLAVERIFY_FLAG_BATCH_INVARIANT;
  if (is_true(args->next(), "checked")) c.flags |= MLAVERIFY_FLAG_CHECKED;
  c.backend = backend_number(args->next());
  c.num_threads = integer(args->next(), "num_threads");
  c.dtype = args->next();
  c.kv_dtype = args->next();
  c.stream = args->next();
  return c;
}
constexpr std::size_t kCallArguments = 20;

std::size_t verify_call(const nb::args &args) {
  Positional all(args, kCallArguments + 1);
  const CallArguments call = call_arguments(&all);
  return verify(call, all.next());
}

std::size_t workspace_size_of(const nb::args &args) {
  Positional all(args, kCallArguments);
  return workspace_size(call_arguments(&all));
}

// In the order of the Triton function.
void decode(const nb::args &args) {
  Positional all(args, 14);
  CallArguments call;
  call.q = all.next();
  call.kv_cache = all.next();
  call.v_buffer = all.next();
  call.out = all.next();
  call.lse = all.next();
  call.block_table = all.next();
  call.seq_lens = all.next();
  call.real_seq_lens = all.next();
  call.qlen = integer(all.next(), "qlen");
  const nb::handle attn_logits = all.next();
  call.num_kv_splits = integer(all.next(), "num_kv_splits");
  call.sm_scale = scale(all.next(), "sm_scale");
  call.page_size = integer(all.next(), "page_size");
  call.k_scale = all.next();
  decode_attention_fwd_verify(call, attn_logits);
}

void warm_up(const nb::args &args) {
  Positional all(args, 11);
  CallArguments call;
  call.q = all.next();
  call.kv_cache = all.next();
  call.out = all.next();
  call.lse = all.next();
  call.block_table = all.next();
  const bool has_real = is_true(all.next(), "has_real");
  std::vector<int32_t> qlens;
  for (const nb::handle qlen : nb::cast<nb::list>(all.next())) qlens.push_back(integer(qlen, "qlens"));
  const nb::handle attn_logits = all.next();
  call.qlen = 1;
  call.sm_scale = scale(all.next(), "sm_scale");
  call.page_size = integer(all.next(), "page_size");
  call.k_scale = all.next();
  warmup(call, has_real, qlens, attn_logits);
}

nb::dict select_config(const nb::args &args) {
  Positional all(args, 5);
  const int32_t batch = integer(all.next(), "batch"), qlen = integer(all.next(), "qlen");
  const int32_t num_heads = integer(all.next(), "num_heads"), device = integer(all.next(), "device");
  const nb::handle arch = all.next();
  mlaverify_verify_config c = {};
  c.size = sizeof(c);
  const std::string name = arch.is_none() ? "" : nb::cast<std::string>(arch);
  raise_on_error(mlaverify_select_verify_config(batch, qlen, num_heads, device, arch.is_none() ? nullptr : name.c_str(), &c));
  nb::dict d;
  d["BLOCK_H"] = c.block_h;
  d["BLOCK_N"] = c.block_n;
  d["SPLIT_ALIGN"] = c.split_align;
  d["MIN_SPLIT_LEN"] = c.min_split_len;
  d["QSPLIT"] = c.q_split;
  d["num_warps"] = c.num_warps;
  d["num_stages"] = c.num_stages;
  d["S2_BLOCK_S"] = c.s2_block_s;
  d["s2_num_warps"] = c.s2_num_warps;
  if (c.matrix_instr_nonkdim != 0) {  // an AMD row
    d["waves_per_eu"] = c.waves_per_eu;
    d["matrix_instr_nonkdim"] = c.matrix_instr_nonkdim;
    d["kpack"] = c.kpack;
  }
  return d;
}

int32_t num_kv_splits(const nb::args &args) {
  Positional all(args, 9);
  const auto max_seq_len = integer<int64_t>(all.next(), "max_seq_len"), batch = integer<int64_t>(all.next(), "batch");
  const int32_t qlen = integer(all.next(), "qlen"), num_heads = integer(all.next(), "num_heads");
  const int32_t sm_count = integer(all.next(), "sm_count"), block_h = integer(all.next(), "block_h");
  const double occupancy = real(all.next(), "occupancy");
  const int32_t min_work = integer(all.next(), "min_work_per_split"), max_splits = integer(all.next(), "max_splits");
  const int32_t n =
      mlaverify_verify_num_kv_splits(max_seq_len, batch, qlen, num_heads, sm_count, block_h, occupancy, min_work, max_splits);
  if (n == 0) raise_on_error(MLAVERIFY_ERR_INVALID_ARGUMENT);
  return n;
}

nb::list backends() {
  nb::list list;
  for (int32_t i = 0; i < mlaverify_backend_count(); ++i) {
    mlaverify_backend_info info = {};
    info.size = sizeof(info);
    raise_on_error(mlaverify_get_backend_info(i, &info));
    list.append(nb::make_tuple(info.name, info.available != 0, info.detail));
  }
  return list;
}

}  // namespace

NB_MODULE(_core, m) {
  m.def("verify", verify_call);
  m.def("workspace_size", workspace_size_of);
  m.def("decode_attention_fwd_verify", decode);
  m.def("warmup", warm_up);
  m.def("select_verify_config", select_config);
  m.def("verify_num_kv_splits", num_kv_splits);
  m.def("backends", backends);
  m.def("with_cuda", with_cuda);
  m.def("version", [] { return mlaverify_version(); });
}

}  // namespace mlaverify_python
