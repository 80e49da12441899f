// Generates text behind prompts, several at a time: draft, verify, accept or roll back. Continuous batching, pages and rollback are the
// Scheduler's; the text is the same for every drafter, step length and batch, byte by byte.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "generate/drafter.h"
#include "generate/model.h"
#include "scheduler.h"

namespace mlaverify::generate {

struct DecoderOptions {
  int32_t qlen = 4;        // tokens of a verify step at most: the last accepted one and qlen-1 drafted ones
  int32_t max_tokens = 1;  // bytes to generate for each prompt
  int32_t max_batch = 1;   // texts at a time
  int32_t page_size = 64;
  int32_t num_pages = 1;
  double temperature = 0;
  uint64_t seed = 1;
};

struct DecoderStats {
  int64_t steps = 0;          // verify steps
  int64_t request_steps = 0;  // sum over the steps of the texts in them
  int64_t tokens = 0;         // generated
  int64_t drafted = 0;        // bytes that a drafter offered
  int64_t accepted = 0;       // of these
  double prompt_seconds = 0;  // reading the prompts
  double draft_seconds = 0;
  double attention_seconds = 0;  // of drafting and verifying
  double seconds = 0;            // drafting, verifying, all between; without the prompts
};

class Decoder {
 public:
  // Sees the new bytes of a prompt's text; the first `drafted` of them were drafted.
  using Listener = std::function<void(std::size_t prompt, const std::string &bytes, std::size_t drafted)>;

  // `drafter` may be nullptr: one token a step. `model` must have caches for options.num_pages pages of options.page_size, and outlive
  // this, as must the drafter. Throws std::invalid_argument for a prompt that is empty, or too long for the model's positions or the pages.
  Decoder(Model &model, Drafter *drafter, const DecoderOptions &options, const std::vector<std::string> &prompts,
          Listener listener = nullptr);

  // Sees the attention of every verify step from now on, as Attention::observe() says.
  void observe(Attention::Observer observer) { observer_ = std::move(observer); }

  // One verify step, after new prompts are read. False when all texts are complete. Throws std::range_error where the model's scores are
  // not finite.
  bool step();

  const std::vector<std::string> &texts() const { return texts_; }  // prompts and what was generated behind them
  const DecoderStats &stats() const { return stats_; }

 private:
  LiveBatch live_batch();
  void read_prompts(const LiveBatch &batch);
  std::vector<std::string> drafts(const LiveBatch &batch);
  void verify(const LiveBatch &batch, const std::vector<std::string> &drafts);

  Model &model_;
  Drafter *drafter_;
  DecoderOptions options_;
  Listener listener_;
  Attention::Observer observer_;
  std::vector<std::string> texts_;
  cli::Scheduler scheduler_;
  std::vector<int32_t> block_table_;
  DecoderStats stats_;
};

// Throws std::invalid_argument, with its number, for a prompt that is empty or too long for the model's positions. The decoder does so
// itself; before caches for such a prompt are made it costs nothing.
void demand_prompts_fit(const std::vector<std::string> &prompts, const DecoderOptions &options, int32_t max_positions);

// Pages for the options.max_batch texts that need the most, so that none waits for a page; at most what 2^31 tokens need.
int32_t pages_for_batch(const DecoderOptions &options, const std::vector<std::string> &prompts);

}  // namespace mlaverify::generate
