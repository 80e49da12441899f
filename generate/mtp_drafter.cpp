#include "generate/mtp_drafter.h"

#include <algorithm>

#include "generate/sampler.h"

namespace mlaverify::generate {
namespace {

constexpr int32_t kChunk = 64;  // bytes of a prompt at a time

uint8_t token(const LiveText &live, int32_t position) {
  return static_cast<uint8_t>((*live.text)[static_cast<std::size_t>(position)]);
}

}  // namespace

void MtpDrafter::accepted(int64_t id, int32_t /*first*/, int32_t count, const float *states) {
  std::vector<float> &pending = pending_[id];
  pending.insert(pending.end(), states, states + static_cast<int64_t>(count) * model_.config().hidden_size);
}

int32_t MtpDrafter::pending(const LiveText &live) const {
  const auto found = pending_.find(live.id);
  return found == pending_.end() ? 0 : static_cast<int32_t>(found->second.size()) / model_.config().hidden_size;
}

// Takes all pending states of a request but the last one, alone: those of a prompt.
void MtpDrafter::catch_up(const LiveBatch &batch, std::size_t request) {
  const LiveText &live = batch.texts[request];
  const int64_t hidden = model_.config().hidden_size;
  std::vector<float> &states = pending_[live.id];
  const int32_t begin = live.cached() - pending(live);
  std::vector<uint8_t> tokens(kChunk);
  std::vector<float> out(static_cast<std::size_t>(kChunk * hidden));
  for (int32_t first = begin; first < live.cached() - 1; first += kChunk) {
    const int32_t count = std::min(kChunk, live.cached() - 1 - first), end = first + count;
    for (int32_t i = 0; i < count; ++i) tokens[static_cast<std::size_t>(i)] = token(live, first + i + 1);
    const Sequences s = {1, count, batch.block_table + static_cast<int64_t>(request) * batch.table_width, batch.table_width,
                         &end};
    model_.draft_forward(s, tokens.data(), states.data() + (first - begin) * hidden, out.data());
  }
  states.erase(states.begin(), states.end() - hidden);
}

std::vector<std::string> MtpDrafter::draft(const LiveBatch &batch, int32_t count) {
  const int64_t hidden = model_.config().hidden_size;
  const std::size_t requests = batch.texts.size();
  int32_t rows = 1;  // of a request in the first pass
  for (std::size_t b = 0; b < requests; ++b) {
    if (pending(batch.texts[b]) > longest_step_) catch_up(batch, b);
    rows = std::max(rows, pending(batch.texts[b]));
  }

  // Behind its pending rows a request has rows of zeros, in slots that its own drafts overwrite.
  std::vector<uint8_t> tokens(requests * static_cast<std::size_t>(rows));
  std::vector<float> states(tokens.size() * static_cast<std::size_t>(hidden));
  std::vector<int32_t> lengths;
  for (std::size_t b = 0; b < requests; ++b) {
    const LiveText &live = batch.texts[b];
    const int32_t known = pending(live), first = live.cached() - known;
    const std::size_t row = b * static_cast<std::size_t>(rows);
    for (int32_t i = 0; i < known; ++i) tokens[row + static_cast<std::size_t>(i)] = token(live, first + i + 1);
    if (known > 0) {
      std::copy_n(pending_[live.id].begin(), known * hidden, states.begin() + static_cast<int64_t>(row) * hidden);
      pending_[live.id].clear();
    }
    lengths.push_back(first + rows);
  }
  Sequences s = {static_cast<int32_t>(requests), rows, batch.block_table, batch.table_width, lengths.data()};
  model_.draft_forward(s, tokens.data(), states.data(), states.data());

  // From here on one row a request: the last known one, then its drafts. A text of one byte has no state to draft from.
  std::vector<std::string> drafts(requests);
  std::vector<float> logits(requests * kVocabulary);
  for (std::size_t b = 0; b < requests; ++b) {
    const int32_t known = batch.texts[b].cached() - (lengths[b] - rows);
    const int64_t last = static_cast<int64_t>(b) * rows + std::max(known, 1) - 1;
    std::copy_n(states.begin() + last * hidden, hidden, states.begin() + static_cast<int64_t>(b) * hidden);
    lengths[b] = batch.texts[b].cached();
  }
  s.qlen = 1;
  tokens.resize(requests);
  for (int32_t i = 0;; ++i) {
    model_.draft_logits(s.batch, states.data(), logits.data());
    for (std::size_t b = 0; b < requests; ++b) {
      tokens[b] = best_token(logits.data() + b * kVocabulary);
      if (batch.texts[b].cached() > 0) drafts[b] += static_cast<char>(tokens[b]);
      ++lengths[b];
    }
    if (i + 1 == count) return drafts;
    model_.draft_forward(s, tokens.data(), states.data(), states.data());
  }
}

}  // namespace mlaverify::generate
