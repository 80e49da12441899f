// The model: from tokens to the scores of the next ones. Projections are absorbed: a head's query is brought to the space of the
// latents (W_UK), attention runs over the latents themselves, and its result is brought back (W_UV), so that nothing is kept of a
// token but its latent and its rotated key. A row's numbers have the same bits whatever rows are computed with it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generate/attention.h"
#include "generate/checkpoint.h"
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
    Matrix query, latent;             // q_proj, kv_a_proj_with_mqa
    std::vector<Matrix> to_latent;    // W_UK of each head: qk_nope_head_dim -> kv_lora_rank
    std::vector<Matrix> from_latent;  // W_UV of each head: kv_lora_rank -> v_head_dim
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

 private:
  Weights(ModelConfig c, Checkpoint in);
};

class Model {
 public:
  // `weights` must outlive it. Throws as Attention's constructor does.
  Model(const Weights &weights, const AttentionOptions &options);

  const ModelConfig &config() const { return weights_.config; }
  Attention &attention() { return attention_; }

  // States of the new tokens, tokens[rows], which go to states[rows][hidden_size]; their latents go to the caches.
  void forward(const Sequences &s, const uint8_t *tokens, float *states);
  // Scores of the token that follows each row: [rows][kVocabulary].
  void logits(int64_t rows, const float *states, float *logits);

  // The same of the MTP module. Row r takes the state that led to a token (of the model, or of this module), and that token; its slot in
  // the module's cache is that of the state. The result leads to the token after that. Only where config().has_mtp.
  void draft_forward(const Sequences &s, const uint8_t *tokens, const float *states_in, float *states);
  void draft_logits(int64_t rows, const float *states, float *logits);

 private:
  void layer(int32_t index, const Sequences &s, float *x);
  void head(const std::vector<float> &norm, int64_t rows, const float *states, float *logits);
  void multiply_rows(const std::vector<Product> &products, int64_t rows) const;
  void demand_positions(const Sequences &s) const;

  const Weights &weights_;
  int32_t threads_;
  Rotation rotation_;
  Attention attention_;
  std::vector<float> normed_, query_, latent_, latent_query_, latent_out_, value_, gate_, up_, sum_;
  std::vector<uint16_t> q_, cached_, out_;
};

}  // namespace mlaverify::generate
