// The weights of a model, from its folder.
#include <filesystem>

#include "generate/model.h"

namespace mlaverify::generate {
namespace {

std::vector<float> norm_weights(Checkpoint &in, const std::string &name, int32_t width) {
  return widened(in.tensor(name, {width}), width);
}

Matrix matrix(Checkpoint &in, const std::string &name, int32_t outputs, int32_t inputs) {
  return {outputs, inputs, in.tensor(name, {outputs, inputs})};
}

std::string file_in(const std::string &folder, const char *name) {
  if (!std::filesystem::is_directory(folder)) {
    throw io::FileError(folder, "is not a directory with config.json and model.safetensors");
  }
  return (std::filesystem::path(folder) / name).string();
}

}  // namespace

Weights::Layer::Layer(Checkpoint &in, const ModelConfig &c, const std::string &prefix)
    : input_norm(norm_weights(in, prefix + "input_layernorm.weight", c.hidden_size)),
      latent_norm(norm_weights(in, prefix + "self_attn.kv_a_layernorm.weight", c.kv_lora_rank)),
      post_attention_norm(norm_weights(in, prefix + "post_attention_layernorm.weight", c.hidden_size)),
      query(matrix(in, prefix + "self_attn.q_proj.weight", c.query_width(), c.hidden_size)),
      latent(matrix(in, prefix + "self_attn.kv_a_proj_with_mqa.weight", c.key_width(), c.hidden_size)),
      output(matrix(in, prefix + "self_attn.o_proj.weight", c.hidden_size, c.num_heads * c.v_head_dim)),
      gate(matrix(in, prefix + "mlp.gate_proj.weight", c.intermediate_size, c.hidden_size)),
      up(matrix(in, prefix + "mlp.up_proj.weight", c.intermediate_size, c.hidden_size)),
      down(matrix(in, prefix + "mlp.down_proj.weight", c.hidden_size, c.intermediate_size)) {
  // Rows of kv_b_proj: for each head W_UK, then W_UV. The one is used transposed: from a query to the space of the latents.
  const int64_t rank = c.kv_lora_rank, nope = c.qk_nope_head_dim, value = c.v_head_dim;
  const uint16_t *kv_b = in.tensor(prefix + "self_attn.kv_b_proj.weight", {c.num_heads * (nope + value), rank});
  to_latent = {c.num_heads, rank, nope, kv_b, {(nope + value) * rank, 1, rank}};
  from_latent = {c.num_heads, value, rank, kv_b + nope * rank, {(nope + value) * rank, rank, 1}};
}

Weights::Weights(const std::string &folder)
    : Weights{read_config(file_in(folder, "config.json")), Checkpoint(file_in(folder, "model.safetensors"))} {
}  // in this order

Weights::Weights(ModelConfig c, Checkpoint in)
    : config(c),
      embedding(widened(in.tensor("model.embed_tokens.weight", {kVocabulary, c.hidden_size}),
                        static_cast<int64_t>(kVocabulary) * c.hidden_size)),
      head(matrix(in, "model.embed_tokens.weight", kVocabulary, c.hidden_size)),
      norm(norm_weights(in, "model.norm.weight", c.hidden_size)) {
  const auto prefix = [](int32_t i) { return "model.layers." + std::to_string(i) + "."; };
  for (int32_t i = 0; i < c.num_layers + (c.has_mtp ? 1 : 0); ++i) layers.emplace_back(in, c, prefix(i));
  if (c.has_mtp) {
    const std::string behind = prefix(c.num_layers);
    mtp = {norm_weights(in, behind + "enorm.weight", c.hidden_size), norm_weights(in, behind + "hnorm.weight", c.hidden_size),
           norm_weights(in, behind + "shared_head.norm.weight", c.hidden_size),
           matrix(in, behind + "eh_proj.weight", c.hidden_size, 2 * c.hidden_size)};
  }
  in.demand_all_used();
}

}  // namespace mlaverify::generate
