// Prompt lookup: what followed the last bytes of the text when they stood in it before (Saxena, "Prompt Lookup Decoding", 2023).
#pragma once

#include "generate/drafter.h"

namespace mlaverify::generate {

// What followed the longest end of `text` that occurs in it before, the latest such place; up to `count` bytes, which may run on into
// bytes of the draft itself. Empty where no end of 3 bytes occurs again.
std::string lookup(const std::string &text, int32_t count);

class NgramDrafter : public Drafter {
 public:
  std::vector<std::string> draft(const LiveBatch &batch, int32_t count) override;
};

}  // namespace mlaverify::generate
