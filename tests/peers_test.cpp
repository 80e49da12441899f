// The recorded times of other implementations: that each belongs to a shape of a built-in grid, in its group, with the floor that
// our own model gives it.
#include "peers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "gpu.h"
#include "grid.h"

namespace mlaverify::cli {
namespace {

TEST(Peers, WorkAndFloorsAreThoseOfTheShapes) {
  for (const PeerRecord &r : peer_records().records) {
    const Work work = work_of(parse_grid(r.shape, r.name).front());
    EXPECT_EQ(work.bytes, r.work.bytes) << r.shape;
    EXPECT_EQ(work.flops, r.work.flops) << r.shape;
    // The file has hundredths of a microsecond: of the shortest floor, 0.29 us, that is 2 %.
    EXPECT_NEAR(floor_seconds(work, peer_records().ceilings), r.floor, std::max(0.01 * r.floor, 0.006e-6)) << r.shape;
  }
}

TEST(Peers, AreRecordedForEachShapeOfTheGridsAndNoOther) {
  std::set<std::string> shapes;
  for (const char *grid : {"h200", "h200-users"}) {
    for (const Shape &s : load_grid(grid)) {
      const std::string line = shape_line(s);
      EXPECT_TRUE(shapes.insert(line).second) << "twice: " << line;
      const PeerRecord *record = peer_records().find(line);
      ASSERT_NE(record, nullptr) << line;
      EXPECT_EQ(record->shape, line);
    }
  }
  EXPECT_EQ(shapes.size(), 100u);
  EXPECT_EQ(shapes.size(), peer_records().records.size());
  EXPECT_EQ(load_grid("h200").size(), 80u);
  EXPECT_EQ(peer_records().find("--heads 16 --qlen 4 --batch 1 --seq-len 1"), nullptr);
}

// Counts and means as docs/bench.md states them.
TEST(Peers, Groups) {
  struct Sum {
    int points = 0;
    double log = 0;
    double mean() const { return std::exp(log / points); }
  };
  std::map<std::string, Sum> sums;
  Sum all;
  for (const PeerRecord &r : peer_records().records) {
    if (r.group == nullptr) continue;
    const std::string name = r.group->name;
    for (Sum *s : {&sums[name], name == "users" ? nullptr : &all}) {
      if (s == nullptr) continue;
      ++s->points;
      s->log += std::log(r.best() / r.floor);
    }
  }
  EXPECT_EQ(sums["A"].points, 36);
  EXPECT_EQ(sums["B"].points, 15);
  EXPECT_EQ(sums["C"].points, 15);
  EXPECT_EQ(sums["D"].points, 10);
  EXPECT_EQ(sums["users"].points, 17);
  EXPECT_EQ(all.points, 76);
  EXPECT_NEAR(sums["A"].mean(), 1.15, 0.006);
  EXPECT_NEAR(sums["B"].mean(), 1.33, 0.006);
  EXPECT_NEAR(sums["C"].mean(), 1.66, 0.006);
  EXPECT_NEAR(sums["D"].mean(), 4.6, 0.06);
  EXPECT_NEAR(sums["users"].mean(), 1.33, 0.006);
  EXPECT_NEAR(all.mean(), 1.53, 0.006);
}

TEST(Peers, BestTimesScaleAsTheFloorDoes) {
  const PeerRecord *r = peer_records().find("--heads 16 --qlen 1 --batch 128 --seq-len 8192");
  ASSERT_NE(r, nullptr);
  EXPECT_EQ(r->best_peer, "FlashMLA");
  EXPECT_DOUBLE_EQ(r->best(), 282.8e-6);
  EXPECT_DOUBLE_EQ(r->triton(), 343.0e-6);
  EXPECT_DOUBLE_EQ(r->best_scaled(r->ceilings), r->best());
  const Ceilings half = {r->ceilings.bytes_per_second / 2, r->ceilings.flops_per_second / 2};
  EXPECT_DOUBLE_EQ(r->best_scaled(half), 2 * r->best());
}

TEST(Peers, SustainedTimesAreRecordedAtTwoShapes) {
  int recorded = 0;
  for (const PeerRecord &r : peer_records().records) {
    if (r.best_sustained() == nullptr) continue;
    ++recorded;
    EXPECT_GT(r.best_sustained()->second, r.best()) << r.shape;  // power limits take time, they do not give it
  }
  EXPECT_EQ(recorded, 2);
  const PeerRecord *r = peer_records().find("--heads 128 --qlen 4 --batch 128 --seq-len 8192");
  ASSERT_NE(r, nullptr);
  EXPECT_EQ(r->best_sustained()->first, "FlashMLA");
  EXPECT_NEAR(r->work.flops / r->best_sustained()->second, 640e12, 5e12);
}

TEST(StatedGpus, ThereIsOneForEachCudaArchitecture) {
  for (const rules::Arch arch : {rules::Arch::sm_80, rules::Arch::sm_86, rules::Arch::sm_90, rules::Arch::sm_100}) {
    const StatedGpu gpu = stated_gpu(arch);
    EXPECT_GT(gpu.sms, 0);
    EXPECT_GT(gpu.ceilings.bytes_per_second, 0);
    EXPECT_GT(gpu.ceilings.flops_per_second, gpu.ceilings.bytes_per_second);
  }
  EXPECT_EQ(stated_gpu(rules::Arch::sm_90).ceilings.bytes_per_second, peer_records().ceilings.bytes_per_second);
  EXPECT_EQ(stated_gpu(rules::Arch::sm_90).ceilings.flops_per_second, peer_records().ceilings.flops_per_second);
}

}  // namespace
}  // namespace mlaverify::cli
