#include "generate/model.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace mlaverify::generate {
namespace {

std::unique_ptr<Compute> compute_for(const Weights &weights, const ModelOptions &options) {
  return options.backend == MLAVERIFY_BACKEND_CUDA ? compute_on_gpu(weights) : compute_on_host(options.num_threads);
}

// What Compute::repeat() tells apart.
enum Work : int64_t { kForward, kDraft, kLogits, kDraftLogits };

void demand_positions(const Sequences &s, int32_t max_positions) {
  for (int32_t b = 0; b < s.batch; ++b) {
    if (s.seq_lens[b] < s.qlen || s.seq_lens[b] > max_positions) {
      throw std::logic_error("a sequence of " + std::to_string(s.seq_lens[b]) + " tokens, must be from " +
                             std::to_string(s.qlen) + " to " + std::to_string(max_positions));
    }
  }
}

}  // namespace

Model::Model(const Weights &weights, const ModelOptions &options)
    : weights_(weights),
      compute_(compute_for(weights, options)),
      attention_(weights.config, static_cast<int32_t>(weights.layers.size()), options, *compute_) {
  const std::vector<Turn> turns = turns_of(config().qk_rope_head_dim, config().max_positions, config().rope_theta);
  turns_ = turns_buffer_.reserve<Turn>(static_cast<int64_t>(turns.size()));
  turns_buffer_.upload(turns.data(), turns.size() * sizeof(Turn));
}

// In one copy, since each has to be waited for.
Model::Inputs Model::place(const Sequences &s, const uint8_t *tokens, const float *states) {
  demand_positions(s, config().max_positions);
  const auto hidden = static_cast<std::size_t>(config().hidden_size), numbers = static_cast<std::size_t>(s.rows()) * hidden;
  const auto batch = static_cast<std::size_t>(s.batch), entries = batch * static_cast<std::size_t>(s.table_width);
  const std::size_t states_in = numbers, table_at = states != nullptr ? 2 * numbers : numbers;
  static_assert(sizeof(float) == sizeof(int32_t));
  staged_.resize((table_at + entries + batch) * sizeof(float));
  auto *embeddings = reinterpret_cast<float *>(staged_.data());
  for (std::size_t r = 0; r < static_cast<std::size_t>(s.rows()); ++r) {
    std::copy_n(weights_.embedding.data() + tokens[r] * hidden, hidden, embeddings + r * hidden);
  }
  if (states != nullptr) std::copy_n(states, numbers, embeddings + states_in);
  auto *table = reinterpret_cast<int32_t *>(embeddings + table_at);
  std::copy_n(s.seq_lens, batch, std::copy_n(s.block_table, entries, table));

  auto *placed = inputs_.reserve<float>(static_cast<int64_t>(staged_.size() / sizeof(float)));
  inputs_.upload(staged_.data(), staged_.size());
  const auto *placed_table = reinterpret_cast<const int32_t *>(placed + table_at);
  return {{s.batch, s.qlen, placed_table, s.table_width, placed_table + entries}, placed, placed + states_in};
}

void Model::download(const float *from, float *to, int64_t count) const {
  compute_->synchronize();
  copy_to_host(compute_->device(), from, to, static_cast<std::size_t>(count) * sizeof(float));
}

void Model::forward(const Sequences &s, const uint8_t *tokens, float *states) {
  const Inputs in = place(s, tokens, nullptr);
  const auto layers = [&] {
    for (int32_t i = 0; i < config().num_layers; ++i) layer(i, s, in.sequences, in.embeddings);
  };
  if (attention_.observed()) {
    layers();
  } else {
    compute_->repeat({kForward, s.batch, s.qlen, s.table_width}, layers);
  }
  download(in.embeddings, states, s.rows() * config().hidden_size);
  attention_.add_time(0, config().num_layers);
}

void Model::logits(int64_t rows, const float *states, float *logits) { head(kLogits, weights_.norm, rows, states, logits); }

void Model::draft_forward(const Sequences &s, const uint8_t *tokens, const float *states_in, float *states) {
  const int64_t hidden = config().hidden_size, rows = s.rows();
  const double eps = config().rms_norm_eps;
  const Inputs in = place(s, tokens, states_in);
  float *x = rows_of(state_, rows, hidden);
  compute_->repeat({kDraft, s.batch, s.qlen, s.table_width}, [&] {
    float *both = rows_of(normed_, rows, 2 * hidden);
    compute_->run(Norm{&weights_.mtp.embedding_norm, eps, in.embeddings, hidden, both, 2 * hidden}, rows);
    compute_->run(Norm{&weights_.mtp.state_norm, eps, in.states, hidden, both + hidden, 2 * hidden}, rows);
    compute_->multiply({{&weights_.mtp.projection, both, 2 * hidden, x, hidden}}, rows);
    layer(config().num_layers, s, in.sequences, x);
  });
  download(x, states, rows * hidden);
  attention_.add_time(config().num_layers, 1);
}

void Model::draft_logits(int64_t rows, const float *states, float *logits) {
  head(kDraftLogits, weights_.mtp.head_norm, rows, states, logits);
}

void Model::head(int64_t work, const std::vector<float> &norm, int64_t rows, const float *states, float *logits) {
  const int64_t hidden = config().hidden_size;
  auto *x = inputs_.reserve<float>(rows * hidden);
  inputs_.upload(states, static_cast<std::size_t>(rows * hidden) * sizeof(float));
  float *scores = rows_of(sum_, rows, kVocabulary);
  compute_->repeat({work, rows}, [&] {
    float *normed = rows_of(normed_, rows, hidden);
    compute_->run(Norm{&norm, config().rms_norm_eps, x, hidden, normed, hidden}, rows);
    compute_->multiply({{&weights_.head, normed, hidden, scores, kVocabulary}}, rows);
  });
  download(scores, logits, rows * kVocabulary);
}

// x += attention(norm(x)); x += mlp(norm(x))
void Model::layer(int32_t index, const Sequences &on_host, const Sequences &s, float *x) {
  const ModelConfig &c = config();
  const Weights::Layer &w = weights_.layers[static_cast<std::size_t>(index)];
  const int64_t rows = s.rows(), hidden = c.hidden_size, heads = c.num_heads, rank = c.kv_lora_rank, key = c.key_width();
  const int64_t head_width = c.qk_nope_head_dim + c.qk_rope_head_dim, value = c.v_head_dim, inner = c.intermediate_size;
  const int64_t query_width = c.query_width();
  Compute &compute = *compute_;

  float *normed = rows_of(normed_, rows, hidden);
  compute.run(Norm{&w.input_norm, c.rms_norm_eps, x, hidden, normed, hidden}, rows);
  float *query = rows_of(query_, rows, query_width), *latent = rows_of(latent_, rows, key);
  compute.multiply({{&w.query, normed, hidden, query, query_width}, {&w.latent, normed, hidden, latent, key}}, rows);
  compute.run(Norm{&w.latent_norm, c.rms_norm_eps, latent, key, latent, key}, rows);
  compute.run(
      StoreLatents{s, attention_.page_size(), c.kv_lora_rank, c.qk_rope_head_dim, turns_, latent, attention_.cache(index)});

  // A head's query in the space of the latents: W_UK^T q. Its result is brought back by W_UV.
  float *latent_query = rows_of(latent_query_, rows, heads * rank);
  compute.multiply({{&w.to_latent, query, query_width, latent_query, heads * rank, head_width, rank}}, rows);
  auto *q = q_.reserve<uint16_t>(rows * heads * key), *out = out_.reserve<uint16_t>(rows * heads * rank);
  compute.run(
      MakeQueries{s, c.num_heads, c.kv_lora_rank, c.qk_nope_head_dim, c.qk_rope_head_dim, turns_, latent_query, query, q});
  attention_.run(index, on_host, s, q, out);
  float *latent_out = rows_of(latent_out_, rows, heads * rank), *values = rows_of(value_, rows, heads * value);
  compute.run(Widen{{rows * heads, c.kv_lora_rank}, out, latent_out});
  compute.multiply({{&w.from_latent, latent_out, heads * rank, values, heads * value, rank, value}}, rows);

  float *sum = rows_of(sum_, rows, hidden);
  compute.multiply({{&w.output, values, heads * value, sum, hidden}}, rows);
  compute.run(Add{{rows, c.hidden_size}, sum, x});

  compute.run(Norm{&w.post_attention_norm, c.rms_norm_eps, x, hidden, normed, hidden}, rows);
  float *gate = rows_of(gate_, rows, inner), *up = rows_of(up_, rows, inner);
  compute.multiply({{&w.gate, normed, hidden, gate, inner}, {&w.up, normed, hidden, up, inner}}, rows);
  compute.run(SwiGlu{{rows, c.intermediate_size}, up, gate});
  compute.multiply({{&w.down, gate, inner, sum, hidden}}, rows);
  compute.run(Add{{rows, c.hidden_size}, sum, x});
}

}  // namespace mlaverify::generate
