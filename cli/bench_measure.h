// What bench measures: the machine's ceilings, and how long calls of a shape take.
#pragma once

#include "bench_report.h"
#include "gpu.h"
#include "mlaverify/mlaverify.h"
#include "timed_step.h"

namespace mlaverify::cli {

// Of the device that `call` runs on; on a CPU with its threads.
GpuCeilings measure_ceilings(const CallOptions &call);

// What runs where, with the ceilings measured now. Nothing but the default mode is to be timed.
BenchSetting bench_setting(const mlaverify_backend_info &backend, const CallOptions &call);

// Times what `setting` says. Throws as TimedStep::demand_numbers() does.
BenchResult measure_shape(const Shape &shape, const CallOptions &call, const BenchSetting &setting);

}  // namespace mlaverify::cli
