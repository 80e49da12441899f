#include "generate/config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "generate/small_file.h"
#include "io/safetensors.h"
#include "mlaverify/mlaverify.h"

namespace mlaverify::generate {
namespace {

using nlohmann::json;

constexpr int32_t kMaxSize = 1 << 14;  // of any number of the config: products of two fit 32 bits, of three 64
constexpr int kMaxDepth = 16;          // of nesting: messages print values, which recurses

class Reader {
 public:
  Reader(const json &config, const std::string &path) : config_(config), path_(path) {}

  [[noreturn]] void fail(const std::string &key, const std::string &wanted) const {
    const std::string was =
        config_.contains(key) ? config_[key].dump(-1, ' ', true, json::error_handler_t::replace) : std::string("missing");
    throw io::FileError(path_, key + ": " + (was.size() > 60 ? was.substr(0, 60) + "..." : was) + ", must be " + wanted);
  }

  bool present(const char *key) const { return config_.contains(key) && !config_[key].is_null(); }

  int32_t size(const char *key) const {
    const std::string wanted = "a whole number from 1 to " + std::to_string(kMaxSize);
    if (!present(key) || !config_[key].is_number_integer()) fail(key, wanted);
    const auto value = config_[key].get<int64_t>();
    if (value < 1 || value > kMaxSize) fail(key, wanted);
    return static_cast<int32_t>(value);
  }

  double positive(const char *key) const {
    if (!present(key) || !config_[key].is_number()) fail(key, "a positive number");
    const auto value = config_[key].get<double>();
    if (!(value > 0) || !std::isfinite(value)) fail(key, "a positive number");
    return value;
  }

  // A feature that is not supported: it must be absent, or null.
  void absent(const char *key, const char *why) const {
    if (present(key)) fail(key, std::string("absent or null: ") + why);
  }

  // A value that everything here builds on; `otherwise` is what its absence means.
  void fixed(const char *key, const json &value, const json &otherwise, const char *why) const {
    if ((present(key) ? config_[key] : otherwise) != value) fail(key, value.dump() + ": " + why);
  }

 private:
  const json &config_;
  const std::string &path_;
};

// Discarded for anything but JSON. Throws for a key that appears twice, where readers differ on which counts, and for deep nesting.
json parsed(const std::string &text, const std::string &path) {
  std::set<std::string> keys;
  const auto look = [&](int depth, json::parse_event_t event, const json &value) {
    if (depth > kMaxDepth) throw io::FileError(path, "nests deeper than " + std::to_string(kMaxDepth) + " levels");
    if (event == json::parse_event_t::key && depth == 1 && !keys.insert(value.get<std::string>()).second) {
      throw io::FileError(path, io::quote(value.get<std::string>()) + " appears twice");
    }
    return true;
  };
  return json::parse(text, look, false);
}

}  // namespace

ModelConfig parse_config(const std::string &text, const std::string &path) {
  const json config = parsed(text, path);
  if (config.is_discarded() || !config.is_object()) throw io::FileError(path, "is not a JSON object");
  const Reader in(config, path);

  in.absent("quantization_config", "quantised weights are not supported");
  in.absent("n_routed_experts", "mixture-of-experts layers are not supported");
  in.absent("q_lora_rank", "queries projected in two steps are not supported");
  in.absent("rope_scaling", "scaled rotations are not supported");
  in.absent("rope_parameters", "only rope_theta is read, scaled rotations are not supported");
  in.absent("sliding_window", "attention to a window of keys is not supported");
  in.absent("index_topk", "attention to chosen keys is not supported");
  in.absent("attn_logit_softcapping", "capped scores are not supported");
  in.absent("final_logit_softcapping", "capped scores are not supported");
  in.fixed("partial_rotary_factor", 1, 1, "qk_rope_head_dim says what is rotated");
  in.fixed("mlp_bias", false, false, "biases are not supported");
  if (!in.present("kv_lora_rank")) in.fail("kv_lora_rank", "there: other attention than MLA is not supported");
  in.fixed("attention_bias", false, false, "biases are not supported");
  in.fixed("hidden_act", "silu", nullptr, "no other activation is supported");
  in.fixed("rope_interleave", true, true, "rotations pair neighbours");
  in.fixed("tie_word_embeddings", true, false, "an output embedding of its own is not supported");
  in.fixed("vocab_size", kVocabulary, nullptr, "a token is a byte");

  ModelConfig c;
  c.hidden_size = in.size("hidden_size");
  c.num_layers = in.size("num_hidden_layers");
  c.num_heads = in.size("num_attention_heads");
  c.kv_lora_rank = in.size("kv_lora_rank");
  c.qk_nope_head_dim = in.size("qk_nope_head_dim");
  c.qk_rope_head_dim = in.size("qk_rope_head_dim");
  c.v_head_dim = in.size("v_head_dim");
  c.intermediate_size = in.size("intermediate_size");
  c.max_positions = in.size("max_position_embeddings");
  c.rms_norm_eps = in.positive("rms_norm_eps");
  c.rope_theta = in.positive("rope_theta");
  if (in.present("num_nextn_predict_layers") && config["num_nextn_predict_layers"] != 0) {
    in.fixed("num_nextn_predict_layers", 1, 0, "no more than one MTP module is supported");
    c.has_mtp = true;
  }

  if (c.rms_norm_eps > 1) in.fail("rms_norm_eps", "at most 1");  // far beyond, all states become 0, whatever the weights
  if (c.rope_theta < 1) in.fail("rope_theta", "at least 1");     // far below, angles are infinite
  const std::string multiple = "a multiple of 8";
  if (c.kv_lora_rank % 8 != 0) in.fail("kv_lora_rank", multiple);
  if (c.qk_rope_head_dim % 8 != 0) in.fail("qk_rope_head_dim", multiple);
  if (c.key_width() > MLAVERIFY_MAX_HEAD_DIM) {
    in.fail("kv_lora_rank", "with qk_rope_head_dim at most " + std::to_string(MLAVERIFY_MAX_HEAD_DIM));
  }
  return c;
}

ModelConfig read_config(const std::string &path) { return parse_config(read_small_file(path), path); }

}  // namespace mlaverify::generate
