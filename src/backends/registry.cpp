#include "api/env.h"
#include "backends/backend.h"
#include "backends/launch_facts.h"

namespace mlaverify {
namespace {

#if !defined(MLAVERIFY_CUDA)
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
#endif

Status try_backend(const Backend &b, const Call &call) {
  const Status &available = b.availability().status;
  if (!available.ok()) return available;
  const std::string refusal = b.refusal(call);
  return refusal.empty() ? Status{} : Status{MLAVERIFY_ERR_UNSUPPORTED, refusal};
}

}  // namespace

#if !defined(MLAVERIFY_CUDA)
Status gpu_kind(int32_t, GpuKind *) { return {MLAVERIFY_ERR_UNSUPPORTED, "this build has no CUDA support"}; }
Status launch_facts(const GpuKind &, const Problem &, LaunchFacts *) {
  return {MLAVERIFY_ERR_UNSUPPORTED, "this build has no CUDA support"};
}
#endif

const std::vector<const Backend *> &backend_list() {
#if defined(MLAVERIFY_CUDA)
  const Backend &cuda = cuda_backend();
#else
  static const NoCudaBackend cuda;
#endif
  static const std::vector<const Backend *> list = {&cuda, &cpu_backend(), &reference_backend()};
  return list;
}

Status choose_backend(const Call &call, const Backend **backend) {
  const bool automatic = call.backend == MLAVERIFY_BACKEND_AUTO;
  const std::string &forced = env_backend();
  std::string reasons;
  bool known = false;
  for (const Backend *b : backend_list()) {
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
