#include "api/env.h"
#include "backends/backend.h"

namespace mlaverify {
namespace {

// CUDA device tensors are legal; this build has no kernels for them.
class NoCudaBackend final : public Backend {
 public:
  mlaverify_backend id() const override { return MLAVERIFY_BACKEND_CUDA; }
  const char *name() const override { return "cuda"; }
  const Availability &availability() const override {
    static const Availability a = {{MLAVERIFY_ERR_UNSUPPORTED, "this build has no CUDA support"}, ""};
    return a;
  }
  std::string refusal(const Call &) const override { return availability().status.message; }
  std::size_t workspace_bytes(const Call &) const override { return 0; }
  Status run(const Call &) const override { return availability().status; }
  Status warmup(const Call &, const int32_t *, int32_t) const override { return availability().status; }
};

Status try_backend(const Backend &b, const Call &call) {
  const Status &available = b.availability().status;
  if (!available.ok()) return available;
  const std::string refusal = b.refusal(call);
  return refusal.empty() ? Status{} : Status{MLAVERIFY_ERR_UNSUPPORTED, refusal};
}

}  // namespace

const std::vector<const Backend *> &backends() {
  static const NoCudaBackend no_cuda;
  static const std::vector<const Backend *> list = {&no_cuda, &cpu_backend(), &reference_backend()};
  return list;
}

Status choose_backend(const Call &call, const Backend **backend) {
  const bool automatic = call.backend == MLAVERIFY_BACKEND_AUTO;
  const std::string &forced = env_backend();
  std::string reasons;
  bool known = false;
  for (const Backend *b : backends()) {
    if (automatic ? !forced.empty() && forced != b->name() : call.backend != b->id()) continue;
    known = true;
    const Status status = try_backend(*b, call);
    if (status.ok()) {
      *backend = b;
      return {};
    }
    if (status.code != MLAVERIFY_ERR_UNSUPPORTED) return status;
    reasons += (reasons.empty() ? "" : "; ") + std::string(b->name()) + ": " + status.message;
  }
  if (!known) {  // validate() knows every number, so this is the environment
    return {MLAVERIFY_ERR_INVALID_ARGUMENT, "MLAVERIFY_BACKEND: got '" + forced + "', must be cuda, cpu or reference"};
  }
  return {MLAVERIFY_ERR_UNSUPPORTED, "no backend can do this call: " + reasons};
}

}  // namespace mlaverify
