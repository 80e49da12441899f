// What a checkpoint's config.json says about the model, and whether it is one that is understood here: a decoder over bytes with
// Multi-head Latent Attention, dense SwiGLU layers and tied embeddings, with or without one multi-token-prediction (MTP) module.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

namespace mlaverify::generate {

constexpr int32_t kVocabulary = 256;  // a token is a byte

struct ModelConfig {
  int32_t hidden_size = 0;
  int32_t num_layers = 0;        // without the MTP module
  int32_t num_heads = 0;         // H
  int32_t kv_lora_rank = 0;      // of the latent: Lv, the width of a value
  int32_t qk_nope_head_dim = 0;  // of a head's query, the part without a rotation
  int32_t qk_rope_head_dim = 0;  // the rotated part
  int32_t v_head_dim = 0;        // of a head's output
  int32_t intermediate_size = 0;
  int32_t max_positions = 0;
  bool has_mtp = false;
  double rms_norm_eps = 0;
  double rope_theta = 0;

  int32_t key_width() const { return kv_lora_rank + qk_rope_head_dim; }  // Lk: what the cache holds of a token
  int32_t query_width() const { return num_heads * (qk_nope_head_dim + qk_rope_head_dim); }
  float sm_scale() const { return 1 / std::sqrt(static_cast<float>(qk_nope_head_dim + qk_rope_head_dim)); }
};

// Throws io::FileError, with `path` and the key, for text that is no JSON object, a missing or impossible value, and every model of
// another kind: mixture of experts, quantised weights, other attention.
ModelConfig parse_config(const std::string &text, const std::string &path);

// Throws io::FileError also for a file that cannot be read.
ModelConfig read_config(const std::string &path);

}  // namespace mlaverify::generate
