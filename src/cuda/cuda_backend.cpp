// The cuda backend: picks kernels and the schedule's parameters, lays out the workspace, launches. Nothing on the call path
// allocates, synchronises or reads device memory, but in checked mode.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "backends/backend.h"
#include "backends/launch_facts.h"
#include "backends/tuning.h"
#include "cuda/checked.h"
#include "cuda/plan.h"
#include "cuda/tensor_map.h"
#include "cuda/tune_file.h"
#include "rules/workspace.h"

namespace mlaverify {
namespace {

using cuda::Launch;
using cuda::Plan;
using cuda::VerifyKernel;

constexpr int kMaxDevices = 64;

Status failed(const char *what, cudaError_t error) {
  return {MLAVERIFY_ERR_DEVICE, std::string(what) + ": " + cudaGetErrorString(error)};
}

// What is asked of a device once.
struct Device {
  cudaError_t error = cudaSuccess;
  int major = 0, minor = 0;
  cuda::Target target;
  Status tune;  // why the tune file is not for it
};

// Puts the rows of the tune file, if there is one, into the device's target.
void apply_tune_file(int index, Device *d) {
  const cuda::TuneSetting &setting = cuda::tune_setting();
  d->tune = setting.status;
  if (!setting.set || !d->tune.ok()) return;
  cudaDeviceProp properties;
  d->error = cudaGetDeviceProperties(&properties, index);
  if (d->error != cudaSuccess) return;
  d->tune = cuda::check_card(setting.file, {properties.name, std::to_string(d->major) + "." + std::to_string(d->minor),
                                            d->target.arch, d->target.sms});
  if (d->tune.ok()) d->target.tuned = setting.rows();
}

Device query(int index) {
  Device d;
  int shared_bytes = 0;
  const auto get = [&](int *value, cudaDeviceAttr attribute) {
    if (d.error == cudaSuccess) d.error = cudaDeviceGetAttribute(value, attribute, index);
  };
  get(&d.major, cudaDevAttrComputeCapabilityMajor);
  get(&d.minor, cudaDevAttrComputeCapabilityMinor);
  get(&d.target.sms, cudaDevAttrMultiProcessorCount);
  get(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (d.error != cudaSuccess) return d;
  d.target.arch = rules::gpu_arch(d.major * 10 + d.minor, shared_bytes);
  d.target.kernels = cuda::kernels_for(d.target.arch, d.major * 10 + d.minor);
  apply_tune_file(index, &d);
  return d;
}

struct Devices {
  cudaError_t error = cudaSuccess;
  std::vector<Device> list;
};

const Devices &devices() {
  static const Devices all = [] {
    Devices d;
    int count = 0;
    d.error = cudaGetDeviceCount(&count);
    if (d.error != cudaSuccess) {
      cudaGetLastError();
      count = 0;
    }
    for (int i = 0; i < std::min(count, kMaxDevices); ++i) d.list.push_back(query(i));
    return d;
  }();
  return all;
}

// Makes a device current for a scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != device) {
      error_ = cudaSetDevice(device);
      changed_ = error_ == cudaSuccess;
    }
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice &) = delete;
  CurrentDevice &operator=(const CurrentDevice &) = delete;
  cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_ = cudaSuccess;
};

cudaError_t allow_shared_memory(const VerifyKernel &kernel) {
  return cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes);
}

Status launch(const Device &device, Plan &plan, void *workspace, cudaStream_t stream) {
  Launch &l = plan.launch;
  const VerifyKernel &kernel = plan.choice.kernel;
  l.states = static_cast<rules::PartState *>(workspace);
  l.accs = static_cast<char *>(workspace) + rules::gpu_states_bytes(l.part, plan.series);

  if (l.box_keys > 0 && !cuda::make_kv_map(l.p, l.box_keys, &l.kv_map)) {
    l.box_keys = 0;
    l.pair = 1;
  }

  cudaError_t error = allow_shared_memory(kernel);
  if (error != cudaSuccess) return failed("shared memory of the verify kernel", error);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(l.pair), 1, 1};
  cudaLaunchConfig_t config = {};
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = device.major < 9 ? 0 : l.pair > 1 ? 2 : 1;
  config.blockDim = dim3(static_cast<unsigned>(kernel.threads));
  config.gridDim = dim3(static_cast<unsigned>(l.blocks));
  config.dynamicSmemBytes = static_cast<std::size_t>(kernel.shared_bytes);
  void *args[] = {&l};
  error = cudaLaunchKernelExC(&config, kernel.function, args);
  if (error != cudaSuccess) return failed("launch of the verify kernel", error);
  if (plan.combine_blocks == 0) return {};

  config.blockDim = dim3(cuda::kCombineThreads);
  config.gridDim = dim3(static_cast<unsigned>(plan.combine_blocks));
  config.dynamicSmemBytes = 0;
  config.numAttrs = std::min(config.numAttrs, 1u);
  error = cudaLaunchKernelExC(&config, plan.combine, args);
  return error == cudaSuccess ? Status{} : failed("launch of the combine kernel", error);
}

class CudaBackend final : public Backend {
 public:
  mlaverify_backend id() const override { return MLAVERIFY_BACKEND_CUDA; }
  const char *name() const override { return "cuda"; }
  bool on_host() const override { return false; }

  const Availability &availability() const override {
    static const Availability a = [] {
      const Devices &all = devices();
      if (all.error == cudaErrorInsufficientDriver) {
        return Availability{
            {MLAVERIFY_ERR_UNSUPPORTED, "no CUDA driver, or one too old for CUDA " + std::to_string(CUDART_VERSION / 1000)},
            ""};
      }
      if (all.error != cudaSuccess) return Availability{{MLAVERIFY_ERR_UNSUPPORTED, cudaGetErrorString(all.error)}, ""};
      if (all.list.empty()) return Availability{{MLAVERIFY_ERR_UNSUPPORTED, "no CUDA device"}, ""};
      const Device &d = all.list[0];
      if (!d.tune.ok()) return Availability{d.tune, ""};
      if (const std::string why = refusal(d); !why.empty()) return Availability{{MLAVERIFY_ERR_UNSUPPORTED, why}, ""};
      return Availability{{},
                          std::to_string(all.list.size()) + " device(s), the first sm_" + std::to_string(d.major) +
                              std::to_string(d.minor) + " with " + std::to_string(d.target.sms) + " multiprocessors" +
                              (cuda::tune_setting().set ? ", tuned rows: " + std::to_string(d.target.tuned.count) : "")};
    }();
    return a;
  }

  std::string refusal(const Call &call) const override {
    if (call.device == MLAVERIFY_HOST) return "tensors are in host memory";
    const auto index = static_cast<std::size_t>(call.device);
    if (index >= devices().list.size()) return "there is no CUDA device " + std::to_string(call.device);
    if (std::string why = cuda::size_refusal(call.problem); !why.empty()) return why;
    return refusal(devices().list[index]);
  }

  std::size_t workspace_bytes(const Call &call) const override {
    return cuda::make_plan(device_of(call).target, call.problem).workspace_bytes;
  }

  Status run(const Call &call) const override { return run(call, device_of(call).target); }

  // For a GPU like `target` in place of the call's.
  static Status run(const Call &call, const cuda::Target &target) {
    const CurrentDevice current(call.device);
    if (current.error() != cudaSuccess) return failed("cudaSetDevice", current.error());
    const auto stream = static_cast<cudaStream_t>(call.stream);
    if ((call.problem.flags & MLAVERIFY_FLAG_CHECKED) != 0) {
      if (Status s = cuda::check_device_values(call.problem, stream); !s.ok()) return s;
    }
    Plan plan = cuda::make_plan(target, call.problem);
    return launch(device_of(call), plan, call.workspace, stream);
  }

  // Loads every kernel that these tensors can reach: for each qlen that of its row tiles, and the merge of what that writes.
  Status warmup(const Call &call, const int32_t *qlens, int32_t num_qlens) const override {
    const CurrentDevice current(call.device);
    if (current.error() != cudaSuccess) return failed("cudaSetDevice", current.error());
    const Device &device = device_of(call);
    const auto load = [](const void *function) {
      cudaFuncAttributes attributes;
      return cudaFuncGetAttributes(&attributes, function);  // forces a lazily loaded kernel in
    };
    for (int32_t i = -1; i < num_qlens; ++i) {
      Problem p = call.problem;
      if (i >= 0) p.qlen = qlens[i];
      const Plan plan = cuda::make_plan(device.target, p);
      const VerifyKernel &kernel = plan.choice.kernel;
      cudaError_t error = load(kernel.function);
      if (error == cudaSuccess) error = allow_shared_memory(kernel);
      if (error != cudaSuccess) return failed("loading the verify kernel", error);
      error = load(plan.combine);
      if (error != cudaSuccess) return failed("loading the combine kernel", error);
    }
    return {};
  }

  static const Device &device_of(const Call &call) { return devices().list[static_cast<std::size_t>(call.device)]; }

 private:
  static std::string refusal(const Device &d) {
    if (!d.tune.ok()) return d.tune.message;
    if (d.error != cudaSuccess) return std::string("device query: ") + cudaGetErrorString(d.error);
    if (d.target.kernels != nullptr) return "";
    return "needs compute capability 8.0 or newer, the device has " + std::to_string(d.major) + "." + std::to_string(d.minor);
  }
};

// The call's GPU with `row` in place of tuned rows.
cuda::Target target_with(const Call &call, const rules::GpuRow *row) {
  cuda::Target target = CudaBackend::device_of(call).target;
  if (row != nullptr) target.tuned = {row, 1};
  return target;
}

}  // namespace

const Backend &cuda_backend() {
  static const CudaBackend backend;
  return backend;
}

Status row_facts(const Call &call, const rules::GpuRow *row, RowFacts *facts) {
  const Plan plan = cuda::make_plan(target_with(call, row), call.problem);
  *facts = {plan.choice.row, plan.workspace_bytes};
  return {};
}

Status run_with_row(const Call &call, const rules::GpuRow &row) { return CudaBackend::run(call, target_with(call, &row)); }

Status gpu_kind(int32_t device, GpuKind *kind) {
  const Devices &all = devices();
  if (device < 0 || static_cast<std::size_t>(device) >= all.list.size()) {
    return {MLAVERIFY_ERR_UNSUPPORTED, "there is no CUDA device " + std::to_string(device)};
  }
  const Device &d = all.list[static_cast<std::size_t>(device)];
  if (d.error != cudaSuccess) return failed("device query", d.error);
  *kind = {d.target.arch, d.target.sms};
  return {};
}

}  // namespace mlaverify
