// What bench measures: the machine's ceilings, and how long calls of a shape take.
#pragma once

#include <vector>

#include "bench_report.h"
#include "gpu.h"
#include "mlaverify/mlaverify.h"
#include "timed_step.h"

namespace mlaverify::cli {

inline bool on_gpu(mlaverify_backend backend) { return backend == MLAVERIFY_BACKEND_CUDA; }

// Throws Failure (bad input) for a shape that takes more memory than this machine has.
void demand_memory(const std::vector<Shape> &shapes, mlaverify_backend backend);

// Of the device that `call` runs on; on a CPU with its threads.
GpuCeilings measure_ceilings(const CallOptions &call);

// What runs where, with the ceilings measured now. Nothing but the default mode is to be timed.
BenchSetting bench_setting(const mlaverify_backend_info &backend, const CallOptions &call);

// Times what `setting` says. Throws Failure (check failed) for an output with NaN in it: a wrong result has no speed.
BenchResult measure_shape(const Shape &shape, const CallOptions &call, const BenchSetting &setting);

}  // namespace mlaverify::cli
