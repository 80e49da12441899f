#include "generate/attention.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "mlaverify/mlaverify.hpp"
#include "rules/paging.h"

namespace mlaverify::generate {

Attention::Attention(const ModelConfig &config, int32_t layers, const ModelOptions &options, Compute &compute)
    : config_(config),
      options_(options),
      compute_(compute),
      lse_(compute.device(), [&compute] { compute.forget(); }),
      workspace_(compute.device(), [&compute] { compute.forget(); }) {
  for (int32_t i = 0; i < layers; ++i) {
    caches_.emplace_back(compute.device());
    try {
      cache(i);
    } catch (const io::DeviceError &e) {
      throw io::DeviceError("the caches: " + std::to_string(options.num_pages) + " pages of " +
                            std::to_string(options.page_size) + " tokens in " + std::to_string(layers) +
                            " layers: " + e.what());
    }
    if (compute.device() != MLAVERIFY_HOST) watches_.emplace_back(compute.device());
  }
}

int64_t Attention::cache_size() const {
  return static_cast<int64_t>(options_.num_pages) * options_.page_size * config_.key_width();
}

void Attention::run(int32_t layer, const Sequences &on_host, const Sequences &s, const uint16_t *q, uint16_t *out) {
  if (observer_) observer_(layer, step_of(layer, on_host, q));
  const mlaverify_device device = compute_.device();
  const int64_t rows = s.rows(), heads = config_.num_heads;
  const auto bf16_view = [device](const uint16_t *data, std::initializer_list<int64_t> shape) {
    return view(reinterpret_cast<bf16 *>(const_cast<uint16_t *>(data)), shape, {}, device);
  };
  mlaverify_verify_args args = make_args();
  args.q = bf16_view(q, {rows, heads, config_.key_width()});
  args.kv_cache = bf16_view(cache(layer), {options_.num_pages, options_.page_size, 1, config_.key_width()});
  args.out = bf16_view(out, {rows, heads, config_.kv_lora_rank});
  args.lse = view(lse_.reserve<float>(rows * heads), {rows, heads}, {}, device);
  args.block_table = view(s.block_table, {s.batch, s.table_width}, {}, device);
  args.seq_lens = view(s.seq_lens, {s.batch}, {}, device);
  args.v_head_dim = config_.kv_lora_rank;
  args.qlen = s.qlen;
  args.page_size = options_.page_size;
  args.sm_scale = config_.sm_scale();
  args.flags = MLAVERIFY_FLAG_BATCH_INVARIANT;  // the same text with and without drafts, alone and in a batch
  args.backend = options_.backend;
  args.num_threads = options_.num_threads;
  args.stream = compute_.stream();
  args.workspace_bytes = workspace_size(args);
  args.workspace = workspace_.reserve<char>(static_cast<int64_t>(args.workspace_bytes));

  if (device == MLAVERIFY_HOST) {
    const auto start = std::chrono::steady_clock::now();
    decode_attention_fwd_verify(args);
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return;
  }
  io::DeviceStopwatch &watch = watches_[static_cast<std::size_t>(layer)];
  watch.start(compute_.stream());
  decode_attention_fwd_verify(args);
  watch.stop(compute_.stream());
}

void Attention::add_time(int32_t first, int32_t count) {
  if (watches_.empty()) return;  // on the host it is known by then
  for (int32_t i = first; i < first + count; ++i) seconds_ += watches_[static_cast<std::size_t>(i)].seconds();
}

io::Step Attention::step_of(int32_t layer, const Sequences &on_host, const uint16_t *q) {
  int32_t last_page = 0;
  for (int32_t b = 0; b < on_host.batch; ++b) {
    const int32_t *table_row = on_host.block_table + b * on_host.table_width;
    last_page = std::max(last_page,
                         *std::max_element(table_row, table_row + rules::pages_for(on_host.seq_lens[b], options_.page_size)));
  }
  compute_.synchronize();
  const auto copy = [](DType dtype, std::vector<int64_t> shape, mlaverify_device device, const void *data) {
    io::TensorBuffer buffer(dtype, std::move(shape));
    copy_to_host(device, data, buffer.data(), buffer.bytes());
    return buffer;
  };
  const mlaverify_device device = compute_.device();
  io::Step step;
  step.q = copy(DType::bf16, {on_host.rows(), config_.num_heads, config_.key_width()}, device, q);
  step.kv_cache = copy(DType::bf16, {last_page + 1, options_.page_size, 1, config_.key_width()}, device, cache(layer));
  step.block_table = copy(DType::i32, {on_host.batch, on_host.table_width}, MLAVERIFY_HOST, on_host.block_table);
  step.seq_lens = copy(DType::i32, {on_host.batch}, MLAVERIFY_HOST, on_host.seq_lens);
  step.qlen = on_host.qlen;
  step.page_size = options_.page_size;
  step.v_head_dim = config_.kv_lora_rank;
  step.sm_scale = config_.sm_scale();
  return step;
}

}  // namespace mlaverify::generate
