// The first call of a process on a GPU: what it launches, and whether it still has to load kernels. For `bench --first-call` and
// `bench --properties`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "timed_step.h"
#include "work.h"

namespace mlaverify::cli {

struct FirstCall {
  int kernel_nodes = 0, other_nodes = 0;  // of the call in a captured graph
  double first = 0;                       // seconds on the host: the first call captured, its graph replayed and waited for
  double later = 0;                       // median of the same with later calls

  // What only the first call takes, loading of kernels included.
  double extra() const { return first > later ? first - later : 0; }
};

// Calls must not have been made by this process before. `warm`: behind the library's warm-up. Throws Failure, and
// io::DeviceError: some drivers refuse to load kernels while a stream captures.
FirstCall time_first_call(const Shape &shape, const CallOptions &call, bool warm);

// The same in a new process of this program, with kernels loaded when they are first used. Throws Failure (check failed) if that
// fails; its message is on standard error then.
FirstCall first_call_of_new_process(const Shape &shape, bool warm);

nlohmann::ordered_json first_call_json(const Shape &shape, const FirstCall &call, bool warm);
FirstCall parse_first_call(const std::string &json);

std::string first_call_text(const FirstCall &call, bool warm);

}  // namespace mlaverify::cli
