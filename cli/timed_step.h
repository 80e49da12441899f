// A step of a given shape with random data, to be called again and again. The requests' pages exist several times over (page
// sets), scattered over one cache; every call takes the next set, so that it finds its keys where a serving system would: in
// memory, not in a processor cache. Slots and pages that no request owns hold NaN. With the cuda backend all of it lies on the GPU.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "io/device_memory.h"
#include "io/tensor_buffer.h"
#include "mlaverify/mlaverify.h"
#include "timer.h"
#include "work.h"

namespace mlaverify::cli {

struct CallOptions {
  mlaverify_backend backend = MLAVERIFY_BACKEND_AUTO;
  int32_t num_threads = 0;
  int32_t num_kv_splits = 0;
  uint32_t flags = 0;  // MLAVERIFY_FLAG_*
};

class TimedStep {
 public:
  // Page sets until they take `rotation_bytes`. `options.backend` must be a backend that can run here, not automatic. Throws
  // Failure for what the library refuses, and io::DeviceError here and below where the device fails.
  TimedStep(const Shape &shape, int64_t rotation_bytes, const CallOptions &options);

  // Memory that the constructor will take (with the cuda backend: on either side), without the workspace.
  static double bytes_needed(const Shape &shape, int64_t rotation_bytes);

  // The same step with other flags from now on.
  void set_flags(uint32_t flags);

  // Calls on the next page set, again and again: on the host as in time_calls(); on the device replays of a captured graph of
  // many calls, by the device's clock. Throws Failure.
  Timing time();

  // The same after kSustainedSeconds of nothing else.
  Timing time_sustained();

  // On a device only. Makes the library load what calls like this one need.
  void warm_up();

  // On a device only. Captures a call in a graph of its own, replays it once and waits for its end.
  struct CapturedCall {
    int kernel_nodes = 0, other_nodes = 0;
    double seconds = 0;  // of all that, on the host
  };
  CapturedCall capture_call();

  // Whether the last call wrote every output, and no NaN.
  bool outputs_are_numbers();

 private:
  struct Free {
    void operator()(void *p) const { std::free(p); }
  };
  void move_to_device();
  void call();  // on the next page set; on the device it only starts it

  // On the device: calls captured in a graph, whole rounds through the page sets.
  struct Replay {
    std::unique_ptr<io::DeviceGraph> graph;
    double calls = 0;
  };
  Replay capture(std::size_t rounds);
  Replay capture_milliseconds();                   // 4 ms of calls, or a little more
  double seconds_of_replay(const Replay &replay);  // behind another one
  Timing time_replays(const Replay &replay, int times);

  io::TensorBuffer q_, kv_, out_, lse_, seq_lens_;
  std::vector<io::TensorBuffer> tables_;  // one a page set
  std::unique_ptr<void, Free> workspace_;
  mlaverify_verify_args args_ = {};
  std::vector<void *> table_data_;  // of each page set, where the call reads it
  std::size_t next_ = 0;

  std::unique_ptr<io::DeviceStream> stream_;  // null: calls run on the host
  std::vector<io::DeviceMemory> device_inputs_;
  io::DeviceMemory device_out_, device_lse_, device_workspace_;
};

}  // namespace mlaverify::cli
