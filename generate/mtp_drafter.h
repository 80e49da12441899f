// Drafts with the model's multi-token-prediction module: once over the accepted bytes with the model's own states, then again and again
// over its own states and guesses. Its latents lie in a layer of the caches of its own, on the same pages.
#pragma once

#include <map>

#include "generate/drafter.h"
#include "generate/model.h"

namespace mlaverify::generate {

class MtpDrafter : public Drafter {
 public:
  // `longest_step`: tokens of a verify step at most; pages for so many are there behind the cached ones. `model` must outlive this, and
  // have the module.
  MtpDrafter(Model &model, int32_t longest_step) : model_(model), longest_step_(longest_step) {}

  std::vector<std::string> draft(const LiveBatch &batch, int32_t count) override;
  void accepted(int64_t id, int32_t first, int32_t count, const float *states) override;
  void finished(int64_t id) override { pending_.erase(id); }

 private:
  // States that the module has not seen yet: those of the last bytes before the text's last one.
  int32_t pending(const LiveText &live) const;
  void catch_up(const LiveBatch &batch, std::size_t request);

  Model &model_;
  int32_t longest_step_;
  std::map<int64_t, std::vector<float>> pending_;
};

}  // namespace mlaverify::generate
