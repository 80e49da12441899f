// A step of a given shape with random data, to be called again and again. The requests' pages exist several times over (page
// sets), scattered over one cache; every call takes the next set, so that it finds its keys where a serving system would: in
// memory, not in a processor cache. Slots and pages that no request owns hold NaN.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "io/tensor_buffer.h"
#include "mlaverify/mlaverify.h"
#include "work.h"

namespace mlaverify::cli {

struct CallOptions {
  mlaverify_backend backend = MLAVERIFY_BACKEND_AUTO;
  int32_t num_threads = 0;
  int32_t num_kv_splits = 0;
};

class TimedStep {
 public:
  // Page sets until they take `rotation_bytes`. Throws Failure for what the library refuses.
  TimedStep(const Shape &shape, int64_t rotation_bytes, const CallOptions &options);

  // Memory that the constructor will take, without the workspace.
  static double bytes_needed(const Shape &shape, int64_t rotation_bytes);

  // One call, on the next page set. Throws Failure.
  void call();

  // Whether the last call wrote every output, and no NaN.
  bool outputs_are_numbers() const;

 private:
  struct Free {
    void operator()(void *p) const { std::free(p); }
  };
  io::TensorBuffer q_, kv_, out_, lse_, seq_lens_;
  std::vector<io::TensorBuffer> tables_;  // one a page set
  std::unique_ptr<void, Free> workspace_;
  mlaverify_verify_args args_ = {};
  std::size_t next_ = 0;
};

}  // namespace mlaverify::cli
