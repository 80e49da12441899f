#include "step_call.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <new>
#include <utility>

#include "backend_option.h"
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

StepCall::StepCall(const io::Step &step, std::string name, mlaverify_backend backend, int32_t num_threads)
    : name_(std::move(name)), args_(step.args()) {
  args_.backend = backend;
  args_.num_threads = num_threads;
  args_.out = shape_only(step.q.dtype(), {args_.q.shape[0], args_.q.shape[1], step.v_head_dim});
  args_.lse = shape_only(DType::f32, {args_.q.shape[0], args_.q.shape[1]});
  // Before anything is allocated: the size query validates the shapes.
  demand_ok(mlaverify_workspace_size(&args_, &args_.workspace_bytes), name_);
  out_ = guarded(args_.out, guard_bytes);
  lse_ = guarded(args_.lse, guard_bytes);
  if (args_.workspace_bytes > 0) {
    const auto size = rules::round_up<std::size_t>(args_.workspace_bytes, MLAVERIFY_WORKSPACE_ALIGNMENT);
    workspace_.reset(std::aligned_alloc(MLAVERIFY_WORKSPACE_ALIGNMENT, size));
    if (!workspace_) throw std::bad_alloc();
    args_.workspace = workspace_.get();
  }
}

void StepCall::run() {
  poison(out_.data(), out_.bytes());
  poison(lse_.data(), lse_.bytes());
  const auto start = std::chrono::steady_clock::now();
  const mlaverify_status status = mlaverify_decode_attention_fwd_verify(&args_);
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  demand_ok(status, name_);
}

bool StepCall::guards_intact() const {
  const auto intact = [](const io::TensorBuffer &buffer) {
    const char *end = buffer.data<char>() + buffer.bytes();
    return all_poison(buffer.data(), guard_bytes) && all_poison(end - guard_bytes, guard_bytes);
  };
  return intact(out_) && intact(lse_);
}

}  // namespace mlaverify::cli
