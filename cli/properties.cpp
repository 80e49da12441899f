#include "properties.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "grid.h"

namespace mlaverify::cli {
namespace {

std::string shape(int32_t heads, int32_t qlen, int32_t batch, int32_t len, const std::string &more = "") {
  return fmt::format("--heads {} --qlen {} --batch {} --seq-len {}{}{}", heads, qlen, batch, len, more.empty() ? "" : " ",
                     more);
}

// The recorded shape of that name with 16 heads and 4 query tokens: bench/h200.json has the lists of lengths.
std::string recorded(const std::string &name) {
  const std::string start = "--heads 16 --qlen 4 ";
  for (const PeerRecord &r : peer_records().records) {
    if (r.name == name && r.shape.compare(0, start.size(), start) == 0) return r.shape;
  }
  throw std::logic_error("no recorded shape " + name);
}

constexpr int32_t k1 = 1024, k4 = 4096, k8 = 8192, k32 = 32768, k128 = 131072;
const char *const kFp8 = "--kv-dtype f8_e4m3";

void add_ratios(std::vector<Property> &all) {
  for (const int32_t qlen : {2, 3, 4}) {
    all.push_back({"query tokens",
                   fmt::format("{} against 1; 16 heads, 32 x 32k", qlen),
                   Measure::time_ratio,
                   {shape(16, qlen, 32, k32), shape(16, 1, 32, k32)},
                   1.15});
  }
  all.push_back({"64 to 80 rows",
                 "16 heads, 4 to 5 query tokens, 128 x 8k; beyond the floor",
                 Measure::floor_ratio,
                 {shape(16, 5, 128, k8), shape(16, 4, 128, k8)},
                 1.10});
  for (const int32_t qlen : {1, 4}) {
    Property p = {
        "page size", fmt::format("1, 16, 64, 128 tokens; 16 heads x {}, 32 x 8k", qlen), Measure::time_range, {}, 1.15};
    for (const char *page : {"--page-size 1", "--page-size 16", "", "--page-size 128"})
      p.shapes.push_back(shape(16, qlen, 32, k8, page));
    all.push_back(p);
  }
  for (const auto &[heads, full] : {std::pair{12, 16}, {20, 32}}) {
    for (const int32_t qlen : {1, 4}) {
      all.push_back({"heads",
                     fmt::format("{} against {} x {}, 32 x 8k; beyond the floor", heads, full, qlen),
                     Measure::floor_ratio,
                     {shape(heads, qlen, 32, k8), shape(full, qlen, 32, k8)},
                     1.10});
    }
  }
  all.push_back({"skewed lengths",
                 "skew32 against even32; 16 heads x 4",
                 Measure::time_ratio,
                 {recorded("skew32"), recorded("even32")},
                 1.20});
}

void add_times(std::vector<Property> &all) {
  const auto add = [&](const std::string &what, const std::string &s, double microseconds) {
    all.push_back({"time", what, Measure::time, {s}, microseconds * 1e-6});
  };
  add("thunder4; 16 heads x 4", recorded("thunder4"), 24);
  add("16 heads x 4, 1 x 1k", shape(16, 4, 1, k1), 8);
  for (const int32_t qlen : {1, 4}) add(fmt::format("16 heads x {}, 1 x 8k", qlen), shape(16, qlen, 1, k8), 11);
  add("16 heads x 1, 1 x 128k", shape(16, 1, 1, k128), 41);
  add("16 heads x 4, 1 x 128k", shape(16, 4, 1, k128), 45);
  for (const int32_t qlen : {1, 4}) add(fmt::format("16 heads x {}, 8 x 8k", qlen), shape(16, qlen, 8, k8), 22);
}

// One scale, 256k keys and more: halved bytes must become time.
void add_fp8(std::vector<Property> &all) {
  struct Case {
    int32_t heads, qlen;
    double times_floor, time_ratio;  // at most, 0: no bound
  };
  for (const Case &c : {Case{16, 1, 1.35, 0.65}, {16, 2, 1.35, 0.65}, {16, 4, 1.45, 1}, {128, 1, 0, 1}, {128, 4, 0, 1}}) {
    for (const int32_t batch : {32, 128}) {
      const std::string what = fmt::format("{} heads x {}, {} x 8k", c.heads, c.qlen, batch);
      const std::string fp8 = shape(c.heads, c.qlen, batch, k8, kFp8);
      if (c.times_floor > 0) all.push_back({"FP8 cache, x floor", what, Measure::times_floor, {fp8}, c.times_floor});
      all.push_back(
          {"FP8 cache against bf16", what, Measure::time_ratio, {fp8, shape(c.heads, c.qlen, batch, k8)}, c.time_ratio});
    }
  }
}

void add_invariant(std::vector<Property> &all) {
  struct Case {
    const char *what;
    std::string shape;
  };
  for (const Case &c : {Case{"16 heads x 1, 1 x 8k", shape(16, 1, 1, k8)},
                        {"16 heads x 4, 1 x 128k", shape(16, 4, 1, k128)},
                        {"16 heads x 4, 8 x 8k", shape(16, 4, 8, k8)},
                        {"16 heads x 4, 32 x 8k", shape(16, 4, 32, k8)},
                        {"16 heads x 4, 128 x 8k", shape(16, 4, 128, k8)},
                        {"128 heads x 4, 32 x 8k", shape(128, 4, 32, k8)}}) {
    all.push_back({"batch-invariant mode", c.what, Measure::invariant_ratio, {c.shape}, 1.15});
  }
}

void add_calls(std::vector<Property> &all) {
  // Small and large, few rows and many, cut and uncut, each kernel.
  const std::vector<std::string> shapes = {shape(16, 1, 1, k1),
                                           shape(16, 4, 32, k1),
                                           shape(128, 2, 8, k8),
                                           recorded("skew32"),
                                           shape(16, 4, 8, k8, "--page-size 1"),
                                           shape(16, 4, 8, k8, kFp8),
                                           shape(16, 1, 8, k8, "--dtype f16 --kv-dtype f16"),
                                           shape(16, 1, 8, k1, "--dtype f32 --kv-dtype f32")};
  const std::string what = fmt::format("most of {} shapes", shapes.size());
  all.push_back({"launches of a call", what, Measure::kernels, shapes, 2});
  all.push_back({"fills, copies, ... of a call", what, Measure::other_nodes, shapes, 0});
  all.push_back(
      {"loading by a first call", "host time behind a warm-up over that without; " + what, Measure::first_call, shapes, 0.2});
  all.push_back({"host time of a call",
                 "16 heads x 4, 1 x 1k; 128 x 1, 32 x 4k; 16 x 4, 256 x 1k; the most",
                 Measure::host_time,
                 {shape(16, 4, 1, k1), shape(128, 1, 32, k4), shape(16, 4, 256, k1)},
                 5.0e-6});
}

std::vector<Property> make_properties() {
  std::vector<Property> all;
  add_calls(all);
  add_times(all);
  add_ratios(all);
  add_fp8(all);
  add_invariant(all);
  // Last: they leave the card hot.
  all.push_back({"sustained rate", "128 heads x 4, 128 x 8k", Measure::sustained_rate, {shape(128, 4, 128, k8)}, 720e12});
  all.push_back(
      {"sustained against FlashMLA", "128 heads x 1, 128 x 8k", Measure::sustained_peer, {shape(128, 1, 128, k8)}, 0.88});
  return all;
}

double first_call_value(const FirstCalls &calls) {
  if (!calls.warm) return std::numeric_limits<double>::quiet_NaN();
  if (!calls.cold) return 0;  // the driver refuses to load anything during capture, so the warm call did not
  if (calls.warm->extra() == 0) return 0;
  return calls.warm->extra() / calls.cold->extra();
}

double largest(const Property &p, const Measurements &m, double (*value)(const FirstCalls &)) {
  double most = 0;
  for (const std::string &s : p.shapes) {
    const double v = value(m.first_calls.at(s));
    if (std::isnan(v)) return v;
    most = std::max(most, v);
  }
  return most;
}

}  // namespace

const MeasureFacts &facts_of(Measure measure) {
  static const std::map<Measure, MeasureFacts> facts = {
      {Measure::time, {"time", "us", 1e-6, 1, false, false}},
      {Measure::times_floor, {"times_floor", "", 1, 3, false, false}},
      {Measure::time_ratio, {"time_ratio", "", 1, 3, false, false}},
      {Measure::floor_ratio, {"floor_ratio", "", 1, 3, false, false}},
      {Measure::time_range, {"time_range", "", 1, 3, false, false}},
      {Measure::invariant_ratio, {"invariant_ratio", "", 1, 3, false, false}},
      {Measure::sustained_rate, {"sustained_rate", "TFLOP/s", 1e12, 1, true, false}},
      {Measure::sustained_peer, {"sustained_peer", "", 1, 3, false, false}},
      {Measure::host_time, {"host_time", "us", 1e-6, 2, false, false}},
      {Measure::kernels, {"kernels", "", 1, 0, false, true}},
      {Measure::other_nodes, {"other_nodes", "", 1, 0, false, true}},
      {Measure::first_call, {"first_call", "", 1, 3, false, true}}};
  return facts.at(measure);
}

const std::vector<Property> &properties() {
  static const std::vector<Property> all = make_properties();
  return all;
}

Modes modes_of(const std::string &shape) {
  Modes modes;
  for (const Property &p : properties()) {
    if (std::find(p.shapes.begin(), p.shapes.end(), shape) == p.shapes.end()) continue;
    modes.invariant = modes.invariant || p.measure == Measure::invariant_ratio;
    modes.sustained = modes.sustained || p.measure == Measure::sustained_rate || p.measure == Measure::sustained_peer;
    modes.host_overhead = modes.host_overhead || p.measure == Measure::host_time;
  }
  return modes;
}

const Timing &timing_of(Measure measure, const BenchResult &result) {
  switch (measure) {
    case Measure::invariant_ratio: return *result.invariant;
    case Measure::sustained_rate:
    case Measure::sustained_peer: return *result.sustained;
    case Measure::host_time: return *result.on_host;
    default: return result.time;
  }
}

double value_of(const Property &p, const Measurements &m) {
  const auto at = [&](std::size_t i) -> const BenchResult & { return m.times.at(p.shapes[i]); };
  switch (p.measure) {
    case Measure::time: return at(0).time.median;
    case Measure::times_floor: return at(0).times_floor();
    case Measure::time_ratio: return at(0).time.median / at(1).time.median;
    case Measure::floor_ratio: return at(0).times_floor() / at(1).times_floor();
    case Measure::time_range: {
      double least = at(0).time.median, most = least;
      for (std::size_t i = 1; i < p.shapes.size(); ++i) {
        least = std::min(least, at(i).time.median);
        most = std::max(most, at(i).time.median);
      }
      return most / least;
    }
    case Measure::invariant_ratio: return at(0).invariant->median / at(0).time.median;
    case Measure::sustained_rate: return at(0).work.flops / at(0).sustained->median;
    case Measure::sustained_peer: return at(0).ratio_to_sustained_peer().value();
    case Measure::host_time: {
      double most = 0;
      for (std::size_t i = 0; i < p.shapes.size(); ++i) most = std::max(most, at(i).on_host->median);
      return most;
    }
    case Measure::kernels:
      return largest(p, m, [](const FirstCalls &c) {
        return c.warm ? static_cast<double>(c.warm->kernel_nodes) : std::numeric_limits<double>::quiet_NaN();
      });
    case Measure::other_nodes:
      return largest(p, m, [](const FirstCalls &c) {
        return c.warm ? static_cast<double>(c.warm->other_nodes) : std::numeric_limits<double>::quiet_NaN();
      });
    case Measure::first_call: return largest(p, m, first_call_value);
  }
  throw std::logic_error("unknown measure");
}

bool meets(const Property &p, double value) { return facts_of(p.measure).at_least ? value >= p.bound : value <= p.bound; }

}  // namespace mlaverify::cli
