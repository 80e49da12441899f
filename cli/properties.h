// What is promised of the CUDA backend's speed on an NVIDIA H200, besides the targets of groups of shapes (peers.h): each property
// is a measure of one or more shapes, and a bound. All of them stand in the table of properties.cpp. `mlaverify bench --properties`.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench_report.h"
#include "first_call.h"

namespace mlaverify::cli {

enum class Measure {
  time,             // seconds of the shape
  times_floor,      // time over floor
  time_ratio,       // time of the first shape over that of the second
  floor_ratio,      // the same of times over floors: what is lost beyond what the floor itself takes
  time_range,       // longest time over shortest, of all shapes
  invariant_ratio,  // time in the batch-invariant mode over that of the default
  sustained_rate,   // operations per second, sustained
  sustained_peer,   // sustained time over the best recorded peer's
  host_time,        // of calls that only enqueue; the most of all shapes
  kernels,          // launched by a call; the most of all shapes
  other_nodes,      // copies, fills, ... in the graph of a call; the most of all shapes
  first_call,       // what only the first call behind a warm-up takes, over that without one; the most of all shapes
};

// How a measure is written. A value is given in `unit` after division by `scale`.
struct MeasureFacts {
  const char *name;
  const char *unit;
  double scale;
  int digits;
  bool at_least;        // else the bound is the most that is allowed
  bool in_new_process;  // measured by first_call_of_new_process(), not by measure_shape()
};
const MeasureFacts &facts_of(Measure measure);

struct Property {
  std::string name;  // several entries of one kind share it
  std::string what;
  Measure measure;
  std::vector<std::string> shapes;  // as shape_line() writes them
  double bound;
};
const std::vector<Property> &properties();

// First calls behind a warm-up and without one; nothing where the process failed.
struct FirstCalls {
  std::optional<FirstCall> warm, cold;
};

// By shape. What a property needs is there; see modes_of().
struct Measurements {
  std::map<std::string, BenchResult> times;
  std::map<std::string, FirstCalls> first_calls;
};

// What has to be timed at a shape besides the default, for all properties together.
struct Modes {
  bool invariant = false, sustained = false, host_overhead = false;
};
Modes modes_of(const std::string &shape);

// NaN where the first call of a process failed, behind a warm-up.
double value_of(const Property &property, const Measurements &measurements);

// Never for NaN.
bool meets(const Property &property, double value);

// The time of a shape that the measure looks at; for measures that look at times.
const Timing &timing_of(Measure measure, const BenchResult &result);

}  // namespace mlaverify::cli
