#include "bench_measure.h"

#include "grid.h"
#include "machine.h"
#include "other_program.h"

namespace mlaverify::cli {

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
  step.demand_numbers();
  if (setting.invariant) {
    step.set_flags(MLAVERIFY_FLAG_BATCH_INVARIANT);
    r.invariant = step.time();
    step.demand_numbers();
    step.set_flags(call.flags);
  }
  if (setting.host_overhead) r.on_host = step.time_on_host();
  if (setting.sustained) r.sustained = step.time_sustained();  // last: it leaves the machine hot
  if (!setting.other.empty()) r.other = seconds_of_program(setting.other, shape, setting.threads);
  r.work = work_of(shape);
  r.floor = floor_seconds(r.work, ceilings_of(shape, setting.ceilings));
  if (on_gpu(call.backend)) r.record = peer_records().find(shape_line(shape));
  return r;
}

}  // namespace mlaverify::cli
