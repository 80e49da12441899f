// The extern "C" surface: catch, translate, no logic of its own.
#include <cstring>
#include <exception>
#include <new>

#include "api/validate.h"
#include "backends/backend.h"
#include "backends/launch_facts.h"
#include "rules/config_table.h"
#include "rules/planning.h"
#include "rules/workspace.h"

namespace mlaverify {
namespace {

// Fixed storage: reporting a failure must not fail.
thread_local char last_error[1024] = "";

mlaverify_status report(mlaverify_status code, const char *message) {
  std::strncpy(last_error, message, sizeof(last_error) - 1);
  return code;
}

template <class F>
mlaverify_status guarded(F f) {
  try {
    const Status s = f();
    return s.ok() ? MLAVERIFY_OK : report(s.code, s.message.c_str());
  } catch (const std::bad_alloc &) {
    return report(MLAVERIFY_ERR_INTERNAL, "out of host memory");
  } catch (const std::exception &e) {
    return report(MLAVERIFY_ERR_INTERNAL, e.what());
  } catch (...) {
    return report(MLAVERIFY_ERR_INTERNAL, "unknown exception");
  }
}

Status invalid(const std::string &message) { return {MLAVERIFY_ERR_INVALID_ARGUMENT, message}; }

Status check_workspace(const Call &call, std::size_t needed) {
  if (needed == 0) return {};
  if (call.workspace == nullptr) {
    return {MLAVERIFY_ERR_WORKSPACE, "workspace: got a null pointer, must be " + std::to_string(needed) + " bytes"};
  }
  if (reinterpret_cast<uintptr_t>(call.workspace) % MLAVERIFY_WORKSPACE_ALIGNMENT != 0) {
    return {MLAVERIFY_ERR_WORKSPACE,
            "workspace: got an address that is not a multiple of " + std::to_string(MLAVERIFY_WORKSPACE_ALIGNMENT) + " bytes"};
  }
  if (call.workspace_bytes < needed) {
    return {MLAVERIFY_ERR_WORKSPACE,
            "workspace_bytes: got " + std::to_string(call.workspace_bytes) + ", must be at least " + std::to_string(needed)};
  }
  return {};
}

Status decode(const mlaverify_verify_args *args) {
  Call call;
  const Backend *backend = nullptr;
  if (Status s = validate(args, true, &call); !s.ok()) return s;
  if (Status s = choose_backend(call, &backend); !s.ok()) return s;
  if (call.problem.batch == 0 || call.problem.num_heads == 0) return {};
  if (Status s = check_workspace(call, backend->workspace_bytes(call)); !s.ok()) return s;
  return backend->run(call);
}

Status workspace_size(const mlaverify_verify_args *args, size_t *bytes) {
  if (bytes == nullptr) return invalid("bytes: got a null pointer");
  Call call;
  const Backend *backend = nullptr;
  if (Status s = validate(args, false, &call); !s.ok()) return s;
  if (Status s = choose_backend(call, &backend); !s.ok()) return s;
  *bytes = backend->workspace_bytes(call);
  return {};
}

Status warmup(const mlaverify_verify_args *args, const int32_t *qlens, int32_t num_qlens) {
  if (num_qlens < 0) return invalid("num_qlens: got " + std::to_string(num_qlens) + ", must be >= 0");
  if (num_qlens > 0 && qlens == nullptr) return invalid("qlens: got a null pointer");
  for (int32_t i = 0; i < num_qlens; ++i) {
    if (qlens[i] < 1) return invalid("qlens[" + std::to_string(i) + "]: got " + std::to_string(qlens[i]) + ", must be >= 1");
  }
  Call call;
  const Backend *backend = nullptr;
  if (Status s = validate(args, false, &call); !s.ok()) return s;
  if (Status s = choose_backend(call, &backend); !s.ok()) return s;
  return backend->warmup(call, qlens, num_qlens);
}

Status select_config(int32_t batch, int32_t qlen, int32_t num_heads, mlaverify_device device, const char *arch,
                     mlaverify_verify_config *config) {
  if (config == nullptr) return invalid("config: got a null pointer");
  if (config->size < sizeof(*config)) {
    return invalid("config.size: got " + std::to_string(config->size) +
                   ", must be sizeof(mlaverify_verify_config) = " + std::to_string(sizeof(*config)));
  }
  if (batch < 0) return invalid("batch: got " + std::to_string(batch) + ", must be >= 0");
  if (qlen < 1) return invalid("qlen: got " + std::to_string(qlen) + ", must be >= 1");
  if (num_heads < 0) return invalid("num_heads: got " + std::to_string(num_heads) + ", must be >= 0");
  if (device < MLAVERIFY_HOST) return invalid("device: got " + std::to_string(device) + ", must be -1 (host) or a CUDA device");
  GpuKind gpu = {rules::Arch::cpu, 0};
  if (arch == nullptr && device != MLAVERIFY_HOST) {
    if (Status s = gpu_kind(device, &gpu); !s.ok()) return {s.code, "device: got " + std::to_string(device) + ": " + s.message};
  }
  const char *name = arch != nullptr ? arch : rules::arch_name(gpu.arch);
  std::string known;
  for (int32_t i = 0; i < rules::kNumArchs; ++i) {
    const auto a = static_cast<rules::Arch>(i);
    known += (i > 0 ? ", " : "") + std::string(rules::arch_name(a));
    if (std::strcmp(name, rules::arch_name(a)) != 0) continue;
    const rules::VerifyConfig c = rules::verify_config(a, batch, qlen, num_heads);
    *config = {config->size, c.block_h,    c.block_n,      c.split_align,  c.min_split_len,        c.q_split, c.num_warps,
               c.num_stages, c.s2_block_s, c.s2_num_warps, c.waves_per_eu, c.matrix_instr_nonkdim, c.kpack};
    return {};
  }
  return invalid("arch: got '" + std::string(name) + "', must be one of " + known);
}

Status num_kv_splits(int64_t max_seq_len, int64_t batch, int32_t qlen, int32_t num_heads, int32_t sm_count, int32_t block_h,
                     double occupancy, int32_t min_work_per_split, int32_t max_splits, int32_t *result) {
  if (qlen < 1) return invalid("qlen: got " + std::to_string(qlen) + ", must be >= 1");
  if (num_heads < 0) return invalid("num_heads: got " + std::to_string(num_heads) + ", must be >= 0");
  if (sm_count < 1) return invalid("sm_count: got " + std::to_string(sm_count) + ", must be >= 1");
  if (block_h < 1) return invalid("block_h: got " + std::to_string(block_h) + ", must be >= 1");
  if (!(occupancy >= 0) || !(occupancy * sm_count <= static_cast<double>(rules::kMaxPlanningSlots))) {
    return invalid("occupancy: got " + std::to_string(occupancy) + ", must be >= 0 and give at most 2^20 slots");
  }
  const int64_t blocks = rules::verify_row_blocks(qlen, num_heads, block_h);
  if (rules::max<int64_t>(batch, 1) > rules::kMaxPlanningPrograms / rules::max<int64_t>(blocks, 1)) {
    return invalid("batch: got " + std::to_string(batch) + ", must give at most 2^40 programs");
  }
  *result = rules::verify_num_kv_splits(max_seq_len, batch, qlen, num_heads, sm_count, block_h, occupancy, min_work_per_split,
                                        max_splits);
  return {};
}

Status backend_info(int32_t index, mlaverify_backend_info *info) {
  if (info == nullptr) return invalid("info: got a null pointer");
  if (info->size < sizeof(*info)) {
    return invalid("info.size: got " + std::to_string(info->size) +
                   ", must be sizeof(mlaverify_backend_info) = " + std::to_string(sizeof(*info)));
  }
  const auto count = static_cast<int32_t>(backend_list().size());
  if (index < 0 || index >= count)
    return invalid("index: got " + std::to_string(index) + ", must be in 0 ... " + std::to_string(count - 1));
  const Backend &b = *backend_list()[static_cast<std::size_t>(index)];
  const Backend::Availability &a = b.availability();
  *info = {info->size, b.id(), a.status.ok() ? 1 : 0, b.name(), a.status.ok() ? a.detail.c_str() : a.status.message.c_str()};
  return {};
}

}  // namespace
}  // namespace mlaverify

extern "C" {

const char *mlaverify_status_name(mlaverify_status status) { return mlaverify::status_name(status); }

const char *mlaverify_last_error(void) { return mlaverify::last_error; }

const char *mlaverify_version(void) { return MLAVERIFY_VERSION_STRING; }

mlaverify_status mlaverify_decode_attention_fwd_verify(const mlaverify_verify_args *args) {
  return mlaverify::guarded([=] { return mlaverify::decode(args); });
}

mlaverify_status mlaverify_workspace_size(const mlaverify_verify_args *args, size_t *bytes) {
  return mlaverify::guarded([=] { return mlaverify::workspace_size(args, bytes); });
}

mlaverify_status mlaverify_warmup_decode_attention_fwd_verify(const mlaverify_verify_args *args, const int32_t *qlens,
                                                              int32_t num_qlens) {
  return mlaverify::guarded([=] { return mlaverify::warmup(args, qlens, num_qlens); });
}

mlaverify_status mlaverify_select_verify_config(int32_t batch, int32_t qlen, int32_t num_heads, mlaverify_device device,
                                                const char *arch, mlaverify_verify_config *config) {
  return mlaverify::guarded([=] { return mlaverify::select_config(batch, qlen, num_heads, device, arch, config); });
}

int32_t mlaverify_verify_num_kv_splits(int64_t max_seq_len, int64_t batch, int32_t qlen, int32_t num_heads, int32_t sm_count,
                                       int32_t block_h, double occupancy, int32_t min_work_per_split, int32_t max_splits) {
  int32_t result = 0;
  mlaverify::guarded([&] {
    return mlaverify::num_kv_splits(max_seq_len, batch, qlen, num_heads, sm_count, block_h, occupancy, min_work_per_split,
                                    max_splits, &result);
  });
  return result;
}

int32_t mlaverify_backend_count(void) { return static_cast<int32_t>(mlaverify::backend_list().size()); }

mlaverify_status mlaverify_get_backend_info(int32_t index, mlaverify_backend_info *info) {
  return mlaverify::guarded([=] { return mlaverify::backend_info(index, info); });
}

}  // extern "C"
