#include "call.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "fork.h"
#include "workspace.h"

namespace mlaverify_python {
namespace {

using Args = mlaverify_verify_args;
constexpr std::size_t kAlignment = MLAVERIFY_WORKSPACE_ALIGNMENT;

int32_t page_size_of(const mlaverify_tensor &kv_cache) {
  if (kv_cache.ndim != 4) {
    throw nb::value_error(
        ("page_size: is missing, must be given where kv_cache has not 4 dimensions (got " + std::to_string(kv_cache.ndim) + ")")
            .c_str());
  }
  if (kv_cache.shape[1] <= std::numeric_limits<int32_t>::max()) return static_cast<int32_t>(kv_cache.shape[1]);
  throw nb::value_error(
      ("kv_cache: got " + std::to_string(kv_cache.shape[1]) + " tokens per page, must be below 2^31").c_str());
}

// The size of the last dimension.
int32_t width(const mlaverify_tensor &t, const char *name, const char *must) {
  if (t.ndim < 1 || t.ndim > 4) {
    const std::string rank = t.ndim == 0 && t.data == nullptr ? ": is missing" : ": got rank " + std::to_string(t.ndim);
    throw nb::value_error((name + rank + must).c_str());
  }
  const int64_t size = t.shape[t.ndim - 1];
  if (size <= std::numeric_limits<int32_t>::max()) return static_cast<int32_t>(size);
  throw nb::value_error((std::string(name) + ": got width " + std::to_string(size) + must).c_str());
}

int32_t width_of_values(const mlaverify_tensor &v, const mlaverify_tensor &k) {
  constexpr const char *kMust = ", must be k_buffer[..., :Lv]";
  const int32_t size = width(v, "v_buffer", kMust);
  if (v.dtype != k.dtype || v.device != k.device || (v.data != k.data && k.shape[0] != 0)) {
    throw nb::value_error((std::string("v_buffer: got other memory") + kMust).c_str());
  }
  return size;
}

// All bytes set, padding included: arguments are compared as bytes.
struct Prepared {
  Args args;
  Arrays arrays;

  explicit Prepared(const CallArguments &c) : arrays(c.stream, c.q) {
    std::memset(&args, 0, sizeof(args));
    args.size = sizeof(args);
    const mlaverify_dtype dtype = dtype_argument(c.dtype, "dtype"), kv_dtype = dtype_argument(c.kv_dtype, "kv_dtype");
    args.q = arrays.view(c.q, "q", Use::input, dtype);
    args.kv_cache = arrays.view(c.kv_cache, "kv_cache", Use::input, kv_dtype);
    args.out = arrays.view(c.out, "out", Use::output, dtype);
    args.lse = arrays.view(c.lse, "lse", Use::output, kFloat32);
    args.block_table = arrays.view(c.block_table, "block_table", Use::input, kInt32);
    args.seq_lens = arrays.view(c.seq_lens, "seq_lens", Use::input, kInt32);
    args.real_seq_lens = arrays.view(c.real_seq_lens, "real_seq_lens", Use::input, kInt32);
    args.k_scale = arrays.view(c.k_scale, "k_scale", Use::input, kFloat32);
    if (c.v_head_dim) {
      args.v_head_dim = *c.v_head_dim;
    } else if (c.v_buffer.is_valid()) {
      args.v_head_dim = width_of_values(arrays.view(c.v_buffer, "v_buffer", Use::input, kv_dtype), args.kv_cache);
    } else {
      args.v_head_dim = width(args.out, "out", ", must be [B*qlen, H, Lv]");
    }
    args.qlen = c.qlen;
    args.page_size = c.page_size ? *c.page_size : page_size_of(args.kv_cache);
    args.num_kv_splits = c.num_kv_splits;
    args.sm_scale = static_cast<float>(c.sm_scale);
    args.flags = c.flags;
    args.backend = c.backend;
    args.num_threads = lost_in_fork() && c.num_threads >= 0 ? 1 : c.num_threads;
    args.stream = arrays.stream();
  }
};

constexpr mlaverify_tensor Args::*kTensors[] = {&Args::q,           &Args::kv_cache, &Args::out,           &Args::lse,
                                                &Args::block_table, &Args::seq_lens, &Args::real_seq_lens, &Args::k_scale};

// The library's answer, kept for the calls that differ from the last one in nothing that it depends on: a model's layers make the same
// call many times. Addresses count by their alignment.
std::size_t bytes_needed(const Args &args) {
  thread_local Args known;
  thread_local std::size_t bytes = 0;
  thread_local bool is_known = false;
  Args key;
  std::memcpy(&key, &args, sizeof(key));
  for (const auto tensor : kTensors) {
    void *&data = (key.*tensor).data;
    // (An address made of a number, which nothing follows.)
    if (data != nullptr)
      data = reinterpret_cast<void *>(reinterpret_cast<uintptr_t>(data) % kAlignment + kAlignment);  // NOLINT
  }
  key.sm_scale = 0;
  key.stream = nullptr;
  if (!is_known || std::memcmp(&key, &known, sizeof(key)) != 0) {  // NOLINT(bugprone-suspicious-memory-comparison)
    is_known = false;
    raise_on_error(mlaverify_workspace_size(&args, &bytes));
    std::memcpy(&known, &key, sizeof(key));
    is_known = true;
  }
  return bytes;
}

struct Memory {
  char *data = nullptr;
  std::size_t bytes = 0;
};

// The part of a piece of memory from the first aligned address on.
Memory aligned(const Memory &m) {
  const std::size_t skip = (kAlignment - reinterpret_cast<uintptr_t>(m.data) % kAlignment) % kAlignment;
  return m.bytes > skip ? Memory{m.data + skip, m.bytes - skip} : Memory{};
}

bool is_contiguous(const mlaverify_tensor &t) {
  uint64_t expected = 1;  // (of an empty array it may overflow)
  for (int32_t i = t.ndim; i-- > 0;) {
    if (i >= 4 || (t.shape[i] > 1 && static_cast<uint64_t>(t.strides[i]) != expected)) return false;
    expected *= static_cast<uint64_t>(t.shape[i]);
  }
  return true;
}

// What an array of elements of `element_bytes` covers: none where it is not contiguous. ValueError where it is not where q is.
Memory memory_of(const mlaverify_tensor &t, const char *name, std::size_t element_bytes, const Args &args) {
  if (t.device != args.q.device) {
    const std::string text =
        ": got device " + std::to_string(t.device) + ", must be that of q, " + std::to_string(args.q.device);
    throw nb::value_error((name + text).c_str());
  }
  if (!is_contiguous(t)) return {};
  std::size_t elements = 1;
  for (int32_t i = 0; i < t.ndim; ++i) elements *= static_cast<std::size_t>(t.shape[i]);
  return {static_cast<char *>(t.data), elements * element_bytes};
}

Memory logits_memory(Prepared &prepared, nb::handle attn_logits) {
  if (attn_logits.is_none()) return {};
  const mlaverify_tensor logits = prepared.arrays.view(attn_logits, "attn_logits", Use::output, kFloat32);
  return aligned(memory_of(logits, "attn_logits", sizeof(float), prepared.args));
}

void run_in(Args &args, void *workspace, std::size_t bytes) {
  args.workspace = workspace;
  args.workspace_bytes = bytes;
  if (args.q.device == MLAVERIFY_HOST) threads_started();
  mlaverify_status status;
  {
    const nb::gil_scoped_release release;
    status = mlaverify_decode_attention_fwd_verify(&args);
  }
  raise_on_error(status);
}

// In the memory that is kept for the thread or the stream, which is not being captured.
void run_in_kept(Args &args, std::size_t bytes) {
  if (args.q.device == MLAVERIFY_HOST) {
    run_in(args, host_workspace(bytes), bytes);
    return;
  }
  mlaverify_status status;
  {
    const nb::gil_scoped_release release;  // before the lock, whose holder may be waiting for the GIL
    const StreamWorkspace workspace(args.q.device, args.stream, bytes);
    args.workspace = workspace.data();
    args.workspace_bytes = bytes;
    status = mlaverify_decode_attention_fwd_verify(&args);
  }
  raise_on_error(status);
}

bool captured(const Args &args) { return args.q.device != MLAVERIFY_HOST && is_capturing(args.stream); }

}  // namespace

void raise_on_error(mlaverify_status status) {
  if (status == MLAVERIFY_OK) return;
  PyObject *type = PyExc_RuntimeError;
  if (status == MLAVERIFY_ERR_INVALID_ARGUMENT || status == MLAVERIFY_ERR_INVALID_VALUE || status == MLAVERIFY_ERR_WORKSPACE) {
    type = PyExc_ValueError;
  }
  if (status == MLAVERIFY_ERR_UNSUPPORTED) type = PyExc_NotImplementedError;
  PyErr_SetString(type, mlaverify_last_error());
  throw nb::python_error();
}

std::size_t workspace_size(const CallArguments &call) {
  const Prepared prepared(call);
  std::size_t bytes = 0;
  raise_on_error(mlaverify_workspace_size(&prepared.args, &bytes));
  return bytes;
}

std::size_t verify(const CallArguments &call, nb::handle workspace) {
  Prepared prepared(call);
  Args &args = prepared.args;
  if (!workspace.is_none()) {
    const mlaverify_tensor given = prepared.arrays.view(workspace, "workspace", Use::output, kBytes);
    if (!is_contiguous(given)) throw nb::value_error("workspace: got strided memory, must be contiguous");
    const Memory memory = memory_of(given, "workspace", 1, args);
    run_in(args, memory.data, memory.bytes);
    return 0;
  }
  const std::size_t bytes = bytes_needed(args);
  if (bytes == 0) {
    run_in(args, nullptr, 0);
  } else if (captured(args)) {
    return bytes;
  } else {
    run_in_kept(args, bytes);
  }
  return 0;
}

void decode_attention_fwd_verify(const CallArguments &call, nb::handle attn_logits) {
  Prepared prepared(call);
  Args &args = prepared.args;
  const int32_t most_splits = args.num_kv_splits;
  args.num_kv_splits = std::min(most_splits, 0);  // a negative number is refused
  std::size_t bytes = bytes_needed(args);
  const Memory scratch = logits_memory(prepared, attn_logits);
  if (bytes <= scratch.bytes) {
    run_in(args, scratch.data, scratch.bytes);
    return;
  }
  if (!captured(args)) {
    run_in_kept(args, bytes);
    return;
  }
  // (One split needs no memory.)
  for (args.num_kv_splits = std::max(most_splits, 1); args.num_kv_splits > 1; --args.num_kv_splits) {
    raise_on_error(mlaverify_workspace_size(&args, &bytes));
    if (bytes <= scratch.bytes) break;
  }
  run_in(args, scratch.data, scratch.bytes);
}

void warmup(const CallArguments &call, bool has_real, const std::vector<int32_t> &qlens, nb::handle attn_logits) {
  Prepared prepared(call);
  Args &args = prepared.args;
  const Memory scratch = logits_memory(prepared, attn_logits);
  // Of tensors whose rows depend on the request count only the form is given: sizes here, as for `batch` requests of `qlen`.
  const auto set_rows = [&](int64_t batch, int32_t qlen) {
    args.qlen = qlen;
    for (mlaverify_tensor *t : {&args.q, &args.out, &args.lse}) t->shape[0] = batch * qlen;
    for (mlaverify_tensor *t : {&args.block_table, &args.seq_lens, &args.real_seq_lens}) t->shape[0] = batch;
  };
  args.seq_lens.dtype = MLAVERIFY_I32;
  args.seq_lens.device = args.q.device;
  args.seq_lens.ndim = 1;
  args.seq_lens.strides[0] = 1;
  if (has_real) args.real_seq_lens = args.seq_lens;
  set_rows(1, 1);
  raise_on_error(mlaverify_warmup_decode_attention_fwd_verify(&args, qlens.data(), static_cast<int32_t>(qlens.size())));
  std::size_t most = 0;
  for (const int32_t qlen : qlens) {
    // Few rows and many: the two configurations of the system that the function comes from.
    const int64_t rows = std::max<int64_t>(qlen * args.q.shape[1], 1);
    for (const int64_t batch : {int64_t{1}, 640 / rows + 1}) {
      set_rows(batch, qlen);
      std::size_t bytes = 0;
      raise_on_error(mlaverify_workspace_size(&args, &bytes));
      if (bytes > scratch.bytes) most = std::max(most, bytes);
    }
  }
  if (most == 0) return;
  if (args.q.device == MLAVERIFY_HOST) {
    host_workspace(most);
  } else if (!is_capturing(args.stream)) {
    const nb::gil_scoped_release release;
    const StreamWorkspace workspace(args.q.device, args.stream, most);
  }
}

}  // namespace mlaverify_python
