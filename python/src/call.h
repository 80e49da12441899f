// One call of the library: its arguments from Python, the memory it works in, its failures as exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "array.h"
#include "mlaverify/mlaverify.h"

namespace mlaverify_python {

// INVALID_ARGUMENT, INVALID_VALUE and WORKSPACE: ValueError; UNSUPPORTED: NotImplementedError; INTERNAL, DEVICE: RuntimeError; each
// with the library's message.
void raise_on_error(mlaverify_status status);

// The arguments of a call as in mlaverify.h, but for the workspace.
struct CallArguments {
  nb::handle q = Py_None, kv_cache = Py_None, out = Py_None, lse = Py_None, block_table = Py_None, seq_lens = Py_None;
  nb::handle real_seq_lens = Py_None, k_scale = Py_None;
  nb::handle v_buffer;                // of the Triton function: the beginning of each row of kv_cache
  std::optional<int32_t> v_head_dim;  // none: the width of v_buffer, or of out where there is none
  int32_t qlen = 0, num_kv_splits = 0;
  std::optional<int32_t> page_size;  // none: what a cache with four dimensions says
  double sm_scale = 0;
  uint32_t flags = 0;
  mlaverify_backend backend = MLAVERIFY_BACKEND_AUTO;
  int32_t num_threads = 0;
  nb::handle dtype = Py_None, kv_dtype = Py_None, stream = Py_None;  // None: the arrays' own, the current one
};

// Bytes of workspace that a call needs.
std::size_t workspace_size(const CallArguments &call);

// Computes out and lse, in `workspace` (an array on the device of q; None: memory kept for the stream or the thread). Returns 0, or, having
// done nothing, the bytes of workspace to give it: only where the stream is being captured and none was given. Releases the GIL.
std::size_t verify(const CallArguments &call, nb::handle workspace);

// The same with the library's own schedule, whatever call.num_kv_splits (>= 1) says, in the memory of `attn_logits` (f32; None: none) if
// that suffices, else in memory kept as above; where the stream is being captured, cut by the split rule into as many splits, up to
// num_kv_splits, as attn_logits has memory for.
void decode_attention_fwd_verify(const CallArguments &call, nb::handle attn_logits);

// Loads what calls with these tensors and each of `qlens` can reach, and has the stream's workspace ready where attn_logits does not
// suffice.
void warmup(const CallArguments &call, bool has_real, const std::vector<int32_t> &qlens, nb::handle attn_logits);

}  // namespace mlaverify_python
