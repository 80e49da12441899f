// bench: how long steps of given shapes take, against the least that the machine's own ceilings allow.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend_option.h"
#include "bench_measure.h"
#include "bench_properties.h"
#include "bench_report.h"
#include "error.h"
#include "first_call.h"
#include "grid.h"
#include "mlaverify/mlaverify.h"
#include "verb.h"

namespace mlaverify::cli {

namespace {

struct BenchOptions {
  std::string grid;
  ShapeOptions shape;  // those given
  CallOptions call;    // with the backend as asked for
  bool invariant = false;
  bool sustained = false;
  bool host_overhead = false;
  std::string first_call;   // "warm" or "cold": only this; empty: time all shapes
  bool properties = false;  // only these
  bool strict = false;
  std::string other;  // program to compare with
  bool json = false;
};

std::vector<Shape> shapes_of(const BenchOptions &options) { return requested_shapes(options.grid, options.shape, "cpu"); }

void demand_cuda(const mlaverify_backend_info &backend, const char *option, const char *why) {
  if (on_gpu(backend.backend)) return;
  throw Failure(kCannotRun, fmt::format("{}: the backend is {}, should be cuda: {}", option, backend.name, why));
}

void first_call(const BenchOptions &options) {
  const std::vector<Shape> shapes = shapes_of(options);
  if (shapes.size() != 1) {
    throw Failure(kBadInput,
                  fmt::format("--first-call: there are {} shapes, should be one, by --heads, --qlen, --batch and --seq-len",
                              shapes.size()));
  }
  const mlaverify_backend_info backend = chosen_backend(options.call.backend);
  demand_cuda(backend, "--first-call", "others neither load kernels nor launch graphs");
  demand_memory(shapes, backend.backend);
  CallOptions call = options.call;
  call.backend = backend.backend;
  const bool warm = options.first_call == "warm";
  const FirstCall found = time_first_call(shapes[0], call, warm);
  fmt::print("{}", options.json ? first_call_json(shapes[0], found, warm).dump(2) + "\n" : first_call_text(found, warm));
}

// Returns whether all bounds are met.
bool measure_properties(const BenchOptions &options) {
  const mlaverify_backend_info backend = chosen_backend(options.call.backend);
  demand_cuda(backend, "--properties", "shapes and bounds are those of an NVIDIA H200");
  CallOptions call = options.call;
  call.backend = backend.backend;
  return bench_properties(backend, call, options.json);
}

void bench(const BenchOptions &options) {
  const std::vector<Shape> shapes = shapes_of(options);
  const mlaverify_backend_info backend = chosen_backend(options.call.backend);
  if (options.host_overhead) demand_cuda(backend, "--host-overhead", "calls of others compute before they return");
  demand_memory(shapes, backend.backend);
  CallOptions call = options.call;
  call.backend = backend.backend;
  BenchSetting setting = bench_setting(backend, call);
  setting.invariant = options.invariant;
  setting.sustained = options.sustained;
  setting.host_overhead = options.host_overhead;
  setting.other = options.other;
  const bool peers = setting.gpu && std::any_of(shapes.begin(), shapes.end(),
                                                [](const Shape &s) { return peer_records().find(shape_line(s)) != nullptr; });
  if (!options.json) print_bench_head(setting, peers);
  std::vector<BenchResult> results;
  for (const Shape &s : shapes) {
    results.push_back(measure_shape(s, call, setting));
    if (!options.json) print_bench_row(setting, results.back(), peers);
  }
  // A busy machine or a changing clock shows here: the floors hold for the ceilings measured first.
  const Ceilings end = measure_ceilings(call).ceilings;
  if (options.json) {
    fmt::print("{}\n", bench_json(setting, results, end).dump(2));
  } else {
    print_bench_tail(setting, results, end);
  }
}

}  // namespace

void add_bench(CLI::App &app, int &exit_code) {
  auto options = std::make_shared<BenchOptions>();
  options->call.num_threads = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  CLI::App *verb = app.add_subcommand("bench", "Time steps of given shapes against this machine's ceilings");
  // What says which shapes are timed and how; --properties has its own of all of these.
  CLI::Option *grid =
      verb->add_option("--grid", options->grid, "Built-in grid or a file of shapes, one a line (cpu, if no sizes are given)");
  std::vector<CLI::Option *> what = add_shape_options(*verb, options->shape);
  what.push_back(grid);
  verb->add_option("--threads", options->call.num_threads, "Threads, for the ceilings too")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  what.push_back(
      verb->add_option("--num-kv-splits", options->call.num_kv_splits, "0: the library chooses; N: the split rule's cap")
          ->check(CLI::Range(0, INT32_MAX))
          ->capture_default_str());
  add_backend_option(*verb, options->call.backend);
  const std::vector<CLI::Option *> more_times = {
      verb->add_flag("--invariant", options->invariant, "Time the batch-invariant mode too, against the default"),
      verb->add_flag("--sustained", options->sustained, "Time each shape after a second of uninterrupted calls, too"),
      verb->add_flag("--host-overhead", options->host_overhead, "Time what a call costs the host, too, on a GPU"),
      verb->add_option("--vs", options->other, "Time a program of yours at each shape too (docs/bench.md)")};
  CLI::Option *first_call_only = verb->add_option("--first-call", options->first_call,
                                                  "Only the first call of this process on a GPU, behind a warm-up or not")
                                     ->check(CLI::IsMember({"warm", "cold"}));
  CLI::Option *properties =
      verb->add_flag("--properties", options->properties, "Measure what is promised of an NVIDIA H200, each beside its bound");
  verb->add_flag("--strict", options->strict, "Exit code 1 if a property misses its bound")->needs(properties);
  verb->add_flag("--json", options->json, "Print one JSON object");
  for (CLI::Option *o : more_times) {
    first_call_only->excludes(o);
    properties->excludes(o);
  }
  for (CLI::Option *o : what) properties->excludes(o);
  properties->excludes(first_call_only);
  verb->callback([options, &exit_code] {
    exit_code = kOk;
    if (options->properties) {
      const bool met = measure_properties(*options);
      if (options->strict && !met) exit_code = kCheckFailed;
    } else if (!options->first_call.empty()) {
      first_call(*options);
    } else {
      bench(*options);
    }
  });
}

}  // namespace mlaverify::cli
