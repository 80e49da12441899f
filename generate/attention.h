// The attention of every layer, by mlaverify's verify call, and the paged latent caches that it reads. On the cuda backend the caches
// have a copy on the GPU: new latents and queries are copied there, results back.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "generate/config.h"
#include "io/device_memory.h"
#include "io/step.h"
#include "io/tensor_buffer.h"
#include "mlaverify/mlaverify.h"

namespace mlaverify::generate {

struct AttentionOptions {
  mlaverify_backend backend = MLAVERIFY_BACKEND_CPU;
  int32_t num_threads = 1;  // >= 1
  int32_t num_pages = 1;
  int32_t page_size = 64;
};

// The sequences of one call: each has `qlen` new tokens, the last ones of its seq_lens[b] tokens. Their latents go to the pages
// that the block table names; those of the tokens before lie there.
struct Sequences {
  int32_t batch;
  int32_t qlen;
  const int32_t *block_table;  // [batch, table_width]
  int64_t table_width;
  const int32_t *seq_lens;  // [batch]

  int64_t rows() const { return static_cast<int64_t>(batch) * qlen; }
  int32_t position(int64_t row) const { return seq_lens[row / qlen] - qlen + static_cast<int32_t>(row % qlen); }
};

class Attention {
 public:
  // Caches for `layers` layers, filled with NaN. Throws std::bad_alloc, io::DeviceError.
  Attention(const ModelConfig &config, int32_t layers, const AttentionOptions &options);

  // Writes the latents of the new tokens, bf16 [rows, Lk], to the layer's cache, and attends: q is bf16 [rows, H, Lk], out becomes bf16
  // [rows, H, Lv]. Throws mlaverify::error for what the library refuses, io::DeviceError.
  void run(int32_t layer, const Sequences &s, const uint16_t *latents, const uint16_t *q, uint16_t *out);

  // Sees every step before it is computed, with the layer; nullptr: nobody does. The step's tensors are copies; the cache is cut
  // behind the last page that the step uses.
  using Observer = std::function<void(int32_t layer, io::Step step)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

  double seconds() const { return seconds_; }  // spent in run(), copies included

 private:
  struct Free {
    void operator()(void *p) const { std::free(p); }
  };
  struct OnDevice;

  void store(int32_t layer, const Sequences &s, const uint16_t *latents);
  mlaverify_verify_args args_for(int32_t layer, const Sequences &s, const uint16_t *q, uint16_t *out);
  io::Step step_of(int32_t layer, const Sequences &s, const uint16_t *q) const;

  ModelConfig config_;
  AttentionOptions options_;
  std::vector<io::TensorBuffer> caches_;  // of each layer: [num_pages, page_size, 1, Lk]
  std::vector<float> lse_;
  std::unique_ptr<void, Free> workspace_;
  std::size_t workspace_bytes_ = 0;
  std::shared_ptr<OnDevice> device_;  // null: computed on the host
  Observer observer_;
  double seconds_ = 0;
};

}  // namespace mlaverify::generate
