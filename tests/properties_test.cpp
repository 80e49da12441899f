// The table of properties, and what is made of measurements. Nothing here is timed.
#include "properties.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "grid.h"
#include "properties_report.h"

namespace mlaverify::cli {
namespace {

constexpr const char *kA = "--heads 16 --qlen 2 --batch 32 --seq-len 32768";
constexpr const char *kB = "--heads 16 --qlen 1 --batch 32 --seq-len 32768";
constexpr const char *kC = "--heads 128 --qlen 1 --batch 128 --seq-len 8192";

// A: 30 us, 1.5 x floor, 3.5 us on the host. B: 24 us, 1.2 x floor, 4.5 us on the host. C: 400 us in a burst, 511 sustained,
// 440 batch-invariant.
Measurements measurements() {
  const auto result = [](const char *shape, double us, double floor_us) {
    BenchResult r;
    r.shape = parse_grid(shape, "test").front();
    r.work = work_of(r.shape);
    r.time.median = us * 1e-6;
    r.floor = floor_us * 1e-6;
    r.record = peer_records().find(shape);
    return r;
  };
  Measurements m;
  m.times[kA] = result(kA, 30, 20);
  m.times[kB] = result(kB, 24, 20);
  m.times[kC] = result(kC, 400, 367);
  m.times[kA].on_host = Timing{3.5e-6, 0, 300};
  m.times[kB].on_host = Timing{4.5e-6, 0, 300};
  m.times[kC].sustained = Timing{511e-6, 0, 31};
  m.times[kC].invariant = Timing{440e-6, 0, 7};
  m.first_calls[kA] = {FirstCall{2, 0, 110e-6, 100e-6}, FirstCall{2, 0, 1100e-6, 100e-6}};
  m.first_calls[kB] = {FirstCall{1, 1, 50e-6, 100e-6}, FirstCall{1, 0, 100e-6, 100e-6}};
  return m;
}

double value(Measure measure, std::vector<std::string> shapes) {
  return value_of({"name", "what", measure, std::move(shapes), 0}, measurements());
}

TEST(Properties, ShapesAreWrittenAsElsewhere) {
  for (const Property &p : properties()) {
    for (const std::string &s : p.shapes) EXPECT_EQ(shape_line(parse_grid(s, p.what).front()), s);
  }
}

TEST(Properties, EachIsThereOnceWithTheShapesOfItsMeasure) {
  std::set<std::string> seen;
  for (const Property &p : properties()) {
    EXPECT_TRUE(seen.insert(p.name + ": " + p.what).second) << p.name << ": " << p.what;
    const std::set<std::string> different(p.shapes.begin(), p.shapes.end());
    EXPECT_EQ(different.size(), p.shapes.size()) << p.what;
    if (facts_of(p.measure).in_new_process || p.measure == Measure::time_range || p.measure == Measure::host_time) {
      EXPECT_GE(p.shapes.size(), 2u) << p.what;
    } else {
      const bool pair = p.measure == Measure::time_ratio || p.measure == Measure::floor_ratio;
      EXPECT_EQ(p.shapes.size(), pair ? 2u : 1u) << p.what;
    }
  }
}

TEST(Properties, ModesAreThoseThatMeasuresLookAt) {
  for (const Property &p : properties()) {
    const Modes modes = modes_of(p.shapes[0]);
    const bool sustained = p.measure == Measure::sustained_rate || p.measure == Measure::sustained_peer;
    EXPECT_TRUE(modes.invariant || p.measure != Measure::invariant_ratio) << p.what;
    EXPECT_TRUE(modes.sustained || !sustained) << p.what;
    EXPECT_TRUE(modes.host_overhead || p.measure != Measure::host_time) << p.what;
    if (p.measure != Measure::sustained_peer) continue;
    const PeerRecord *record = peer_records().find(p.shapes[0]);
    ASSERT_NE(record, nullptr) << p.what;
    EXPECT_NE(record->best_sustained(), nullptr) << p.what;
  }
  EXPECT_FALSE(modes_of(kA).invariant);
  EXPECT_FALSE(modes_of(kA).sustained);
  EXPECT_FALSE(modes_of(kA).host_overhead);
}

// FP8 promises hold from 256k keys on.
TEST(Properties, Fp8ShapesHaveEnoughKeys) {
  int shapes = 0;
  for (const auto &p : properties()) {
    if (facts_of(p.measure).in_new_process) continue;
    const Shape s = parse_grid(p.shapes[0], p.what).front();
    if (s.kv_dtype != DType::f8_e4m3) continue;
    ++shapes;
    EXPECT_GE(s.seq_lens.size() * static_cast<std::size_t>(s.seq_lens[0]), 256u * 1024) << p.what;
  }
  EXPECT_GT(shapes, 0);
}

TEST(PropertyValues, OfTimes) {
  EXPECT_DOUBLE_EQ(value(Measure::time, {kA}), 30e-6);
  EXPECT_DOUBLE_EQ(value(Measure::times_floor, {kA}), 1.5);
  EXPECT_DOUBLE_EQ(value(Measure::time_ratio, {kA, kB}), 1.25);
  EXPECT_DOUBLE_EQ(value(Measure::invariant_ratio, {kC}), 1.1);
  EXPECT_DOUBLE_EQ(value(Measure::sustained_peer, {kC}), 1);
  EXPECT_NEAR(value(Measure::sustained_rate, {kC}), 292057776128 / 511e-6, 1);
}

TEST(PropertyValues, ARatioOfFloorsLeavesOutWhatTheFloorTakes) {
  Measurements m = measurements();
  m.times[kA].time.median = 48e-6;
  m.times[kA].floor = 40e-6;
  EXPECT_DOUBLE_EQ(value_of({"", "", Measure::floor_ratio, {kA, kB}, 0}, m), 1);
}

TEST(PropertyValues, ARangeDoesNotDependOnTheOrder) {
  for (const auto &shapes : {std::vector<std::string>{kA, kB, kC}, {kC, kA, kB}, {kB, kC, kA}}) {
    EXPECT_DOUBLE_EQ(value(Measure::time_range, shapes), 400.0 / 24);
  }
}

TEST(PropertyValues, OfHostTimesAreTheWorst) {
  EXPECT_DOUBLE_EQ(value(Measure::host_time, {kA, kB}), 4.5e-6);
  EXPECT_DOUBLE_EQ(value(Measure::host_time, {kB, kA}), 4.5e-6);
}

TEST(PropertyValues, OfFirstCallsAreTheWorst) {
  EXPECT_EQ(value(Measure::kernels, {kA, kB}), 2);
  EXPECT_EQ(value(Measure::other_nodes, {kA, kB}), 1);
  EXPECT_NEAR(value(Measure::first_call, {kA}), 0.01, 1e-9);
  EXPECT_EQ(value(Measure::first_call, {kB}), 0);  // never slower than later ones
}

TEST(PropertyValues, AFailedFirstCallIsMissed) {
  Measurements m = measurements();
  m.first_calls[kB].warm.reset();
  for (const Measure measure : {Measure::kernels, Measure::other_nodes, Measure::first_call}) {
    const Property p = {"", "", measure, {kA, kB}, 1e9};
    EXPECT_TRUE(std::isnan(value_of(p, m)));
    EXPECT_FALSE(meets(p, value_of(p, m)));
  }
  // Without a warm-up a driver may refuse to load kernels during capture; what is captured behind one then loads none.
  m.first_calls[kA].cold.reset();
  EXPECT_EQ(value_of({"", "", Measure::first_call, {kA}, 0}, m), 0);
}

TEST(PropertyValues, BoundsAreMetWhenTheyAreReached) {
  const Property most = {"", "", Measure::time_ratio, {}, 1.15}, least = {"", "", Measure::sustained_rate, {}, 720e12};
  EXPECT_TRUE(meets(most, 1.15));
  EXPECT_FALSE(meets(most, 1.1500001));
  EXPECT_TRUE(meets(least, 720e12));
  EXPECT_FALSE(meets(least, 719e12));
}

TEST(PropertyReport, Rows) {
  const Measurements m = measurements();
  const auto row = [&](const Property &p) { return property_row({&p, value_of(p, m)}, m); };
  EXPECT_EQ(row({"query tokens", "2 against 1", Measure::time_ratio, {kA, kB}, 1.15}),
            "MISSED          1.250          at most 1.15  query tokens: 2 against 1  (30.0, 24.0 us)\n");
  EXPECT_EQ(row({"time", "short", Measure::time, {kA}, 31e-6}),
            "ok            30.0 us         at most 31 us  time: short  (30.0 us)\n");
  EXPECT_EQ(row({"rate", "long", Measure::sustained_rate, {kC}, 720e12}),
            "MISSED  571.5 TFLOP/s  at least 720 TFLOP/s  rate: long  (511.0 us)\n");
  EXPECT_EQ(row({"launches", "all", Measure::kernels, {kA, kB}, 2}),
            "ok                  2             at most 2  launches: all\n");
  EXPECT_EQ(row({"host", "both", Measure::host_time, {kA, kB}, 5e-6}),
            "ok            4.50 us          at most 5 us  host: both  (3.5, 4.5 us)\n");
  const Property failed = {"launches", "all", Measure::kernels, {kA}, 2};
  EXPECT_EQ(property_row({&failed, std::nan("")}, m), "MISSED         failed             at most 2  launches: all\n");
}

TEST(PropertyReport, Tail) {
  const Property p = {"", "", Measure::time, {kA}, 30e-6};
  EXPECT_EQ(properties_tail({{&p, 29e-6}, {&p, 31e-6}, {&p, 30e-6}}), "\n2 of 3 bounds met\n");
}

TEST(PropertyReport, Json) {
  const Measurements m = measurements();
  const Property invariant = {"mode", "one", Measure::invariant_ratio, {kC}, 1.15};
  const Property launches = {"launches", "all", Measure::kernels, {kB}, 2};
  const Property host = {"host", "one", Measure::host_time, {kA}, 5e-6};
  const Property failed = {"launches", "none", Measure::kernels, {kA}, 2};
  const auto j = properties_json({{&invariant, 1.1}, {&launches, 1}, {&failed, std::nan("")}, {&host, 3.5e-6}}, m);
  EXPECT_EQ(j["met"], 3);
  EXPECT_EQ(j["missed"], 1);
  const auto &first = j["properties"][0];
  EXPECT_EQ(first["property"], "mode");
  EXPECT_EQ(first["what"], "one");
  EXPECT_EQ(first["measure"], "invariant_ratio");
  EXPECT_EQ(first["value"], 1.1);
  EXPECT_EQ(first["bound"], 1.15);
  EXPECT_EQ(first["bound_is"], "at most");
  EXPECT_EQ(first["met"], true);
  EXPECT_EQ(first["shapes"][0]["shape"], kC);
  EXPECT_DOUBLE_EQ(first["shapes"][0]["seconds"].get<double>(), 400e-6);
  EXPECT_DOUBLE_EQ(first["shapes"][0]["invariant_seconds"].get<double>(), 440e-6);
  EXPECT_DOUBLE_EQ(first["shapes"][0]["sustained_seconds"].get<double>(), 511e-6);
  EXPECT_DOUBLE_EQ(first["shapes"][0]["floor_seconds"].get<double>(), 367e-6);
  EXPECT_FALSE(first["shapes"][0].contains("host_seconds"));
  const auto &second = j["properties"][1]["shapes"][0];
  EXPECT_EQ(second["kernel_nodes"], 1);
  EXPECT_EQ(second["other_nodes"], 1);
  EXPECT_DOUBLE_EQ(second["warm"]["first_seconds"].get<double>(), 50e-6);
  EXPECT_DOUBLE_EQ(second["cold"]["later_seconds"].get<double>(), 100e-6);
  EXPECT_EQ(j["properties"][2]["met"], false);
  EXPECT_NE(j["properties"][2].dump().find("\"value\":null"), std::string::npos);
  EXPECT_EQ(j["properties"][3]["measure"], "host_time");
  EXPECT_EQ(j["properties"][3]["shapes"][0]["host_seconds"], 3.5e-6);
}

TEST(FirstCalls, JsonIsReadBack) {
  const FirstCall call = {2, 1, 1.5e-3, 80e-6};
  const FirstCall back = parse_first_call(first_call_json(parse_grid(kA, "test").front(), call, true).dump());
  EXPECT_EQ(back.kernel_nodes, 2);
  EXPECT_EQ(back.other_nodes, 1);
  EXPECT_EQ(back.first, call.first);
  EXPECT_EQ(back.later, call.later);
}

}  // namespace
}  // namespace mlaverify::cli
