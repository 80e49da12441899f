// A step of a given shape with random data, to be called again and again. The requests' pages exist several times over (page
// sets), scattered over one cache; every call takes the next set, so that it finds its keys where a serving system would: in
// memory, not in a processor cache. Slots and pages that no request owns hold NaN. With the cuda backend all of it lies on the GPU.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "api/validate.h"
#include "io/device_memory.h"
#include "io/tensor_buffer.h"
#include "mlaverify/mlaverify.h"
#include "rules/config_table.h"
#include "timer.h"
#include "work.h"

namespace mlaverify::cli {

struct CallOptions {
  mlaverify_backend backend = MLAVERIFY_BACKEND_AUTO;
  int32_t num_threads = 0;
  int32_t num_kv_splits = 0;
  uint32_t flags = 0;  // MLAVERIFY_FLAG_*
};

inline bool on_gpu(mlaverify_backend backend) { return backend == MLAVERIFY_BACKEND_CUDA; }

// Enough page sets that no processor cache still holds one when its turn comes again.
int64_t rotation_bytes(mlaverify_backend backend);

// Throws Failure (bad input) where a shape takes more memory than this machine has available.
void demand_memory(const std::vector<Shape> &shapes, mlaverify_backend backend);

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

  // On a device only. What a call costs the host, by its clock: each call only enqueues its work. Throws Failure.
  Timing time_on_host();

  // On a device only. Makes the library load what calls like this one need.
  void warm_up();

  // On a device only. Captures a call in a graph of its own, replays it once and waits for its end.
  struct CapturedCall {
    int kernel_nodes = 0, other_nodes = 0;
    double seconds = 0;  // of all that, on the host
  };
  CapturedCall capture_call();

  // Throws Failure (check failed) where outputs hold NaN, as they do before the first call: a wrong result has no speed.
  void demand_numbers();

  // ---- With the cuda backend, to compare rows of the config table (backends/tuning.h). Null: as the library does it.
  using Row = const rules::GpuRow *;

  // The row that decides for a call with `row`.
  rules::GpuRow deciding_row(Row row);

  // Computes the first page set into outputs of NaN. The result is there until the next call.
  void compute(Row row);
  const io::TensorBuffer &out() const { return out_; }  // [rows, heads, v_dim]
  const io::TensorBuffer &lse() const { return lse_; }  // [rows, heads]

  // One timing for each of the rows, of replays in turn: a drift of the clocks meets all alike.
  std::vector<Timing> time_in_turn(const std::vector<Row> &rows);

 private:
  struct Free {
    void operator()(void *p) const { std::free(p); }
  };
  void move_to_device();
  void call();  // on the next page set; on the device it only starts it

  // On the device: calls captured in a graph, whole rounds through the page sets.
  struct Replay {
    std::shared_ptr<const io::DeviceGraph> graph;
    double calls = 0;
  };
  Replay capture(std::size_t rounds);
  Replay capture_milliseconds();                         // 4 ms of calls, or a little more
  double seconds_of_replay(const Replay &replay) const;  // behind another one
  // Of a call of each, from `times` replays of all in turn.
  std::vector<Timing> time_replays(const std::vector<Replay> &replays, double warm_up_seconds, int times) const;

  Call validated() const;
  void use(Row row);  // from now on; makes room for it
  void download_outputs();

  const std::string shape_;  // as shape_line() writes it; stands in front of what the library refuses
  io::TensorBuffer q_, kv_, out_, lse_, seq_lens_;
  std::vector<io::TensorBuffer> tables_;  // one a page set
  std::unique_ptr<void, Free> workspace_;
  mlaverify_verify_args args_ = {};
  std::vector<void *> table_data_;  // of each page set, where the call reads it
  std::size_t next_ = 0;

  std::unique_ptr<io::DeviceStream> stream_;  // null: calls run on the host
  std::vector<io::DeviceMemory> device_inputs_;
  io::DeviceMemory device_out_, device_lse_, device_workspace_;
  Row row_ = nullptr;
};

}  // namespace mlaverify::cli
