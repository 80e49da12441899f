// bench: how long steps of given shapes take, against the least that the machine's own ceilings allow.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend_option.h"
#include "bench_report.h"
#include "error.h"
#include "grid.h"
#include "machine.h"
#include "mlaverify/mlaverify.h"
#include "other_program.h"
#include "timed_step.h"
#include "verb.h"

namespace mlaverify::cli {

namespace {

struct Options {
  std::string grid;
  ShapeOptions shape;  // those given
  CallOptions call;    // with the backend as asked for
  bool invariant = false;
  std::string other;  // program to compare with
  bool json = false;
};

bool on_gpu(mlaverify_backend backend) { return backend == MLAVERIFY_BACKEND_CUDA; }

GpuCeilings measure_ceilings(mlaverify_backend backend, int32_t threads) {
  return on_gpu(backend) ? measure_gpu_ceilings(kGpu) : GpuCeilings{measure_cpu_ceilings(threads), ""};
}

BenchSetting setting_of(const Options &options, const mlaverify_backend_info &backend) {
  const GpuCeilings measured = measure_ceilings(backend.backend, options.call.num_threads);
  BenchSetting s;
  s.version = mlaverify_version();
  s.commit = MLAVERIFY_GIT_COMMIT;
  s.compiler = compiler();
  s.cpu = cpu_model();
  s.backend = backend.name;
  s.detail = backend.detail;
  s.threads = options.call.num_threads;
  if (on_gpu(backend.backend)) s.gpu = gpu_info(kGpu);
  s.product = measured.product;
  s.num_kv_splits = options.call.num_kv_splits;
  s.invariant = options.invariant;
  s.other = options.other;
  s.ceilings = measured.ceilings;
  return s;
}

void demand_numbers(TimedStep &step, const Shape &shape) {
  if (step.outputs_are_numbers()) return;
  throw Failure(kCheckFailed, shape_line(shape) + ": the output has NaN in it, should be numbers only");
}

BenchResult measure(const Shape &shape, const CallOptions &call, const BenchSetting &setting) {
  TimedStep step(shape, rotation_bytes(call.backend), call);
  BenchResult r;
  r.shape = shape;
  r.time = step.time();
  demand_numbers(step, shape);
  if (setting.invariant) {
    step.set_flags(MLAVERIFY_FLAG_BATCH_INVARIANT);
    r.invariant = step.time();
    demand_numbers(step, shape);
  }
  if (!setting.other.empty()) r.other = seconds_of_program(setting.other, shape, setting.threads);
  r.work = work_of(shape);
  r.floor = floor_seconds(r.work, setting.ceilings);
  if (on_gpu(call.backend)) r.record = peer_records().find(shape_line(shape));
  return r;
}

void bench(const Options &options) {
  const std::vector<Shape> shapes = requested_shapes(options.grid, options.shape, "cpu");
  const mlaverify_backend_info backend = chosen_backend(options.call.backend);
  demand_memory(shapes, backend.backend);
  CallOptions call = options.call;
  call.backend = backend.backend;
  const BenchSetting setting = setting_of(options, backend);
  const bool peers = setting.gpu && std::any_of(shapes.begin(), shapes.end(),
                                                [](const Shape &s) { return peer_records().find(shape_line(s)) != nullptr; });
  if (!options.json) print_bench_head(setting, peers);
  std::vector<BenchResult> results;
  for (const Shape &s : shapes) {
    results.push_back(measure(s, call, setting));
    if (!options.json) print_bench_row(setting, results.back(), peers);
  }
  // A busy machine or a changing clock shows here: the floors hold for the ceilings measured first.
  const Ceilings end = measure_ceilings(backend.backend, setting.threads).ceilings;
  if (options.json) {
    fmt::print("{}\n", bench_json(setting, results, end).dump(2));
  } else {
    print_bench_tail(setting, results, end);
  }
}

}  // namespace

void add_bench(CLI::App &app, int &exit_code) {
  auto options = std::make_shared<Options>();
  options->call.num_threads = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  CLI::App *verb = app.add_subcommand("bench", "Time steps of given shapes against this machine's ceilings");
  verb->add_option("--grid", options->grid, "Built-in grid or a file of shapes, one a line (cpu, if no sizes are given)");
  for (const ShapeOption &o : shape_options()) {
    verb->add_option_function<std::string>(
        fmt::format("--{}", o.name), [options, &o](const std::string &value) { options->shape[o.name] = value; }, o.help);
  }
  verb->add_option("--threads", options->call.num_threads, "Threads, for the ceilings too")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  verb->add_option("--num-kv-splits", options->call.num_kv_splits, "0: the library chooses; N: the split rule's cap")
      ->check(CLI::Range(0, INT32_MAX))
      ->capture_default_str();
  add_backend_option(*verb, options->call.backend);
  verb->add_flag("--invariant", options->invariant, "Time the batch-invariant mode too, against the default");
  verb->add_option("--vs", options->other, "Time a program of yours at each shape too (docs/bench.md)");
  verb->add_flag("--json", options->json, "Print one JSON object");
  verb->callback([options, &exit_code] {
    bench(*options);
    exit_code = kOk;
  });
}

}  // namespace mlaverify::cli
