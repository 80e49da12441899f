// What bench prints of given results, beside recorded peers. Nothing here is timed.
#include "bench_report.h"

#include <gtest/gtest.h>

#include <string>

#include "grid.h"

namespace mlaverify::cli {
namespace {

// On a GPU with the ceilings of the record, so that floors are those of the record, too.
BenchSetting setting() {
  BenchSetting s;
  s.version = "1.2.3";
  s.backend = "cuda";
  s.detail = "1 device(s), tuned rows: 3";
  s.gpu = GpuInfo{};
  s.sustained = true;
  s.host_overhead = true;
  s.ceilings = peer_records().ceilings;
  return s;
}

// 1.1 x floor in a burst, 1.3 x sustained; 3.5 us on the host.
BenchResult result(const std::string &shape) {
  BenchResult r;
  r.shape = parse_grid(shape, "test").front();
  r.work = work_of(r.shape);
  r.floor = floor_seconds(r.work, setting().ceilings);
  r.time = {1.1 * r.floor, 0.01, 7};
  r.sustained = Timing{1.3 * r.floor, 0.02, 31};
  r.on_host = Timing{3.5e-6, 0.05, 300, 4.25e-6};
  r.record = peer_records().find(shape);
  return r;
}

constexpr const char *kWithSustained = "--heads 128 --qlen 4 --batch 128 --seq-len 8192";
constexpr const char *kWithout = "--heads 128 --qlen 2 --batch 128 --seq-len 8192";
constexpr const char *kUnrecorded = "--heads 16 --qlen 1 --batch 1 --seq-len 77";

TEST(BenchReport, RatioToASustainedPeerNeedsItsTimeAndOurs) {
  BenchResult r = result(kWithSustained);
  EXPECT_DOUBLE_EQ(r.ratio_to_sustained_peer().value(), r.sustained->median / 1820e-6);
  r.sustained.reset();
  EXPECT_FALSE(r.ratio_to_sustained_peer());
  EXPECT_FALSE(result(kWithout).ratio_to_sustained_peer());
  EXPECT_FALSE(result(kUnrecorded).ratio_to_sustained_peer());
}

TEST(BenchReport, Json) {
  const BenchSetting s = setting();
  const auto j = bench_json(s, {result(kWithSustained), result(kWithout)}, s.ceilings);
  EXPECT_NEAR(j["geometric_mean_sustained_times_floor"].get<double>(), 1.3, 1e-9);
  const BenchResult r = result(kWithSustained);
  const auto &sustained = j["shapes"][0]["sustained"];
  EXPECT_EQ(sustained["seconds"], r.sustained->median);
  EXPECT_EQ(sustained["repetitions"], 31);
  EXPECT_NEAR(sustained["times_floor"].get<double>(), 1.3, 1e-9);
  EXPECT_EQ(sustained["flops_per_second"], r.work.flops / r.sustained->median);
  EXPECT_EQ(sustained["bytes_per_second"], r.work.bytes / r.sustained->median);
  EXPECT_EQ(sustained["recorded"]["best_peer"], "FlashMLA");
  EXPECT_EQ(sustained["recorded"]["ratio_to_best_peer"], *r.ratio_to_sustained_peer());
  EXPECT_FALSE(j["shapes"][1]["sustained"].contains("recorded"));
}

TEST(BenchReport, HostTimesAreThereWhereTheyWereMeasured) {
  const BenchSetting s = setting();
  BenchResult without = result(kUnrecorded);
  without.on_host.reset();
  const auto j = bench_json(s, {result(kUnrecorded), without}, s.ceilings);
  const auto &host = j["shapes"][0]["host"];
  EXPECT_EQ(host["seconds"], 3.5e-6);
  EXPECT_EQ(host["p90_seconds"], 4.25e-6);
  EXPECT_EQ(host["repetitions"], 300);
  EXPECT_FALSE(j["shapes"][1].contains("host"));
}

TEST(BenchReport, HostTimesHaveColumns) {
  BenchSetting s = setting();
  s.sustained = false;
  BenchResult r = result(kUnrecorded);
  r.sustained.reset();
  testing::internal::CaptureStdout();
  print_bench_head(s, false);
  print_bench_row(s, r, false);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("--backend cuda --host-overhead\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  host us     p90  shape\n"), std::string::npos) << text;
  EXPECT_NE(text.find("     3.50    4.25  --heads"), std::string::npos) << text;
}

TEST(BenchReport, GroupsStandBesideTheirTargets) {
  const BenchSetting s = setting();
  const auto j = bench_json(s, {result(kWithSustained), result(kWithout)}, s.ceilings);
  ASSERT_EQ(j["groups"].size(), 2u);
  EXPECT_EQ(j["groups"][0]["name"], "A");
  EXPECT_EQ(j["groups"][0]["points"], 2);
  EXPECT_NEAR(j["groups"][0]["times_floor"].get<double>(), 1.1, 1e-9);
  EXPECT_EQ(j["groups"][0]["target"], 1.08);
  EXPECT_EQ(j["groups"][1]["name"], "A-D");
  EXPECT_EQ(j["groups"][1]["target"], 1.27);
}

TEST(BenchReport, TheHeadTellsOfTunedRows) {
  testing::internal::CaptureStdout();
  print_bench_head(setting(), false);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("backend cuda (1 device(s), tuned rows: 3)"), std::string::npos);
}

// The shape comes last, in one column, whatever a row lacks.
TEST(BenchReport, ColumnsAreAligned) {
  const BenchSetting s = setting();
  testing::internal::CaptureStdout();
  print_bench_head(s, true);
  for (const char *shape : {kWithSustained, kWithout, kUnrecorded}) print_bench_row(s, result(shape), true);
  const std::string text = testing::internal::GetCapturedStdout();
  const std::size_t head = text.find("\n\n") + 2, head_end = text.find('\n', head);
  std::string line = text.substr(head, head_end - head);
  for (std::size_t at = 0; (at = line.find("×")) != std::string::npos;) line.replace(at, std::string("×").size(), "x");
  const std::size_t column = line.size() - std::string("shape").size();
  std::size_t begin = head_end + 1;
  for (const char *shape : {kWithSustained, kWithout, kUnrecorded}) {
    const std::size_t end = text.find('\n', begin);
    EXPECT_EQ(text.substr(begin, end - begin).find("--heads"), column) << shape;
    begin = end + 1;
  }
}

}  // namespace
}  // namespace mlaverify::cli
