#include "api/env.h"
#include "backends/backend.h"
#include "backends/launch_facts.h"
#include "backends/tuning.h"

namespace mlaverify {
namespace {

#if !defined(MLAVERIFY_CUDA)
// CUDA device tensors are legal; this build has no kernels for them.
class NoCudaBackend final : public Backend {
 public:
  mlaverify_backend id() const override { return MLAVERIFY_BACKEND_CUDA; }
  const char *name() const override { return "cuda"; }
  bool on_host() const override { return false; }
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

// Whether `b` is meant: the one that is asked for, or, where none is, that of the environment or any.
bool is_candidate(const Backend &b, const Call &call) {
  if (call.backend != MLAVERIFY_BACKEND_AUTO) return call.backend == b.id();
  return env_backend().empty() || env_backend() == b.name();
}

Status try_backend(const Backend &b, const Call &call) {
  const Status &available = b.availability().status;
  if (!available.ok()) return available;
  const std::string refusal = b.refusal(call);
  return refusal.empty() ? Status{} : Status{MLAVERIFY_ERR_UNSUPPORTED, refusal};
}

// Why no candidate takes the call.
Status explain(const Call &call) {
  std::string reasons;
  for (const Backend *b : backend_list()) {
    if (!is_candidate(*b, call)) continue;
    Status status = try_backend(*b, call);
    if (status.code == MLAVERIFY_ERR_INVALID_ARGUMENT) return status;  // a bad setting, not a lack
    reasons += (reasons.empty() ? "" : "; ") + std::string(b->name()) + ": " + status.message;
  }
  if (reasons.empty()) {  // validate() knows every number, so this is the environment
    return {MLAVERIFY_ERR_INVALID_ARGUMENT, "MLAVERIFY_BACKEND: got '" + env_backend() + "', must be cuda, cpu or reference"};
  }
  return {MLAVERIFY_ERR_UNSUPPORTED, "no backend can do this call: " + reasons};
}

}  // namespace

#if !defined(MLAVERIFY_CUDA)
static Status no_cuda() { return {MLAVERIFY_ERR_UNSUPPORTED, "this build has no CUDA support"}; }
Status gpu_kind(int32_t, GpuKind *) { return no_cuda(); }
Status launch_facts(const GpuKind &, const Problem &, LaunchFacts *) { return no_cuda(); }
Status row_facts(const Call &, const rules::GpuRow *, RowFacts *) { return no_cuda(); }
Status run_with_row(const Call &, const rules::GpuRow &) { return no_cuda(); }
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
  // Where the tensors live is asked first: a backend for elsewhere would only have to put its refusal in words, on every call.
  for (const Backend *b : backend_list()) {
    if (!is_candidate(*b, call) || b->on_host() != (call.device == MLAVERIFY_HOST)) continue;
    if (Status status = try_backend(*b, call); !status.ok()) {
      if (status.code == MLAVERIFY_ERR_INVALID_ARGUMENT) return status;
      continue;
    }
    *backend = b;
    return {};
  }
  return explain(call);
}

}  // namespace mlaverify
