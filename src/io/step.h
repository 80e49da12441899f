// A step file (docs/file-format.md): the arguments of one call and, optionally, its expected results, in one safetensors file.
#pragma once

#include <string>

#include "io/safetensors.h"
#include "io/tensor_buffer.h"
#include "mlaverify/mlaverify.h"

namespace mlaverify::io {

struct Step {
  TensorBuffer q;              // [B*qlen, H, Lk]
  TensorBuffer kv_cache;       // [num_pages, page_size, 1, Lk] or [num_pages*page_size, 1, Lk]; records: bytes, 656 for Lk
  TensorBuffer block_table;    // [B, max_pages]
  TensorBuffer seq_lens;       // [B]
  TensorBuffer real_seq_lens;  // [B] or absent
  TensorBuffer k_scale;        // [], [1] or absent
  TensorBuffer o;              // expected: [B*qlen, H, Lv], f32 or the type of q, or absent
  TensorBuffer lse;            // expected: [B*qlen, H] f32, or absent

  int32_t qlen = 1;
  int32_t page_size = 1;
  int32_t v_head_dim = 0;  // Lv
  int32_t num_kv_splits = 0;
  float sm_scale = 1;
  std::string note;

  // The arguments of the call, as views of the tensors here. Outputs, workspace, backend and threads are left to the caller.
  mlaverify_verify_args args() const;
};

// Demands the tensors and metadata that a step needs, with their types and ranks; what they must be beyond that is for the
// library to check. Throws FileError.
Step read_step(const std::string &path);

// Throws FileError.
void write_step(const std::string &path, const Step &step);

}  // namespace mlaverify::io
