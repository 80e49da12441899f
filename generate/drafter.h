// Guesses of the bytes that follow a text. They decide how fast text is generated, never which text: the model checks every one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mlaverify::generate {

struct LiveText {
  int64_t id;               // of the request, the same in every call
  const std::string *text;  // prompt and accepted bytes
  int32_t cached() const {
    return static_cast<int32_t>(text->size()) - 1;
  }  // the model has the latents of all but the last byte
};

struct LiveBatch {
  std::vector<LiveText> texts;
  const int32_t *block_table;  // [texts.size(), table_width]: pages for cached() + the longest verify step
  int64_t table_width;
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  // For each text at most `count` >= 1 bytes that may follow it.
  virtual std::vector<std::string> draft(const LiveBatch &batch, int32_t count) = 0;

  // The model's states of the `count` bytes of the text from `first` on, [count, hidden_size]; in order, each once, accepted bytes only.
  virtual void accepted(int64_t /*id*/, int32_t /*first*/, int32_t /*count*/, const float * /*states*/) {}
  virtual void finished(int64_t /*id*/) {}
};

}  // namespace mlaverify::generate
