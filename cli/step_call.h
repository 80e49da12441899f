// One step ready to be computed: outputs that start as NaN and lie between guard bands, and the workspace the library asks for.
// For the cuda backend everything is copied to the GPU, computed there, and the outputs with their guards copied back.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <string>

#include "io/step.h"
#include "mlaverify/mlaverify.h"
#include "rules/problem.h"

namespace mlaverify::cli {

// A contiguous view in host memory without data: for size queries.
mlaverify_tensor shape_only(DType dtype, std::initializer_list<int64_t> shape);

class StepCall {
 public:
  // `name` stands in front of messages; `step` must outlive this. Throws Failure for what the library refuses, and, for the cuda
  // backend, which does not look at them, for impossible lengths and page ids; io::DeviceError where the device fails.
  StepCall(const io::Step &step, std::string name, mlaverify_backend backend, int32_t num_threads);

  // Fills the outputs and their guards with NaN, then computes. Throws Failure, io::DeviceError.
  void run();
  // The part of run() that counts as its time: of the call, up to its end on the device.
  double seconds() const { return seconds_; }

  const void *out() const { return static_cast<const char *>(out_.data()) + guard_bytes; }  // [rows, heads, v_dim], type of q
  const float *lse() const { return reinterpret_cast<const float *>(static_cast<const char *>(lse_.data()) + guard_bytes); }
  std::size_t out_bytes() const { return out_.bytes() - 2 * guard_bytes; }
  std::size_t lse_bytes() const { return lse_.bytes() - 2 * guard_bytes; }
  int64_t rows() const { return args_.q.shape[0]; }
  int64_t heads() const { return args_.q.shape[1]; }

  // Whether nothing was written outside of the outputs.
  bool guards_intact() const;

  // The call on the step's tensors in host memory, as the oracle takes it. Throws Failure (bad input) for impossible lengths or
  // page ids.
  Problem host_problem() const;

 private:
  static constexpr std::size_t guard_bytes = 256;

  struct Free {
    void operator()(void *p) const { std::free(p); }
  };
  struct OnDevice;
  void move_to_device(const io::Step &step);

  std::string name_;
  mlaverify_verify_args args_;  // of the call on host tensors
  io::TensorBuffer out_, lse_;  // guards included, flat
  std::unique_ptr<void, Free> workspace_;
  std::shared_ptr<OnDevice> device_;  // null: computed on the host
  double seconds_ = 0;
};

}  // namespace mlaverify::cli
