// bench --properties: measures and prints the table of properties.h.
#pragma once

#include "mlaverify/mlaverify.h"
#include "timed_step.h"

namespace mlaverify::cli {

// Prints a line for each property as it is measured, or one JSON object. Returns whether all bounds are met. `backend` must be
// cuda, and that of `call`. Throws as measure_shape() does.
bool bench_properties(const mlaverify_backend_info &backend, const CallOptions &call, bool json);

}  // namespace mlaverify::cli
