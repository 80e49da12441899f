// The parts of `mlaverify generate`, each alone: products, choice of a token, prompt lookup, config reader.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "generate/buffer.h"
#include "generate/compute.h"
#include "generate/config.h"
#include "generate/layers.h"
#include "generate/matrix.h"
#include "generate/ngram_drafter.h"
#include "generate/product_isa.h"
#include "generate/sampler.h"
#include "io/safetensors.h"
#include "random.h"
#ifdef MLAVERIFY_X86
#include "cpu/features.h"
#endif

namespace mlaverify::generate {
namespace {

// ---- Memory -----------------------------------------------------------------------------------------------------------

#ifndef __SANITIZE_ADDRESS__  // where an allocation that fails ends the program
TEST(Buffer, HoldsNothingAfterItCouldNotGrow) {
  Buffer buffer(MLAVERIFY_HOST);
  buffer.reserve<float>(1);
  EXPECT_THROW(buffer.reserve<char>(int64_t{1} << 62), std::bad_alloc);
  auto *numbers = buffer.reserve<float>(8);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(std::isnan(numbers[i])) << i;  // new memory, not what was freed
  std::fill_n(numbers, 8, 1.0f);
  EXPECT_EQ(buffer.reserve<float>(8), numbers);
}
#endif

// ---- Products ---------------------------------------------------------------------------------------------------------

struct ProductCase {
  int64_t outputs, inputs, rows;
  std::vector<uint16_t> weights;
  std::vector<float> x;
};

ProductCase product_case(uint64_t seed, int64_t outputs, int64_t inputs, int64_t rows) {
  ProductCase c = {outputs, inputs, rows, {}, {}};
  cli::Random random(seed);
  for (int64_t i = 0; i < outputs * inputs; ++i) c.weights.push_back(rules::float_to_bf16(random.normal()));
  for (int64_t i = 0; i < rows * inputs; ++i) c.x.push_back(random.normal());
  return c;
}

// The rule, as it stands in matrix.h.
std::vector<float> by_the_rule(const ProductCase &c) {
  std::vector<float> out;
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t n = 0; n < c.outputs; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < c.inputs; ++k) {
        const float product = c.x[static_cast<std::size_t>(r * c.inputs + k)] *
                              rules::bf16_to_float(c.weights[static_cast<std::size_t>(n * c.inputs + k)]);
        sum += product;
      }
      out.push_back(sum);
    }
  }
  return out;
}

bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

RC_GTEST_PROP(Product, IsTheSumInItsOrderBitForBit, ()) {
  const auto outputs = *rc::gen::inRange<int64_t>(1, 100), inputs = *rc::gen::inRange<int64_t>(1, 80);
  const auto rows = *rc::gen::inRange<int64_t>(1, 12);
  const ProductCase c = product_case(*rc::gen::arbitrary<uint64_t>(), outputs, inputs, rows);
  const Matrix matrix(outputs, inputs, c.weights.data());
  const std::vector<float> want = by_the_rule(c);
  const float unwritten = std::nanf("");

  // All rows at once, beside another product, with a gap between the rows of the result, which stays as it was.
  const int64_t stride = outputs + 3;
  std::vector<float> wide(static_cast<std::size_t>(rows * stride), unwritten), other(want.size(), unwritten), got;
  multiply({{&matrix, c.x.data(), inputs, wide.data(), stride}, {&matrix, c.x.data(), inputs, other.data(), outputs}}, rows,
           *rc::gen::inRange(1, 4));
  for (int64_t r = 0; r < rows; ++r) {
    const float *row = wide.data() + r * stride;
    got.insert(got.end(), row, row + outputs);
    for (int64_t i = outputs; i < stride; ++i) RC_ASSERT(std::isnan(row[i]));
  }
  RC_ASSERT(same_bits(got, want));
  RC_ASSERT(same_bits(other, want));

  // Each row alone.
  for (int64_t r = 0; r < rows; ++r) {
    multiply({{&matrix, c.x.data() + r * inputs, inputs, got.data() + r * outputs, outputs}}, 1, 1);
  }
  RC_ASSERT(same_bits(got, want));
}

TEST(Product, EveryInstructionSetGivesTheSameBits) {
  std::vector<MultiplyPanel> kernels = {panel_product_portable()};
#ifdef MLAVERIFY_X86
  if (cpu::missing_for(cpu::IsaKind::avx2).empty()) kernels.push_back(panel_product_avx2());
  if (cpu::missing_for(cpu::IsaKind::avx512).empty()) kernels.push_back(panel_product_avx512());
#endif
  for (int64_t outputs : {1, 15, 16, 17, 32}) {
    for (int64_t rows : {1, 2, 3, 4, 5, 9}) {
      const ProductCase c = product_case(static_cast<uint64_t>(outputs), outputs, 70, rows);
      const Matrix matrix(outputs, c.inputs, c.weights.data());
      const std::vector<float> want = by_the_rule(c);
      for (std::size_t i = 0; i < kernels.size(); ++i) {
        std::vector<float> got(want.size(), std::nanf(""));
        kernels[i](c.inputs, outputs, matrix.panel(0, 0), rows, c.x.data(), c.inputs, got.data(), outputs);
        EXPECT_TRUE(same_bits(got, want)) << outputs << " outputs, " << rows << " rows, kernel " << i;
      }
    }
  }
}

TEST(Product, ThreadsDoNotShow) {
  const ProductCase c = product_case(3, 700, 300, 33);  // large enough for several
  const Matrix matrix(c.outputs, c.inputs, c.weights.data());
  for (int threads : {1, 2, 3}) {
    std::vector<float> got(static_cast<std::size_t>(c.rows * c.outputs), std::nanf(""));
    multiply({{&matrix, c.x.data(), c.inputs, got.data(), c.outputs}}, c.rows, threads);
    EXPECT_TRUE(same_bits(got, by_the_rule(c))) << threads;
  }
}

TEST(Product, TakesATransposedMatrix) {
  const ProductCase c = product_case(4, 40, 24, 2);
  std::vector<uint16_t> transposed(c.weights.size());
  for (int64_t n = 0; n < c.outputs; ++n) {
    for (int64_t k = 0; k < c.inputs; ++k) {
      transposed[static_cast<std::size_t>(k * c.outputs + n)] = c.weights[static_cast<std::size_t>(n * c.inputs + k)];
    }
  }
  const Matrix matrix(1, c.outputs, c.inputs, transposed.data(), {0, 1, c.outputs});
  std::vector<float> got(static_cast<std::size_t>(c.rows * c.outputs));
  multiply({{&matrix, c.x.data(), c.inputs, got.data(), c.outputs}}, c.rows, 1);
  EXPECT_TRUE(same_bits(got, by_the_rule(c)));
}

// ---- Choice of a token ------------------------------------------------------------------------------------------------

TEST(PickToken, TheFirstOfTheBest) {
  std::array<float, kVocabulary> logits = {};
  EXPECT_EQ(best_token(logits.data()), 0);
  logits[7] = logits[9] = 2;
  EXPECT_EQ(best_token(logits.data()), 7);
  EXPECT_EQ(pick_token(logits.data(), 0, cli::Random(1)), 7);
}

TEST(PickToken, DrawsInProportion) {
  std::array<float, kVocabulary> logits;
  logits.fill(-1000);
  logits[3] = 1;  // e^2 : 1 at temperature 1, e : 1 at temperature 2
  logits[200] = -1;
  constexpr int draws = 20000;
  for (const double temperature : {1.0, 2.0}) {
    int threes = 0;
    for (int i = 0; i < draws; ++i) {
      const uint8_t token = pick_token(logits.data(), temperature, cli::Random(static_cast<uint64_t>(i) * 7919 + 1));
      ASSERT_TRUE(token == 3 || token == 200);
      threes += token == 3 ? 1 : 0;
    }
    const double odds = std::exp(2 / temperature), want = odds / (odds + 1);
    EXPECT_NEAR(static_cast<double>(threes) / draws, want, 5 * std::sqrt(want * (1 - want) / draws));
  }
}

// ---- Prompt lookup ----------------------------------------------------------------------------------------------------

TEST(Lookup, GoesOnAsBefore) {
  EXPECT_EQ(lookup("the king said to the k", 4), "ing ");
  EXPECT_EQ(lookup("abcX abcY abc", 1), "Y");      // the latest of equal ones
  EXPECT_EQ(lookup("1 abcX abcY 1 abc", 1), "X");  // the longest
  EXPECT_EQ(lookup("ababab", 5), "ababa");         // on into its own draft
  EXPECT_EQ(lookup("xyz ab ab", 2), " a");
  EXPECT_EQ(lookup("xyzab-ab", 2), "");  // too short a match
  EXPECT_EQ(lookup("abc", 3), "");
  EXPECT_EQ(lookup("a", 3), "");
}

// ---- Norm and rotation ------------------------------------------------------------------------------------------------

TEST(Layers, Rotation) {
  const std::vector<Turn> turns = turns_of(4, 3, 100);
  const std::array<float, 4> x = {1, 0, 0, 2};
  const auto turned = [&](int32_t position) {
    std::array<float, 4> out = {};
    for (int32_t i = 0; i < 4; ++i) out[static_cast<std::size_t>(i)] = rotated(turns.data(), 4, position, x.data(), i);
    return out;
  };
  EXPECT_EQ(turned(0), x);
  const std::array<float, 4> y = turned(2);  // by 2 and by 2 / 10
  EXPECT_NEAR(y[0], std::cos(2.0), 1e-6);
  EXPECT_NEAR(y[1], std::sin(2.0), 1e-6);
  EXPECT_NEAR(y[2], -2 * std::sin(0.2), 1e-6);
  EXPECT_NEAR(y[3], 2 * std::cos(0.2), 1e-6);
}

TEST(Layers, Norm) {
  std::array<float, 6> x = {3, 4, 9, 1, 2, 9};  // two rows with a gap
  const std::vector<float> weight = {1, 2};
  compute_on_host(1)->run(Norm{&weight, 0, x.data(), 3, x.data(), 3}, 2);
  EXPECT_NEAR(x[0], 3 / std::sqrt(12.5), 1e-6);
  EXPECT_NEAR(x[1], 8 / std::sqrt(12.5), 1e-6);
  EXPECT_NEAR(x[3], 1 / std::sqrt(2.5), 1e-6);
  EXPECT_NEAR(x[4], 4 / std::sqrt(2.5), 1e-6);
  EXPECT_EQ(x[2], 9);
  EXPECT_EQ(x[5], 9);
}

// ---- Config -----------------------------------------------------------------------------------------------------------

const std::string kGood = R"({"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_nextn_predict_layers": 1,
  "num_attention_heads": 3, "kv_lora_rank": 40, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 10,
  "intermediate_size": 50, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500, "max_position_embeddings": 300,
  "tie_word_embeddings": true})";

std::string replaced(const std::string &from, const std::string &to) {
  std::string text = kGood;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string &text) {
  try {
    parse_config(text, "config.json");
  } catch (const io::FileError &e) {
    return e.what();
  }
  return "";
}

TEST(Config, Good) {
  const ModelConfig c = parse_config(kGood, "config.json");
  EXPECT_EQ(c.key_width(), 56);
  EXPECT_EQ(c.query_width(), 120);
  EXPECT_TRUE(c.has_mtp);
  EXPECT_DOUBLE_EQ(c.rope_theta, 500);
  EXPECT_FLOAT_EQ(c.sm_scale(), 1 / std::sqrt(40.0F));
  EXPECT_FALSE(parse_config(replaced("_layers\": 1", "_layers\": 0"), "").has_mtp);
}

TEST(Config, RefusedWithAReason) {
  const std::string more = "\"vocab_size\": 256, ";
  EXPECT_EQ(refusal("[]"), "config.json: is not a JSON object");
  EXPECT_EQ(refusal("{"), "config.json: is not a JSON object");
  EXPECT_EQ(refusal(replaced("\"hidden_size\": 64, ", "")),
            "config.json: hidden_size: missing, must be a whole number from 1 to 16384");
  EXPECT_EQ(refusal(replaced("64", "-1")), "config.json: hidden_size: -1, must be a whole number from 1 to 16384");
  EXPECT_EQ(refusal(replaced("64", "6.5")), "config.json: hidden_size: 6.5, must be a whole number from 1 to 16384");
  EXPECT_EQ(refusal(replaced("64", "18446744073709551615")),
            "config.json: hidden_size: 18446744073709551615, must be a whole number from 1 to 16384");
  EXPECT_EQ(refusal(replaced("\"kv_lora_rank\": 40, ", "")),
            "config.json: kv_lora_rank: missing, must be there: other attention than MLA is not supported");
  EXPECT_EQ(refusal(replaced("40", "44")), "config.json: kv_lora_rank: 44, must be a multiple of 8");
  EXPECT_EQ(refusal(replaced("40", "1016")), "config.json: kv_lora_rank: 1016, must be with qk_rope_head_dim at most 1024");
  EXPECT_EQ(refusal(replaced(more, more + "\"n_routed_experts\": 8, ")),
            "config.json: n_routed_experts: 8, must be absent or null: mixture-of-experts layers are not supported");
  EXPECT_EQ(refusal(replaced(more, more + "\"quantization_config\": {\"bits\": 8}, ")),
            "config.json: quantization_config: {\"bits\":8}, must be absent or null: quantised weights are not supported");
  EXPECT_EQ(refusal(replaced(more, more + "\"q_lora_rank\": 16, ")),
            "config.json: q_lora_rank: 16, must be absent or null: queries projected in two steps are not supported");
  EXPECT_EQ(refusal(replaced(more, more + "\"sliding_window\": 4096, ")),
            "config.json: sliding_window: 4096, must be absent or null: attention to a window of keys is not supported");
  EXPECT_EQ(refusal(replaced(more, more + "\"index_topk\": 2048, ")),
            "config.json: index_topk: 2048, must be absent or null: attention to chosen keys is not supported");
  for (const std::string key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    EXPECT_EQ(refusal(replaced(more, more + "\"" + key + "\": 30.0, ")),
              "config.json: " + key + ": 30.0, must be absent or null: capped scores are not supported");
    EXPECT_EQ(refusal(replaced(more, more + "\"" + key + "\": null, ")), "");
  }
  EXPECT_EQ(refusal(replaced(more, more + "\"partial_rotary_factor\": 0.5, ")),
            "config.json: partial_rotary_factor: 0.5, must be 1: qk_rope_head_dim says what is rotated");
  EXPECT_EQ(refusal(replaced(more, more + "\"partial_rotary_factor\": 1.0, ")), "");
  EXPECT_EQ(refusal(replaced(more, more + "\"mlp_bias\": true, ")),
            "config.json: mlp_bias: true, must be false: biases are not supported");
  EXPECT_EQ(refusal(replaced("500", "0.5")), "config.json: rope_theta: 0.5, must be at least 1");
  EXPECT_EQ(refusal(replaced("256", "32000")), "config.json: vocab_size: 32000, must be 256: a token is a byte");
  EXPECT_EQ(refusal(replaced("silu", "gelu")),
            "config.json: hidden_act: \"gelu\", must be \"silu\": no other activation is supported");
  EXPECT_EQ(refusal(replaced("1e-5", "0")), "config.json: rms_norm_eps: 0, must be a positive number");
  EXPECT_EQ(refusal(replaced("_layers\": 1", "_layers\": 2")),
            "config.json: num_nextn_predict_layers: 2, must be 1: no more than one MTP module is supported");
  EXPECT_EQ(refusal(replaced("true", "false")),
            "config.json: tie_word_embeddings: false, must be true: an output embedding of its own is not supported");
}

TEST(Config, NestedDeeplyOrGivenTwice) {
  // As deep as a megabyte allows: printing such a value would take more stack than there is.
  const std::string deep = std::string(400'000, '[') + std::string(400'000, ']');
  EXPECT_EQ(refusal(deep), "config.json: nests deeper than 16 levels");
  EXPECT_EQ(refusal(replaced("64", deep)), "config.json: nests deeper than 16 levels");
  EXPECT_EQ(refusal(replaced("\"vocab_size\"", "\"quantization_config\": " + deep + ", \"vocab_size\"")),
            "config.json: nests deeper than 16 levels");
  EXPECT_EQ(refusal(replaced("64", "64, \"hidden_size\": 128")), "config.json: \"hidden_size\" appears twice");
  // What is not looked at may nest and repeat within reason.
  EXPECT_EQ(refusal(replaced("64", "64, \"other\": {\"a\": 1, \"a\": [[[2]]]}")), "");
}

// Any text at all: a config whose numbers are in range, or a refusal that starts with the path.
void check_any(const std::string &text) {
  try {
    const ModelConfig c = parse_config(text, "config.json");
    for (int32_t size : {c.hidden_size, c.num_layers, c.num_heads, c.kv_lora_rank, c.qk_nope_head_dim, c.qk_rope_head_dim,
                         c.v_head_dim, c.intermediate_size, c.max_positions}) {
      RC_ASSERT(size >= 1 && size <= 1 << 14);
    }
    RC_ASSERT(c.key_width() <= 1024 && c.rms_norm_eps > 0 && c.rope_theta > 0);
  } catch (const io::FileError &e) {
    RC_ASSERT(std::string(e.what()).rfind("config.json: ", 0) == 0);
  }
}

RC_GTEST_PROP(Config, BytesChanged, ()) {
  std::string text = kGood;
  const int changes = *rc::gen::inRange(1, 4);
  for (int i = 0; i < changes; ++i) {
    const auto at = *rc::gen::inRange<std::size_t>(0, text.size());
    const auto c = *rc::gen::arbitrary<char>();
    switch (*rc::gen::inRange(0, 3)) {
      case 0: text[at] = c; break;
      case 1: text.insert(at, 1, c); break;
      default: text.erase(at, *rc::gen::inRange<std::size_t>(1, 20)); break;
    }
    if (text.empty()) text = " ";
  }
  check_any(text);
}

RC_GTEST_PROP(Config, ValuesChanged, ()) {
  static const std::array<const char *, 16> values = {"null",  "true",  "-1",  "0",          "1",          "8",
                                                      "1e300", "\"8\"", "[8]", "{}",         "2147483648", "1e-400",
                                                      "16384", "16385", "0.5", "\"\\ud800\""};
  std::string text = kGood;
  const int changes = *rc::gen::inRange(1, 4);
  for (int i = 0; i < changes; ++i) {
    std::vector<std::size_t> colons;
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (text[at] == ':') colons.push_back(at);
    }
    const std::size_t begin = *rc::gen::elementOf(colons) + 1, end = text.find_first_of(",}", begin);
    text.replace(begin, end - begin, *rc::gen::elementOf(values));
  }
  check_any(text);
}

RC_GTEST_PROP(Config, AnyBytes, (const std::string &text)) { check_any(text); }

}  // namespace
}  // namespace mlaverify::generate
