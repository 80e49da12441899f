#include "generate/decoder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "generate/sampler.h"
#include "rules/paging.h"

namespace mlaverify::generate {
namespace {

constexpr int32_t kChunk = 64;  // bytes of a prompt at a time

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string name_of(std::size_t prompt) { return "prompt " + std::to_string(prompt + 1); }

// A prompt as the scheduler's request, its line the prompt's number. The prompt's last byte is the first token of the first step.
cli::TraceRequest request_of(std::size_t prompt, const std::string &text, const DecoderOptions &options) {
  return {static_cast<int64_t>(prompt) + 1, 0, static_cast<int32_t>(text.size()) - 1, options.max_tokens};
}

std::vector<cli::TraceRequest> requests_of(const std::vector<std::string> &prompts, const DecoderOptions &options,
                                           int32_t max_positions) {
  demand_prompts_fit(prompts, options, max_positions);
  std::vector<cli::TraceRequest> requests;
  for (std::size_t i = 0; i < prompts.size(); ++i) requests.push_back(request_of(i, prompts[i], options));
  return requests;
}

// Among scores that overflowed there is no choice: the first byte, which a search for the greatest then gives, would look like text.
void demand_finite(const float *scores, std::size_t prompt, std::size_t position) {
  const float *bad = std::find_if(scores, scores + kVocabulary, [](float x) { return !std::isfinite(x); });
  if (bad == scores + kVocabulary) return;
  throw std::range_error(name_of(prompt) + ": the model's score of byte " + std::to_string(bad - scores) + " at position " +
                         std::to_string(position) + " is " + std::to_string(*bad) + ", must be finite: its weights overflow");
}

std::size_t prompt_of(const cli::LiveRequest &request) { return static_cast<std::size_t>(request.trace.line) - 1; }

}  // namespace

Decoder::Decoder(Model &model, Drafter *drafter, const DecoderOptions &options, const std::vector<std::string> &prompts,
                 Listener listener)
    : model_(model),
      drafter_(drafter),
      options_(options),
      listener_(std::move(listener)),
      texts_(prompts),
      scheduler_({options.qlen, options.max_batch, options.page_size, options.num_pages, 0, 1, options.seed},
                 requests_of(prompts, options, model.config().max_positions)) {
  for (const cli::Refusal &refusal : scheduler_.refused()) {
    throw std::invalid_argument(name_of(static_cast<std::size_t>(refusal.request.line) - 1) + ": " + refusal.why);
  }
}

bool Decoder::step() {
  if (!scheduler_.begin_step()) return false;
  const LiveBatch batch = live_batch();
  read_prompts(batch);
  const auto start = std::chrono::steady_clock::now();
  const double attention_before = model_.attention().seconds();
  verify(batch, drafts(batch));
  stats_.attention_seconds += model_.attention().seconds() - attention_before;
  stats_.seconds += seconds_since(start);
  return true;
}

LiveBatch Decoder::live_batch() {
  const auto width = static_cast<std::size_t>(scheduler_.max_pages());
  // Entries past a request's pages are no page of any pool, so that following one is an error.
  block_table_.assign(scheduler_.live().size() * width, std::numeric_limits<int32_t>::min());
  LiveBatch batch = {{}, block_table_.data(), scheduler_.max_pages()};
  for (const cli::LiveRequest &request : scheduler_.live()) {
    std::copy(request.pages.begin(), request.pages.end(),
              block_table_.begin() + static_cast<int64_t>(batch.texts.size() * width));
    batch.texts.push_back({request.trace.line, &texts_[prompt_of(request)]});
  }
  return batch;
}

void Decoder::read_prompts(const LiveBatch &batch) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<float> states(static_cast<std::size_t>(kChunk * model_.config().hidden_size));
  for (std::size_t b = 0; b < batch.texts.size(); ++b) {
    if (scheduler_.live()[b].steps > 0) continue;
    const LiveText &live = batch.texts[b];
    for (int32_t first = 0; first < live.cached(); first += kChunk) {
      const int32_t count = std::min(kChunk, live.cached() - first), end = first + count;
      const Sequences s = {1, count, batch.block_table + static_cast<int64_t>(b) * batch.table_width, batch.table_width, &end};
      model_.forward(s, reinterpret_cast<const uint8_t *>(live.text->data()) + first, states.data());
      if (drafter_ != nullptr) drafter_->accepted(live.id, first, count, states.data());
    }
  }
  stats_.prompt_seconds += seconds_since(start);
}

std::vector<std::string> Decoder::drafts(const LiveBatch &batch) {
  int32_t most = 0;  // drafts behind the last byte that is wanted are of no use
  for (const cli::LiveRequest &request : scheduler_.live()) most = std::max(most, request.remaining - 1);
  const int32_t count = std::min(most, options_.qlen - 1);
  if (drafter_ == nullptr || count == 0) return std::vector<std::string>(batch.texts.size());
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::string> drafts = drafter_->draft(batch, count);
  stats_.draft_seconds += seconds_since(start);
  return drafts;
}

void Decoder::verify(const LiveBatch &batch, const std::vector<std::string> &drafts) {
  std::size_t qlen = 1;
  for (const std::string &draft : drafts) qlen = std::max(qlen, draft.size() + 1);
  const std::size_t requests = batch.texts.size(), rows = requests * qlen;
  const auto hidden = static_cast<std::size_t>(model_.config().hidden_size);
  std::vector<uint8_t> tokens(rows);  // behind a shorter draft: zeros, computed and not looked at
  std::vector<int32_t> lengths;
  for (std::size_t b = 0; b < requests; ++b) {
    tokens[b * qlen] = static_cast<uint8_t>(batch.texts[b].text->back());
    std::copy(drafts[b].begin(), drafts[b].end(), tokens.begin() + static_cast<int64_t>(b * qlen + 1));
    lengths.push_back(batch.texts[b].cached() + static_cast<int32_t>(qlen));
  }
  const Sequences s = {static_cast<int32_t>(requests), static_cast<int32_t>(qlen), batch.block_table, batch.table_width,
                       lengths.data()};
  std::vector<float> states(rows * hidden), logits(rows * kVocabulary);
  model_.attention().observe(observer_);
  model_.forward(s, tokens.data(), states.data());
  model_.attention().observe(nullptr);
  model_.logits(s.rows(), states.data(), logits.data());

  ++stats_.steps;
  stats_.request_steps += static_cast<int64_t>(requests);
  std::vector<int32_t> gained;
  for (std::size_t b = 0; b < requests; ++b) {
    const cli::LiveRequest &live = scheduler_.live()[b];
    const std::string &draft = drafts[b];
    std::string &text = texts_[prompt_of(live)];
    const std::size_t before = text.size(), most = static_cast<std::size_t>(live.remaining);
    std::size_t agreed = 0;
    for (;;) {
      const cli::Random random(
          cli::stream_seed(cli::stream_seed(options_.seed, static_cast<uint64_t>(live.trace.line)), text.size()));
      const float *scores = logits.data() + (b * qlen + agreed) * kVocabulary;
      demand_finite(scores, prompt_of(live), text.size());
      const uint8_t token = pick_token(scores, options_.temperature, random);
      text += static_cast<char>(token);
      const bool right = agreed < draft.size() && static_cast<uint8_t>(draft[agreed]) == token;
      agreed += right ? 1 : 0;
      if (!right || text.size() - before == most) break;
    }
    const std::size_t count = text.size() - before;
    gained.push_back(static_cast<int32_t>(count));
    stats_.tokens += static_cast<int64_t>(count);
    stats_.drafted += static_cast<int64_t>(draft.size());
    stats_.accepted += static_cast<int64_t>(agreed);
    if (drafter_ != nullptr) {
      const auto first = static_cast<int32_t>(before) - 1;
      drafter_->accepted(live.trace.line, first, gained.back(), states.data() + b * qlen * hidden);
      if (count == most) drafter_->finished(live.trace.line);
    }
    if (listener_) listener_(prompt_of(live), text.substr(before), agreed);
  }
  scheduler_.finish_step(0, gained);
}

void demand_prompts_fit(const std::vector<std::string> &prompts, const DecoderOptions &options, int32_t max_positions) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) throw std::invalid_argument(name_of(i) + ": is empty, must have a byte at least");
    const std::size_t tokens = prompts[i].size() + static_cast<std::size_t>(options.max_tokens) +
                               static_cast<std::size_t>(options.qlen) - 2;  // in the caches during the last step
    if (tokens > static_cast<std::size_t>(max_positions)) {
      throw std::invalid_argument(name_of(i) + ": its " + std::to_string(prompts[i].size()) + " bytes, " +
                                  std::to_string(options.max_tokens) + " to generate and drafts behind them need " +
                                  std::to_string(tokens) + " positions, the model has " + std::to_string(max_positions));
    }
  }
}

int32_t pages_for_batch(const DecoderOptions &options, const std::vector<std::string> &prompts) {
  std::vector<int64_t> pages;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) continue;  // the decoder refuses it
    pages.push_back(rules::pages_for(cli::max_tokens(request_of(i, prompts[i], options), options.qlen), options.page_size));
  }
  std::sort(pages.begin(), pages.end(), std::greater<>());
  pages.resize(std::min(pages.size(), static_cast<std::size_t>(options.max_batch)));
  const int64_t sum = std::accumulate(pages.begin(), pages.end(), int64_t{0});
  return static_cast<int32_t>(std::clamp<int64_t>(sum, 1, std::numeric_limits<int32_t>::max() / options.page_size));
}

}  // namespace mlaverify::generate
