// A model's config of any bytes is refused with a message, or all its numbers are in range.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "generate/config.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, std::size_t size) {
  try {
    const mlaverify::generate::ModelConfig c =
        mlaverify::generate::parse_config(std::string(reinterpret_cast<const char *>(data), size), "config");
    for (const int32_t n : {c.hidden_size, c.num_layers, c.num_heads, c.kv_lora_rank, c.qk_nope_head_dim, c.qk_rope_head_dim,
                            c.v_head_dim, c.intermediate_size, c.max_positions}) {
      if (n < 1 || n > 1 << 14) std::abort();
    }
    if (c.key_width() > 1024 || !(c.rms_norm_eps > 0) || !(c.rope_theta > 0)) std::abort();
  } catch (const mlaverify::io::FileError &error) {
    if (std::string(error.what()).rfind("config: ", 0) != 0) std::abort();
  }
  return 0;
}
