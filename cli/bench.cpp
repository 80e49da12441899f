// bench: how long steps of given shapes take, against the least that the machine's own ceilings allow.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "api/env.h"
#include "backend_option.h"
#include "error.h"
#include "grid.h"
#include "machine.h"
#include "mlaverify/mlaverify.h"
#include "timed_step.h"
#include "timer.h"
#include "verb.h"
#include "work.h"

namespace mlaverify::cli {

namespace {

struct Options {
  std::string grid;
  ShapeOptions shape;  // those given
  CallOptions call;
  bool json = false;
};

struct Result {
  Shape shape;
  Timing time;
  Work work;
  double floor;  // seconds

  double times_floor() const { return time.median / floor; }
};

// What ran where: the head of every report.
struct Setting {
  std::string version, commit, compiler, cpu, backend, isa;
  int32_t threads;
  Ceilings ceilings;  // before the first shape: those of the floor
};

std::vector<Shape> shapes_of(const Options &options) {
  const bool sizes_given = std::any_of(shape_options().begin(), shape_options().end(),
                                       [&](const ShapeOption &o) { return o.size && options.shape.count(o.name) > 0; });
  if (sizes_given && options.grid.empty()) return {make_shape(options.shape)};
  if (sizes_given)
    throw Failure(kBadInput, "--grid has sizes of its own: --heads, --qlen, --batch and --seq-len don't go with it");
  std::vector<Shape> shapes = load_grid(options.grid.empty() ? "cpu" : options.grid);
  for (Shape &s : shapes) s = change_shape(std::move(s), options.shape);
  return shapes;
}

// Enough that no processor cache still holds a page set when its turn comes again.
int64_t rotation_bytes() { return std::max(int64_t{64} << 20, 2 * last_level_cache_bytes()); }

void demand_memory(const std::vector<Shape> &shapes) {
  const auto available = static_cast<double>(available_memory_bytes());
  for (const Shape &s : shapes) {
    const double needed = TimedStep::bytes_needed(s, rotation_bytes());
    if (available > 0 && needed > available) {
      throw Failure(kBadInput, fmt::format("{}: takes {:.3g} GB of memory, should be at most the {:.3g} GB available",
                                           shape_line(s), needed / 1e9, available / 1e9));
    }
  }
}

// The backend that will run: the data lie in host memory, where automatic means the CPU's unless the environment names another.
mlaverify_backend_info backend_info(mlaverify_backend asked) {
  const std::string &forced = env_backend();
  for (const mlaverify_backend_info &info : backends()) {
    const bool automatic = forced.empty() ? info.backend == MLAVERIFY_BACKEND_CPU : forced == info.name;
    if (asked == MLAVERIFY_BACKEND_AUTO ? automatic : info.backend == asked) return info;
  }
  throw Failure(kBadInput, fmt::format("MLAVERIFY_BACKEND: no backend has the name '{}'", forced));
}

Setting setting_of(const Options &options) {
  const mlaverify_backend_info info = backend_info(options.call.backend);
  demand_available(info.backend);
  Setting s;
  s.version = mlaverify_version();
  s.commit = MLAVERIFY_GIT_COMMIT;
  s.compiler = compiler();
  s.cpu = cpu_model();
  s.backend = info.name;
  s.isa = info.detail;
  s.threads = options.call.num_threads;
  s.ceilings = measure_cpu_ceilings(s.threads);
  return s;
}

Result measure(const Shape &shape, const Options &options, const Ceilings &ceilings) {
  TimedStep step(shape, rotation_bytes(), options.call);
  Result r;
  r.shape = shape;
  r.time = time_calls([&] { step.call(); });
  if (!step.outputs_are_numbers()) {
    throw Failure(kCheckFailed, shape_line(shape) + ": the output has NaN in it, should be numbers only");
  }
  r.work = work_of(shape);
  r.floor = floor_seconds(r.work, ceilings);
  return r;
}

double geometric_mean_times_floor(const std::vector<Result> &results) {
  double sum = 0;
  for (const Result &r : results) sum += std::log(r.times_floor());
  return std::exp(sum / static_cast<double>(results.size()));
}

// What has to be added to `mlaverify bench` and a shape to measure it the same way.
std::string repeat_options(const Setting &setting, const Options &options) {
  std::string text = fmt::format("--backend {} --threads {}", setting.backend, setting.threads);
  if (options.call.num_kv_splits > 0) text += fmt::format(" --num-kv-splits {}", options.call.num_kv_splits);
  return text;
}

void print_head(const Setting &s, const Options &options) {
  fmt::print("mlaverify {}{}, {}\n", s.version, s.commit.empty() ? "" : " (git " + s.commit + ")", s.compiler);
  fmt::print("{}, {} thread{}, backend {} ({})\n", s.cpu, s.threads, s.threads == 1 ? "" : "s", s.backend, s.isa);
  fmt::print("measured ceilings: memory read {:.1f} GB/s, f32 multiply-add {:.1f} GFLOP/s\n", s.ceilings.bytes_per_second / 1e9,
             s.ceilings.flops_per_second / 1e9);
  fmt::print("one shape again: mlaverify bench SHAPE {}\n\n", repeat_options(s, options));
  fmt::print("{:>10}  {:>6}  {:>7}  {:>8}  {:>7}  shape\n", "median ms", "spread", "GB/s", "GFLOP/s", "× floor");
  std::fflush(stdout);
}

void print_row(const Result &r) {
  fmt::print("{:>10.4f}  {:>5.1f}%  {:>7.2f}  {:>8.2f}  {:>7.2f}  {}\n", r.time.median * 1e3, r.time.spread * 100,
             r.work.bytes / r.time.median / 1e9, r.work.flops / r.time.median / 1e9, r.times_floor(), shape_line(r.shape));
  std::fflush(stdout);  // a grid takes minutes
}

void print_tail(const std::vector<Result> &results, const Ceilings &start, const Ceilings &end) {
  fmt::print("\ngeometric mean over {} shape{}: {:.2f} × floor\n", results.size(), results.size() == 1 ? "" : "s",
             geometric_mean_times_floor(results));
  fmt::print("ceilings at the end: memory read {:+.0f} %, multiply-add {:+.0f} %\n",
             (end.bytes_per_second / start.bytes_per_second - 1) * 100,
             (end.flops_per_second / start.flops_per_second - 1) * 100);
}

nlohmann::ordered_json json_of(const Ceilings &c) {
  return {{"bytes_per_second", c.bytes_per_second}, {"flops_per_second", c.flops_per_second}};
}

nlohmann::ordered_json json_of(const Setting &s, const Options &options, const std::vector<Result> &results,
                               const Ceilings &end) {
  nlohmann::ordered_json shapes = nlohmann::ordered_json::array();
  for (const Result &r : results) {
    shapes.push_back({{"shape", shape_line(r.shape)},
                      {"heads", r.shape.num_heads},
                      {"qlen", r.shape.qlen},
                      {"seq_lens", r.shape.seq_lens},
                      {"page_size", r.shape.page_size},
                      {"dtype", dtype_name(r.shape.q_dtype)},
                      {"kv_dtype", dtype_name(r.shape.kv_dtype)},
                      {"lk", r.shape.qk_dim},
                      {"lv", r.shape.v_dim},
                      {"seconds", r.time.median},
                      {"spread", r.time.spread},
                      {"repetitions", r.time.repetitions},
                      {"bytes", r.work.bytes},
                      {"flops", r.work.flops},
                      {"bytes_per_second", r.work.bytes / r.time.median},
                      {"flops_per_second", r.work.flops / r.time.median},
                      {"floor_seconds", r.floor},
                      {"times_floor", r.times_floor()}});
  }
  return {{"version", s.version},
          {"commit", s.commit},
          {"compiler", s.compiler},
          {"cpu", s.cpu},
          {"backend", s.backend},
          {"isa", s.isa},
          {"threads", s.threads},
          {"num_kv_splits", options.call.num_kv_splits},
          {"ceilings", json_of(s.ceilings)},
          {"ceilings_at_the_end", json_of(end)},
          {"shapes", shapes},
          {"geometric_mean_times_floor", geometric_mean_times_floor(results)}};
}

void bench(const Options &options) {
  const std::vector<Shape> shapes = shapes_of(options);
  demand_memory(shapes);
  const Setting setting = setting_of(options);
  if (!options.json) print_head(setting, options);
  std::vector<Result> results;
  for (const Shape &s : shapes) {
    results.push_back(measure(s, options, setting.ceilings));
    if (!options.json) print_row(results.back());
  }
  // A busy machine or a changing clock shows here: the floors hold for the ceilings measured first.
  const Ceilings end = measure_cpu_ceilings(setting.threads);
  if (options.json) {
    fmt::print("{}\n", json_of(setting, options, results, end).dump(2));
  } else {
    print_tail(results, setting.ceilings, end);
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
  verb->add_flag("--json", options->json, "Print one JSON object");
  verb->callback([options, &exit_code] {
    bench(*options);
    exit_code = kOk;
  });
}

}  // namespace mlaverify::cli
