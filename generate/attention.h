// The attention of every layer, by mlaverify's verify call, and the paged latent caches that it reads.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "generate/buffer.h"
#include "generate/compute.h"
#include "generate/config.h"
#include "generate/sequences.h"
#include "io/step.h"

namespace mlaverify::generate {

struct ModelOptions {
  mlaverify_backend backend = MLAVERIFY_BACKEND_CPU;  // cuda: the whole model is on the GPU; otherwise that of attention
  int32_t num_threads = 1;                            // of the CPU, >= 1
  int32_t num_pages = 1;
  int32_t page_size = 64;
};

class Attention {
 public:
  // Caches for `layers` layers, filled with NaN, where `compute` has its arrays, which must outlive this. Throws std::bad_alloc,
  // io::DeviceError.
  Attention(const ModelConfig &config, int32_t layers, const ModelOptions &options, Compute &compute);

  int32_t page_size() const { return options_.page_size; }
  uint16_t *cache(int32_t layer) { return caches_[static_cast<std::size_t>(layer)].reserve<uint16_t>(cache_size()); }

  // q is bf16 [rows, H, Lk], out becomes bf16 [rows, H, Lv]; the new tokens' latents are in the layer's cache. `on_host` are the same
  // sequences as `s`, with tables of the host. Throws mlaverify::error for what the library refuses, io::DeviceError.
  void run(int32_t layer, const Sequences &on_host, const Sequences &s, const uint16_t *q, uint16_t *out);

  // Sees every step before it is computed, with the layer; nullptr: nobody does. The step's tensors are copies; the cache is cut
  // behind the last page that the step uses.
  using Observer = std::function<void(int32_t layer, io::Step step)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

  bool observed() const { return observer_ != nullptr; }

  double seconds() const { return seconds_; }  // spent in the library
  // Adds what `count` layers from `first` on took the GPU the last time, which is done.
  void add_time(int32_t first, int32_t count);

 private:
  int64_t cache_size() const;  // numbers of a layer
  io::Step step_of(int32_t layer, const Sequences &on_host, const uint16_t *q);

  ModelConfig config_;
  ModelOptions options_;
  Compute &compute_;
  std::vector<Buffer> caches_;  // of each layer: bf16 [num_pages, page_size, 1, Lk]
  Buffer lse_, workspace_;
  Observer observer_;
  double seconds_ = 0;
  std::vector<io::DeviceStopwatch> watches_;  // on a GPU: of each layer
};

}  // namespace mlaverify::generate
