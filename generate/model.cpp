#include "generate/model.h"

#include <algorithm>
#include <stdexcept>

#include "rules/number.h"

namespace mlaverify::generate {
namespace {

template <class T>
T *sized(std::vector<T> &buffer, int64_t size) {
  buffer.resize(static_cast<std::size_t>(size));
  return buffer.data();
}

void to_bf16(const float *x, int64_t count, uint16_t *out) {
  for (int64_t i = 0; i < count; ++i) out[i] = rules::float_to_bf16(x[i]);
}

}  // namespace

Model::Model(const Weights &weights, const AttentionOptions &options)
    : weights_(weights),
      threads_(options.num_threads),
      rotation_(weights.config.qk_rope_head_dim, weights.config.max_positions, weights.config.rope_theta),
      attention_(weights.config, static_cast<int32_t>(weights.layers.size()), options) {}

void Model::multiply_rows(const std::vector<Product> &products, int64_t rows) const { multiply(products, rows, threads_); }

void Model::demand_positions(const Sequences &s) const {
  for (int32_t b = 0; b < s.batch; ++b) {
    if (s.seq_lens[b] < s.qlen || s.seq_lens[b] > config().max_positions) {
      throw std::logic_error("a sequence of " + std::to_string(s.seq_lens[b]) + " tokens, must be from " +
                             std::to_string(s.qlen) + " to " + std::to_string(config().max_positions));
    }
  }
}

void Model::forward(const Sequences &s, const uint8_t *tokens, float *states) {
  demand_positions(s);
  const int64_t hidden = config().hidden_size;
  for (int64_t r = 0; r < s.rows(); ++r)
    std::copy_n(weights_.embedding.data() + tokens[r] * hidden, hidden, states + r * hidden);
  for (int32_t i = 0; i < config().num_layers; ++i) layer(i, s, states);
}

void Model::logits(int64_t rows, const float *states, float *logits) { head(weights_.norm, rows, states, logits); }

void Model::draft_forward(const Sequences &s, const uint8_t *tokens, const float *states_in, float *states) {
  demand_positions(s);
  const int64_t hidden = config().hidden_size;
  const double eps = config().rms_norm_eps;
  float *both = sized(normed_, s.rows() * 2 * hidden);
  for (int64_t r = 0; r < s.rows(); ++r) {
    rms_norm(weights_.mtp.embedding_norm, eps, weights_.embedding.data() + tokens[r] * hidden, both + r * 2 * hidden);
    rms_norm(weights_.mtp.state_norm, eps, states_in + r * hidden, both + r * 2 * hidden + hidden);
  }
  multiply_rows({{&weights_.mtp.projection, both, 2 * hidden, states, hidden}}, s.rows());
  layer(config().num_layers, s, states);
}

void Model::draft_logits(int64_t rows, const float *states, float *logits) {
  head(weights_.mtp.head_norm, rows, states, logits);
}

void Model::head(const std::vector<float> &norm, int64_t rows, const float *states, float *logits) {
  const int64_t hidden = config().hidden_size;
  float *normed = sized(normed_, rows * hidden);
  for (int64_t r = 0; r < rows; ++r) rms_norm(norm, config().rms_norm_eps, states + r * hidden, normed + r * hidden);
  multiply_rows({{&weights_.head, normed, hidden, logits, kVocabulary}}, rows);
}

// x += attention(norm(x)); x += mlp(norm(x))
void Model::layer(int32_t index, const Sequences &s, float *x) {
  const ModelConfig &c = config();
  const Weights::Layer &w = weights_.layers[static_cast<std::size_t>(index)];
  const int64_t rows = s.rows(), hidden = c.hidden_size, heads = c.num_heads, rank = c.kv_lora_rank, key = c.key_width();
  const int64_t nope = c.qk_nope_head_dim, rope = c.qk_rope_head_dim, value = c.v_head_dim, inner = c.intermediate_size;

  float *normed = sized(normed_, rows * hidden);
  for (int64_t r = 0; r < rows; ++r) rms_norm(w.input_norm, c.rms_norm_eps, x + r * hidden, normed + r * hidden);
  const int64_t query_width = c.query_width();
  float *query = sized(query_, rows * query_width);
  float *latent = sized(latent_, rows * key);
  multiply_rows({{&w.query, normed, hidden, query, query_width}, {&w.latent, normed, hidden, latent, key}}, rows);

  // What is cached of a token: its normed latent, and the key that all heads share, rotated.
  for (int64_t r = 0; r < rows; ++r) {
    rms_norm(w.latent_norm, c.rms_norm_eps, latent + r * key, latent + r * key);
    rotation_.apply(s.position(r), latent + r * key + rank);
  }
  uint16_t *cached = sized(cached_, rows * key);
  to_bf16(latent, rows * key, cached);

  // A head's query in the same space: W_UK^T q, and the rotated part.
  float *latent_query = sized(latent_query_, rows * heads * rank);
  std::vector<Product> products;
  for (int64_t h = 0; h < heads; ++h) {
    products.push_back({&w.to_latent[static_cast<std::size_t>(h)], query + h * (nope + rope), query_width,
                        latent_query + h * rank, heads * rank});
  }
  multiply_rows(products, rows);
  uint16_t *q = sized(q_, rows * heads * key);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      float *rotated = query + r * query_width + h * (nope + rope) + nope;
      rotation_.apply(s.position(r), rotated);
      uint16_t *row = q + (r * heads + h) * key;
      to_bf16(latent_query + (r * heads + h) * rank, rank, row);
      to_bf16(rotated, rope, row + rank);
    }
  }

  uint16_t *out = sized(out_, rows * heads * rank);
  attention_.run(index, s, cached, q, out);

  float *latent_out = sized(latent_out_, rows * heads * rank);
  for (int64_t i = 0; i < rows * heads * rank; ++i) latent_out[i] = rules::bf16_to_float(out[i]);
  float *values = sized(value_, rows * heads * value);
  products.clear();
  for (int64_t h = 0; h < heads; ++h) {
    products.push_back(
        {&w.from_latent[static_cast<std::size_t>(h)], latent_out + h * rank, heads * rank, values + h * value, heads * value});
  }
  multiply_rows(products, rows);
  float *sum = sized(sum_, rows * hidden);
  multiply_rows({{&w.output, values, heads * value, sum, hidden}}, rows);
  for (int64_t i = 0; i < rows * hidden; ++i) x[i] += sum[i];

  normed = sized(normed_, rows * hidden);
  for (int64_t r = 0; r < rows; ++r) rms_norm(w.post_attention_norm, c.rms_norm_eps, x + r * hidden, normed + r * hidden);
  float *gate = sized(gate_, rows * inner), *up = sized(up_, rows * inner);
  multiply_rows({{&w.gate, normed, hidden, gate, inner}, {&w.up, normed, hidden, up, inner}}, rows);
  for (int64_t r = 0; r < rows; ++r) swiglu(c.intermediate_size, up + r * inner, gate + r * inner);
  multiply_rows({{&w.down, gate, inner, sum, hidden}}, rows);
  for (int64_t i = 0; i < rows * hidden; ++i) x[i] += sum[i];
}

}  // namespace mlaverify::generate
