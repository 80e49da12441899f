// The model: from tokens to the scores of the next ones. Projections are absorbed: a head's query is brought to the space of the
// latents (W_UK), attention runs over the latents themselves, and its result is brought back (W_UV), so that nothing is kept of a
// token but its latent and its rotated key. A row's numbers have the same bits whatever rows are computed with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "generate/attention.h"
#include "generate/buffer.h"
#include "generate/checkpoint.h"
#include "generate/compute.h"
#include "generate/config.h"
#include "generate/layers.h"
#include "generate/matrix.h"

namespace mlaverify::generate {

// The weights of a folder with config.json and model.safetensors.
struct Weights {
  // Throws io::FileError for a folder, config or checkpoint that is not what it must be.
  explicit Weights(const std::string &folder);

  struct Layer {
    Layer(Checkpoint &in, const ModelConfig &config, const std::string &prefix);

    std::vector<float> input_norm, latent_norm, post_attention_norm;
    Matrix query, latent;  // q_proj, kv_a_proj_with_mqa
    Matrix to_latent;      // W_UK of each head: qk_nope_head_dim -> kv_lora_rank
    Matrix from_latent;    // W_UV of each head: kv_lora_rank -> v_head_dim
    Matrix output, gate, up, down;
  };
  struct Mtp {
    std::vector<float> embedding_norm, state_norm, head_norm;
    Matrix projection;  // of [embedding, state]
  };

  ModelConfig config;
  std::vector<float> embedding;  // [kVocabulary, hidden_size]
  Matrix head;                   // the same, as the output's matrix
  std::vector<float> norm;
  std::vector<Layer> layers;  // that of the MTP module last
  Mtp mtp;                    // where there is one

  // All that is computed with, by either function; the embedding is looked up.
  template <class OfVector, class OfMatrix>
  void for_each(const OfVector &of_vector, const OfMatrix &of_matrix) const {
    of_matrix(head);
    of_vector(norm);
    for (const Layer &layer : layers) {
      for (const auto *v : {&layer.input_norm, &layer.latent_norm, &layer.post_attention_norm}) of_vector(*v);
      for (const Matrix *m : {&layer.query, &layer.latent, &layer.to_latent, &layer.from_latent, &layer.output, &layer.gate,
                              &layer.up, &layer.down}) {
        of_matrix(*m);
      }
    }
    if (config.has_mtp) {
      for (const auto *v : {&mtp.embedding_norm, &mtp.state_norm, &mtp.head_norm}) of_vector(*v);
      of_matrix(mtp.projection);
    }
  }

 private:
  Weights(ModelConfig c, Checkpoint in);
};

class Model {
 public:
  // `weights` must outlive it. Throws as Attention's constructor and compute_on_gpu() do.
  Model(const Weights &weights, const ModelOptions &options);
  Model(const Model &) = delete;
  Model &operator=(const Model &) = delete;

  const ModelConfig &config() const { return weights_.config; }
  Attention &attention() { return attention_; }

  // Tokens, states and logits are arrays of the host.

  // States of the new tokens, tokens[rows], which go to states[rows][hidden_size]; their latents go to the caches.
  void forward(const Sequences &s, const uint8_t *tokens, float *states);
  // Scores of the token that follows each row: [rows][kVocabulary].
  void logits(int64_t rows, const float *states, float *logits);

  // The same of the MTP module. Row r takes the state that led to a token (of the model, or of this module), and that token; its slot in
  // the module's cache is that of the state. The result leads to the token after that; `states` may be `states_in`. Only where
  // config().has_mtp.
  void draft_forward(const Sequences &s, const uint8_t *tokens, const float *states_in, float *states);
  void draft_logits(int64_t rows, const float *states, float *logits);

 private:
  // What a call starts from, where the model computes.
  struct Inputs {
    Sequences sequences;  // with tables there
    float *embeddings;    // of the tokens: [rows, hidden_size]
    const float *states;  // the same of `states`, where there are any
  };
  Inputs place(const Sequences &s, const uint8_t *tokens, const float *states);  // states: nullptr where there are none
  void layer(int32_t index, const Sequences &on_host, const Sequences &s, float *x);
  void head(int64_t work, const std::vector<float> &norm, int64_t rows, const float *states, float *logits);
  Buffer buffer() {
    return Buffer(compute_->device(), [this] { compute_->forget(); });
  }
  // Room for `rows` rows of `width` numbers, and for what multiply() may touch behind them.
  float *rows_of(Buffer &buffer, int64_t rows, int64_t width) {
    return buffer.reserve<float>(compute_->padded_rows(rows) * width);
  }
  void download(const float *from, float *to, int64_t count) const;

  const Weights &weights_;
  std::unique_ptr<Compute> compute_;
  Attention attention_;
  std::vector<char> staged_;  // inputs, before they are copied
  const Turn *turns_ = nullptr;
  Buffer turns_buffer_ = buffer(), inputs_ = buffer(), state_ = buffer(), normed_ = buffer(), query_ = buffer(),
         latent_ = buffer();
  Buffer latent_query_ = buffer(), q_ = buffer(), out_ = buffer(), latent_out_ = buffer(), value_ = buffer(), sum_ = buffer();
  Buffer gate_ = buffer(), up_ = buffer();
};

}  // namespace mlaverify::generate
