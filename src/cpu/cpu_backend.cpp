// The cpu backend: picks the instruction set, sizes the workspace, runs.
#include <functional>

#include "api/check_values.h"
#include "api/env.h"
#include "backends/backend.h"
#include "cpu/features.h"
#include "cpu/threads.h"
#include "cpu/verify.h"
#include "rules/workspace.h"

namespace mlaverify {
namespace {

struct IsaChoice {
  const char *name;
  const cpu::Isa *isa;                   // null: not in this build
  std::function<std::string()> missing;  // what keeps it from running here; empty: nothing does
};

#if defined(MLAVERIFY_X86)
const cpu::Isa &isa_of(cpu::IsaKind kind) {
  switch (kind) {
    case cpu::IsaKind::amx_bf16: return cpu::isa_amx_bf16();
    case cpu::IsaKind::avx512_bf16: return cpu::isa_avx512_bf16();
    case cpu::IsaKind::avx512: return cpu::isa_avx512();
    case cpu::IsaKind::avx2: return cpu::isa_avx2();
  }
  return cpu::isa_scalar();
}
#endif

// Best first.
std::vector<IsaChoice> isa_choices() {
  std::vector<IsaChoice> list;
#if defined(MLAVERIFY_X86)
  for (const cpu::IsaKind kind : cpu::fastest_first(cpu::vendor()))
    list.push_back({isa_of(kind).name, &isa_of(kind), [kind] { return cpu::missing_for(kind); }});
#else
  for (const char *name : {"amx_bf16", "avx512_bf16", "avx512", "avx2"})
    list.push_back({name, nullptr, [] { return std::string("an x86-64 build"); }});
#endif
  list.push_back({"scalar", &cpu::isa_scalar(), [] { return std::string(); }});
  return list;
}

struct Selection {
  const cpu::Isa *isa = nullptr;
  Backend::Availability availability;
};

Selection select_isa() {
  const std::string &forced = env_cpu_isa();
  std::string names;
  for (const IsaChoice &c : isa_choices()) {
    names += (names.empty() ? "" : ", ") + std::string(c.name);
    if (!forced.empty() && forced != c.name) continue;
    const std::string missing = c.missing();
    if (missing.empty()) return {c.isa, {{}, c.name}};
    if (forced.empty()) continue;
    const std::string reason = "MLAVERIFY_CPU_ISA asks for " + forced + ", which cannot run here; missing: ";
    return {nullptr, {{MLAVERIFY_ERR_UNSUPPORTED, reason + missing}, ""}};
  }
  return {nullptr, {{MLAVERIFY_ERR_INVALID_ARGUMENT, "MLAVERIFY_CPU_ISA: got '" + forced + "', must be one of " + names}, ""}};
}

const Selection &selection() {
  static const Selection s = select_isa();
  return s;
}

cpu::Threads threads_of(const Call &call) { return {call.num_threads, call.parallel_for, call.parallel_context}; }

class CpuBackend final : public Backend {
 public:
  mlaverify_backend id() const override { return MLAVERIFY_BACKEND_CPU; }
  const char *name() const override { return "cpu"; }
  bool on_host() const override { return true; }
  const Availability &availability() const override { return selection().availability; }
  std::string refusal(const Call &call) const override { return host_only_refusal(call); }

  std::size_t workspace_bytes(const Call &call) const override {
    return static_cast<std::size_t>(rules::cpu_workspace_bytes(call.problem, threads_of(call).limit()));
  }

  Status run(const Call &call) const override {
    if (Status s = check_values(call.problem); !s.ok()) return s;
    cpu::verify(*selection().isa, call.problem, threads_of(call), call.workspace);
    return {};
  }

  // The instruction set is chosen; starting the threads is the one thing left that allocates.
  Status warmup(const Call &call, const int32_t *, int32_t) const override {
    threads_of(call).in_parallel(threads_of(call).now(), [](int32_t) {});
    return {};
  }
};

}  // namespace

const Backend &cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace mlaverify
