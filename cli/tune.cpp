// tune: which legal configurations of the cuda backend are faster on this GPU than the config table's, at given shapes.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/env.h"
#include "backend_option.h"
#include "backends/launch_facts.h"
#include "cuda/tune_file.h"
#include "error.h"
#include "gpu.h"
#include "gpu_report.h"
#include "grid.h"
#include "io/replace_file.h"
#include "mlaverify/mlaverify.h"
#include "oracle/tolerance.h"
#include "rules/number.h"
#include "timed_step.h"
#include "tune_choice.h"
#include "verb.h"

namespace mlaverify::cli {
namespace {

struct TuneOptions {
  std::string grid;
  ShapeOptions shape;  // those given
  std::string out;     // empty: no file
  bool json = false;
};

io::TensorBuffer copy_of(const io::TensorBuffer &t) {
  io::TensorBuffer copy(t.dtype(), t.shape());
  std::memcpy(copy.data(), t.data(), t.bytes());
  return copy;
}

// The first row in which a step's results differ from those expected by more than the tolerance; "" if there is none.
std::string difference(const TimedStep &step, const io::TensorBuffer &out, const io::TensorBuffer &lse) {
  const auto width = static_cast<int32_t>(out.shape()[2]);
  const std::size_t row_bytes = static_cast<std::size_t>(width) * static_cast<std::size_t>(rules::dtype_bytes(out.dtype()));
  std::vector<double> want(static_cast<std::size_t>(width));
  for (int64_t row = 0; row < lse.size(); ++row) {
    const std::size_t at = static_cast<std::size_t>(row) * row_bytes;
    const float got_lse = step.lse().data<float>()[row], want_lse = lse.data<float>()[row];
    const char *got = step.out().data<char>() + at;
    if (std::memcmp(got, out.data<char>() + at, row_bytes) == 0 && got_lse == want_lse) continue;
    for (int32_t c = 0; c < width; ++c) {
      want[static_cast<std::size_t>(c)] = static_cast<double>(rules::load_float(out.dtype(), out.data(), row * width + c));
    }
    const RowError e = compare_row(out.dtype(), width, got, got_lse, want.data(), static_cast<double>(want_lse));
    if (!e.ok) return fmt::format("row {}: {}", row, e.why);
  }
  return "";
}

TunedShape tune_shape(const Shape &shape, const rules::Arch arch) {
  CallOptions call;
  call.backend = MLAVERIFY_BACKEND_CUDA;
  TimedStep step(shape, rotation_bytes(call.backend), call);
  const rules::GpuRow present = step.deciding_row(nullptr);

  TunedShape tuned;
  tuned.shape = shape;
  tuned.key = {arch, int64_t{shape.qlen} * shape.num_heads, rules::type_class(shape.q_dtype, shape.kv_dtype),
               rules::page_class(shape.page_size)};
  tuned.present = {present.kernel, present.shares_squared_per_tile};
  std::vector<rules::GpuRow> rows;
  for (const Configuration &c : configurations_of(arch)) {
    const rules::GpuRow row = {arch, 0, rules::kMostRows, rules::kAnyTypes, rules::kAnyPages, c.kernel, c.shares};
    if (!(c == tuned.present) && step.deciding_row(&row) == row) rows.push_back(row);
  }

  step.compute(nullptr);
  step.demand_numbers();
  const io::TensorBuffer out = copy_of(step.out()), lse = copy_of(step.lse());
  std::vector<TimedStep::Row> in_turn = {nullptr};
  for (const rules::GpuRow &row : rows) {
    step.compute(&row);
    tuned.candidates.push_back({{row.kernel, row.shares_squared_per_tile}, {}, difference(step, out, lse)});
    in_turn.push_back(&row);
  }
  const std::vector<Timing> timings = step.time_in_turn(in_turn);
  tuned.present_time = timings[0];
  for (std::size_t i = 0; i < rows.size(); ++i) tuned.candidates[i].time = timings[i + 1];
  return tuned;
}

const TunedShape::Candidate *fastest(const TunedShape &s) {
  const TunedShape::Candidate *best = nullptr;
  for (const TunedShape::Candidate &c : s.candidates) {
    if (c.wrong.empty() && (best == nullptr || c.time.median < best->time.median)) best = &c;
  }
  return best;
}

void print_head(const GpuInfo &gpu, const rules::Arch arch) {
  fmt::print("mlaverify {}; {}, compute capability {} ({}), {} multiprocessors, driver {}\n", mlaverify_version(), gpu.name,
             gpu.compute_capability, rules::arch_name(arch), gpu.sms, gpu.driver);
  fmt::print("clocks: {}\n\n", gpu.clocks);
  fmt::print("{:>10}  {:>6}  {:<15}  {:>10}  {:>5}  {:<15}  shape\n", "now us", "spread", "now", "fastest us", "gain",
             "fastest");
  std::fflush(stdout);
}

void print_shape(const TunedShape &s) {
  fmt::print("{:>10.2f}  {:>5.1f}%  {:<15}", s.present_time.median * 1e6, s.present_time.spread * 100,
             configuration_text(s.present));
  if (const TunedShape::Candidate *best = fastest(s)) {
    fmt::print("  {:>10.2f}  {:>5.2f}  {:<15}", best->time.median * 1e6, s.gain(*best),
               configuration_text(best->configuration));
  } else {
    fmt::print("  {:>10}  {:>5}  {:<15}", "", "", "");
  }
  fmt::print("  {}\n", shape_line(s.shape));
  std::fflush(stdout);  // a grid takes minutes
}

std::string gain_text(const TunedRow &r) {
  return fmt::format("{:.2f} times as fast ({:.2f} to {:.2f} at {} shape{})", r.gain, r.least, r.most, r.shapes,
                     r.shapes == 1 ? "" : "s");
}

// As it stands in src/rules/config_table.h.
std::string table_row(const rules::GpuRow &r) {
  return fmt::format("{{Arch::{}, {}, {}, TypeClass::{}, PageClass::{}, GpuKernel::{}, {}}},", rules::arch_name(r.arch),
                     r.rows_from, r.rows_to, rules::type_class_name(r.types), rules::page_class_name(r.pages),
                     rules::kernel_name(r.kernel), r.shares_squared_per_tile);
}

void print_rows(const std::vector<TunedRow> &rows) {
  if (rows.empty()) {
    fmt::print("\nno row is faster than the present ones by more than {:.0f} %\n", kNoise * 100);
    return;
  }
  fmt::print("\nrows for the config table:\n");
  for (const TunedRow &r : rows) fmt::print("    {}  // {}\n", table_row(r.row), gain_text(r));
}

std::string file_text(const cuda::TuneCard &card, const std::vector<TunedRow> &rows) {
  std::string text = cuda::tune_head(card);
  text += fmt::format(
      "# Rows that go before the library's: those faster by more than {:.0f} %, by the medians of replays in turn.\n",
      kNoise * 100);
  for (const TunedRow &r : rows) text += fmt::format("{}  # {}\n", cuda::tune_row(r.row), gain_text(r));
  return text;
}

nlohmann::ordered_json json_of(const Configuration &c, const Timing &t) {
  return {{"kernel", rules::kernel_name(c.kernel)}, {"shares", c.shares}, {"seconds", t.median}, {"spread", t.spread}};
}

nlohmann::ordered_json tune_json(const GpuInfo &gpu, rules::Arch arch, const std::vector<TunedShape> &shapes,
                                 const std::vector<TunedRow> &rows) {
  nlohmann::ordered_json j = {{"version", mlaverify_version()}, {"gpu", gpu_json(gpu)}, {"noise", kNoise}};
  j["gpu"]["arch"] = rules::arch_name(arch);
  j["shapes"] = nlohmann::ordered_json::array();
  for (const TunedShape &s : shapes) {
    nlohmann::ordered_json shape = {{"shape", shape_line(s.shape)},
                                    {"rows", s.key.rows},
                                    {"types", rules::type_class_name(s.key.types)},
                                    {"pages", rules::page_class_name(s.key.pages)},
                                    {"present", json_of(s.present, s.present_time)}};
    shape["candidates"] = nlohmann::ordered_json::array();
    for (const TunedShape::Candidate &c : s.candidates) {
      nlohmann::ordered_json candidate = json_of(c.configuration, c.time);
      candidate["gain"] = s.gain(c);
      candidate["wrong"] = c.wrong;
      shape["candidates"].push_back(candidate);
    }
    j["shapes"].push_back(shape);
  }
  j["rows"] = nlohmann::ordered_json::array();
  for (const TunedRow &r : rows) {
    nlohmann::ordered_json row = row_json(r.row);
    row["gain"] = r.gain;
    row["least_gain"] = r.least;
    row["most_gain"] = r.most;
    row["shapes"] = r.shapes;
    j["rows"].push_back(row);
  }
  return j;
}

// One line a wrong result on standard error; whether there was one.
bool report_wrong(const std::vector<TunedShape> &shapes) {
  bool any = false;
  for (const TunedShape &s : shapes) {
    for (const TunedShape::Candidate &c : s.candidates) {
      if (c.wrong.empty()) continue;
      any = true;
      fmt::print(stderr, "mlaverify: {}: {} gives other results than {}: {}\n", shape_line(s.shape),
                 configuration_text(c.configuration), configuration_text(s.present), c.wrong);
    }
  }
  return any;
}

int tune(const TuneOptions &options) {
  const std::vector<Shape> shapes = requested_shapes(options.grid, options.shape, "h200");
  demand_available(MLAVERIFY_BACKEND_CUDA);
  if (!env_tune_file().empty()) {
    throw Failure(kBadInput, "MLAVERIFY_TUNE_FILE: is set, must not be: rows are compared with the library's own");
  }
  demand_memory(shapes, MLAVERIFY_BACKEND_CUDA);
  if (!options.out.empty()) io::demand_replaceable(options.out);
  GpuKind kind;
  demand_ok(gpu_kind(kGpu, &kind), "tune");
  const GpuInfo gpu = gpu_info(kGpu);
  if (!options.json) print_head(gpu, kind.arch);
  std::vector<TunedShape> tuned;
  for (const Shape &s : shapes) {
    tuned.push_back(tune_shape(s, kind.arch));
    if (!options.json) print_shape(tuned.back());
  }
  const std::vector<TunedRow> rows = tuned_rows(tuned);
  if (options.json) {
    fmt::print("{}\n", tune_json(gpu, kind.arch, tuned, rows).dump(2));
  } else {
    print_rows(rows);
  }
  if (!options.out.empty()) {
    const std::string text = file_text({gpu.name, gpu.compute_capability, kind.arch, kind.sms}, rows);
    io::replace_file(options.out, {text});
    if (!options.json)
      fmt::print("\nwritten to {}: MLAVERIFY_TUNE_FILE={} makes the library use it\n", options.out, options.out);
  }
  return report_wrong(tuned) ? kCheckFailed : kOk;
}

}  // namespace

void add_tune(CLI::App &app, int &exit_code) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App *verb = app.add_subcommand("tune", "Find faster rows of the config table for this GPU");
  verb->add_option("--grid", options->grid, "Built-in grid or a file of shapes, one a line (h200, if no sizes are given)");
  add_shape_options(*verb, options->shape);
  verb->add_option("-o,--out", options->out, "Write a file for MLAVERIFY_TUNE_FILE")->type_name("FILE");
  verb->add_flag("--json", options->json, "Print one JSON object");
  verb->callback([options, &exit_code] { exit_code = tune(*options); });
}

}  // namespace mlaverify::cli
