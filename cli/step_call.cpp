#include "step_call.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <new>
#include <utility>
#include <vector>

#include "api/check_values.h"
#include "api/validate.h"
#include "backend_option.h"
#include "error.h"
#include "gpu.h"
#include "io/device_memory.h"
#include "random.h"

namespace mlaverify::cli {
namespace {

// The buffer for `view` with guards around it; points `view` at it.
io::TensorBuffer guarded(mlaverify_tensor &view, std::size_t guard_bytes) {
  const auto dtype = static_cast<DType>(view.dtype);
  int64_t count = 2 * static_cast<int64_t>(guard_bytes) / rules::dtype_bytes(dtype);
  int64_t elements = 1;
  for (int32_t i = 0; i < view.ndim; ++i) elements *= view.shape[i];
  count += elements;
  io::TensorBuffer buffer(dtype, {count});
  view.data = buffer.data<char>() + guard_bytes;
  return buffer;
}

// The same call with its tensors said to be on the device.
mlaverify_verify_args placed_on_device(mlaverify_verify_args args) {
  for (mlaverify_tensor *t : {&args.q, &args.kv_cache, &args.out, &args.lse, &args.block_table, &args.seq_lens,
                              &args.real_seq_lens, &args.k_scale, &args.q_indptr}) {
    t->device = kGpu;
  }
  return args;
}

bool all_poison(const void *data, std::size_t bytes) {
  const auto *p = static_cast<const unsigned char *>(data);
  return std::all_of(p, p + bytes, [](unsigned char c) { return c == 0xff; });
}

}  // namespace

mlaverify_tensor shape_only(DType dtype, std::initializer_list<int64_t> shape) {
  mlaverify_tensor t = {};
  t.device = MLAVERIFY_HOST;
  t.dtype = static_cast<mlaverify_dtype>(dtype);
  for (int64_t n : shape) t.shape[t.ndim++] = n;
  uint64_t stride = 1;  // may wrap around: sizes that large are refused by the library, and so not used
  for (int32_t i = t.ndim; i-- > 0;) {
    t.strides[i] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(t.shape[i]);
  }
  return t;
}

// The call's tensors on the device.
struct StepCall::OnDevice {
  io::DeviceStream stream{kGpu};
  mlaverify_verify_args args;
  std::vector<io::DeviceMemory> inputs;
  io::DeviceMemory out, lse;  // guards included
  io::DeviceMemory workspace;
};

StepCall::StepCall(const io::Step &step, std::string name, mlaverify_backend backend, int32_t num_threads)
    : name_(std::move(name)), args_(step.args()) {
  args_.backend = backend;
  args_.num_threads = num_threads;
  args_.out = shape_only(step.q.dtype(), {args_.q.shape[0], args_.q.shape[1], step.v_head_dim});
  args_.lse = shape_only(DType::f32, {args_.q.shape[0], args_.q.shape[1]});
  const bool on_device = backend == MLAVERIFY_BACKEND_CUDA;
  // Before anything is allocated: the size query validates the shapes.
  const mlaverify_verify_args sized = on_device ? placed_on_device(args_) : args_;
  demand_ok(mlaverify_workspace_size(&sized, &args_.workspace_bytes), name_);
  out_ = guarded(args_.out, guard_bytes);
  lse_ = guarded(args_.lse, guard_bytes);
  if (on_device) {
    host_problem();
    move_to_device(step);
  } else if (args_.workspace_bytes > 0) {
    const auto size = rules::round_up<std::size_t>(args_.workspace_bytes, MLAVERIFY_WORKSPACE_ALIGNMENT);
    workspace_.reset(std::aligned_alloc(MLAVERIFY_WORKSPACE_ALIGNMENT, size));
    if (!workspace_) throw std::bad_alloc();
    args_.workspace = workspace_.get();
  }
}

void StepCall::move_to_device(const io::Step &step) {
  device_ = std::make_shared<OnDevice>();
  mlaverify_verify_args &args = device_->args;
  args = placed_on_device(args_);
  const auto copy = [&](const io::TensorBuffer &buffer, mlaverify_tensor *view) {
    if (buffer) device_->inputs.push_back(io::to_device(buffer, view, kGpu));
  };
  copy(step.q, &args.q);
  copy(step.kv_cache, &args.kv_cache);
  copy(step.block_table, &args.block_table);
  copy(step.seq_lens, &args.seq_lens);
  copy(step.real_seq_lens, &args.real_seq_lens);
  copy(step.k_scale, &args.k_scale);
  device_->out = io::to_device(out_, &args.out, kGpu);
  device_->lse = io::to_device(lse_, &args.lse, kGpu);
  device_->workspace = io::DeviceMemory(args.workspace_bytes, kGpu);
  args.workspace = device_->workspace.data();
  args.stream = device_->stream.handle();
}

void StepCall::run() {
  if (device_) {
    device_->out.poison();
    device_->lse.poison();
    device_->workspace.poison();
  } else {
    poison(out_.data(), out_.bytes());
    poison(lse_.data(), lse_.bytes());
  }
  const auto start = std::chrono::steady_clock::now();
  const mlaverify_status status = mlaverify_decode_attention_fwd_verify(device_ ? &device_->args : &args_);
  if (device_) device_->stream.synchronize();
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  demand_ok(status, name_);
  if (device_) {
    device_->out.download(out_.data(), out_.bytes());
    device_->lse.download(lse_.data(), lse_.bytes());
  }
}

Problem StepCall::host_problem() const {
  Call call = {};
  Status status = validate(&args_, true, &call);
  if (status.ok()) status = check_values(call.problem);
  if (!status.ok()) throw Failure(kBadInput, name_ + ": " + status.message);
  return call.problem;
}

bool StepCall::guards_intact() const {
  const auto intact = [](const io::TensorBuffer &buffer) {
    const char *end = buffer.data<char>() + buffer.bytes();
    return all_poison(buffer.data(), guard_bytes) && all_poison(end - guard_bytes, guard_bytes);
  };
  return intact(out_) && intact(lse_);
}

}  // namespace mlaverify::cli
