#include "generate/attention.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "mlaverify/mlaverify.hpp"
#include "rules/paging.h"

namespace mlaverify::generate {
namespace {

constexpr int kGpu = 0;

// The page and slot of a token, as an index of cached rows.
std::size_t slot_index(const Sequences &s, int32_t request, int32_t token, int32_t page_size) {
  const rules::Slot slot = rules::slot_of(token, page_size);
  const int64_t page = s.block_table[request * s.table_width + slot.entry];
  return static_cast<std::size_t>(page * page_size + slot.offset);
}

}  // namespace

// Copies of a call's tensors on the GPU; each grows to the largest call.
struct Attention::OnDevice {
  io::DeviceStream stream{kGpu};
  std::vector<io::DeviceMemory> caches;
  io::DeviceMemory q, out, lse, block_table, seq_lens, workspace;

  static void reserve(io::DeviceMemory &memory, std::size_t bytes) {
    if (memory.bytes() < bytes) memory = io::DeviceMemory(bytes, kGpu);
  }
  static void upload(io::DeviceMemory &memory, mlaverify_tensor &view, std::size_t bytes) {
    reserve(memory, bytes);
    memory.upload(view.data, bytes);
    place(memory, view);
  }
  static void place(const io::DeviceMemory &memory, mlaverify_tensor &view) {
    view.data = memory.data();
    view.device = kGpu;
  }
};

Attention::Attention(const ModelConfig &config, int32_t layers, const AttentionOptions &options)
    : config_(config), options_(options) {
  if (options.backend == MLAVERIFY_BACKEND_CUDA) device_ = std::make_shared<OnDevice>();
  for (int32_t i = 0; i < layers; ++i) {
    caches_.emplace_back(DType::bf16, std::vector<int64_t>{options.num_pages, options.page_size, 1, config.key_width()});
    std::memset(caches_.back().data(), 0xff, caches_.back().bytes());
    if (device_) {
      device_->caches.emplace_back(caches_.back().bytes(), kGpu);
      device_->caches.back().poison();
    }
  }
}

void Attention::store(int32_t layer, const Sequences &s, const uint16_t *latents) {
  const std::size_t row_bytes = static_cast<std::size_t>(config_.key_width()) * sizeof(uint16_t);
  auto *cache = caches_[static_cast<std::size_t>(layer)].data<unsigned char>();
  const auto *rows = reinterpret_cast<const unsigned char *>(latents);
  // Rows of one request that lie side by side in the cache travel together.
  for (int64_t row = 0, count = 0; row < s.rows(); row += count) {
    const auto request = static_cast<int32_t>(row / s.qlen);
    const int32_t position = s.position(row), page_end = (position / options_.page_size + 1) * options_.page_size;
    count = std::min(page_end, s.seq_lens[request]) - position;
    const std::size_t at = slot_index(s, request, position, options_.page_size) * row_bytes;
    const std::size_t bytes = static_cast<std::size_t>(count) * row_bytes;
    std::memcpy(cache + at, rows + static_cast<std::size_t>(row) * row_bytes, bytes);
    if (device_) device_->caches[static_cast<std::size_t>(layer)].upload(cache + at, bytes, at);
  }
}

mlaverify_verify_args Attention::args_for(int32_t layer, const Sequences &s, const uint16_t *q, uint16_t *out) {
  const auto bits = [](const uint16_t *p) { return reinterpret_cast<bf16 *>(const_cast<uint16_t *>(p)); };
  const int64_t rows = s.rows(), heads = config_.num_heads;
  lse_.resize(static_cast<std::size_t>(rows * heads));
  mlaverify_verify_args args = make_args();
  args.q = view(bits(q), {rows, heads, config_.key_width()});
  args.kv_cache = caches_[static_cast<std::size_t>(layer)].view();
  args.out = view(bits(out), {rows, heads, config_.kv_lora_rank});
  args.lse = view(lse_.data(), {rows, heads});
  args.block_table = view(s.block_table, {s.batch, s.table_width});
  args.seq_lens = view(s.seq_lens, {s.batch});
  args.v_head_dim = config_.kv_lora_rank;
  args.qlen = s.qlen;
  args.page_size = options_.page_size;
  args.sm_scale = config_.sm_scale();
  args.flags = MLAVERIFY_FLAG_BATCH_INVARIANT;  // the same text with and without drafts, alone and in a batch
  args.backend = options_.backend;
  args.num_threads = options_.num_threads;
  return args;
}

void Attention::run(int32_t layer, const Sequences &s, const uint16_t *latents, const uint16_t *q, uint16_t *out) {
  const auto start = std::chrono::steady_clock::now();
  store(layer, s, latents);
  if (observer_) observer_(layer, step_of(layer, s, q));
  mlaverify_verify_args args = args_for(layer, s, q, out);
  const std::size_t out_bytes = static_cast<std::size_t>(s.rows()) * static_cast<std::size_t>(config_.num_heads) *
                                static_cast<std::size_t>(config_.kv_lora_rank) * sizeof(uint16_t);
  if (device_) {
    const auto batch = static_cast<std::size_t>(s.batch);
    const std::size_t q_bytes =
        out_bytes / static_cast<std::size_t>(config_.kv_lora_rank) * static_cast<std::size_t>(config_.key_width());
    OnDevice::upload(device_->q, args.q, q_bytes);
    OnDevice::upload(device_->block_table, args.block_table, batch * static_cast<std::size_t>(s.table_width) * sizeof(int32_t));
    OnDevice::upload(device_->seq_lens, args.seq_lens, batch * sizeof(int32_t));
    OnDevice::place(device_->caches[static_cast<std::size_t>(layer)], args.kv_cache);
    OnDevice::reserve(device_->out, out_bytes);
    OnDevice::place(device_->out, args.out);
    OnDevice::reserve(device_->lse, lse_.size() * sizeof(float));
    OnDevice::place(device_->lse, args.lse);
    args.workspace_bytes = workspace_size(args);
    OnDevice::reserve(device_->workspace, args.workspace_bytes);
    args.workspace = device_->workspace.data();
    args.stream = device_->stream.handle();
    decode_attention_fwd_verify(args);
    device_->stream.synchronize();
    device_->out.download(out, out_bytes);
  } else {
    args.workspace_bytes = workspace_size(args);
    if (args.workspace_bytes > workspace_bytes_) {
      constexpr std::size_t alignment = MLAVERIFY_WORKSPACE_ALIGNMENT;
      workspace_.reset(std::aligned_alloc(alignment, rules::round_up(args.workspace_bytes, alignment)));
      if (!workspace_) throw std::bad_alloc();
      workspace_bytes_ = args.workspace_bytes;
    }
    args.workspace = workspace_.get();
    decode_attention_fwd_verify(args);
  }
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

io::Step Attention::step_of(int32_t layer, const Sequences &s, const uint16_t *q) const {
  const io::TensorBuffer &cache = caches_[static_cast<std::size_t>(layer)];
  int32_t last_page = 0;
  for (int32_t b = 0; b < s.batch; ++b) {
    const int32_t *table_row = s.block_table + b * s.table_width;
    last_page =
        std::max(last_page, *std::max_element(table_row, table_row + rules::pages_for(s.seq_lens[b], options_.page_size)));
  }
  const auto copy = [](DType dtype, std::vector<int64_t> shape, const void *data) {
    io::TensorBuffer buffer(dtype, std::move(shape));
    std::memcpy(buffer.data(), data, buffer.bytes());
    return buffer;
  };
  io::Step step;
  step.q = copy(DType::bf16, {s.rows(), config_.num_heads, config_.key_width()}, q);
  step.kv_cache = copy(DType::bf16, {last_page + 1, options_.page_size, 1, config_.key_width()}, cache.data());
  step.block_table = copy(DType::i32, {s.batch, s.table_width}, s.block_table);
  step.seq_lens = copy(DType::i32, {s.batch}, s.seq_lens);
  step.qlen = s.qlen;
  step.page_size = options_.page_size;
  step.v_head_dim = config_.kv_lora_rank;
  step.sm_scale = config_.sm_scale();
  return step;
}

}  // namespace mlaverify::generate
