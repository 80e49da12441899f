#include "bench_measure.h"

#include <fmt/format.h>

#include <algorithm>

#include "error.h"
#include "grid.h"
#include "machine.h"
#include "other_program.h"

namespace mlaverify::cli {
namespace {

// Enough that no processor cache still holds a page set when its turn comes again.
int64_t rotation_bytes(mlaverify_backend backend) {
  return on_gpu(backend) ? int64_t{256} << 20 : std::max(int64_t{64} << 20, 2 * last_level_cache_bytes());
}

void demand_numbers(TimedStep &step, const Shape &shape) {
  if (step.outputs_are_numbers()) return;
  throw Failure(kCheckFailed, shape_line(shape) + ": the output has NaN in it, should be numbers only");
}

}  // namespace

void demand_memory(const std::vector<Shape> &shapes, mlaverify_backend backend) {
  const auto available = static_cast<double>(available_memory_bytes());
  for (const Shape &s : shapes) {
    const double needed = TimedStep::bytes_needed(s, rotation_bytes(backend));
    if (available > 0 && needed > available) {
      throw Failure(kBadInput, fmt::format("{}: takes {:.3g} GB of memory, should be at most the {:.3g} GB available",
                                           shape_line(s), needed / 1e9, available / 1e9));
    }
  }
}

GpuCeilings measure_ceilings(const CallOptions &call) {
  return on_gpu(call.backend) ? measure_gpu_ceilings(kGpu) : GpuCeilings{measure_cpu_ceilings(call.num_threads), ""};
}

BenchSetting bench_setting(const mlaverify_backend_info &backend, const CallOptions &call) {
  const GpuCeilings measured = measure_ceilings(call);
  BenchSetting s;
  s.version = mlaverify_version();
  s.commit = MLAVERIFY_GIT_COMMIT;
  s.compiler = compiler();
  s.cpu = cpu_model();
  s.backend = backend.name;
  s.detail = backend.detail;
  s.threads = call.num_threads;
  if (on_gpu(backend.backend)) s.gpu = gpu_info(kGpu);
  s.product = measured.product;
  s.num_kv_splits = call.num_kv_splits;
  s.ceilings = measured.ceilings;
  return s;
}

BenchResult measure_shape(const Shape &shape, const CallOptions &call, const BenchSetting &setting) {
  TimedStep step(shape, rotation_bytes(call.backend), call);
  BenchResult r;
  r.shape = shape;
  r.time = step.time();
  demand_numbers(step, shape);
  if (setting.invariant) {
    step.set_flags(MLAVERIFY_FLAG_BATCH_INVARIANT);
    r.invariant = step.time();
    demand_numbers(step, shape);
    step.set_flags(call.flags);
  }
  if (setting.sustained) r.sustained = step.time_sustained();  // last: it leaves the machine hot
  if (!setting.other.empty()) r.other = seconds_of_program(setting.other, shape, setting.threads);
  r.work = work_of(shape);
  r.floor = floor_seconds(r.work, setting.ceilings);
  if (on_gpu(call.backend)) r.record = peer_records().find(shape_line(shape));
  return r;
}

}  // namespace mlaverify::cli
