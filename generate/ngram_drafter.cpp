#include "generate/ngram_drafter.h"

namespace mlaverify::generate {

std::string lookup(const std::string &text, int32_t count) {
  constexpr std::size_t shortest = 3, longest = 32;
  std::size_t best = 0, found = 0;  // length of the match, and where it ends
  for (std::size_t end = text.size(); end-- > 1;) {
    std::size_t same = 0;
    while (same < longest && same < end && text[end - 1 - same] == text[text.size() - 1 - same]) ++same;
    if (same > best) {
      best = same;
      found = end;
    }
  }
  if (best < shortest) return "";
  std::string all = text;
  for (int32_t i = 0; i < count; ++i) all += all[found + static_cast<std::size_t>(i)];
  return all.substr(text.size());
}

std::vector<std::string> NgramDrafter::draft(const LiveBatch &batch, int32_t count) {
  std::vector<std::string> drafts;
  for (const LiveText &live : batch.texts) drafts.push_back(lookup(*live.text, count));
  return drafts;
}

}  // namespace mlaverify::generate
