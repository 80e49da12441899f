// Which rows of the config table `mlaverify tune` makes of its measurements.
#include "tune_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace mlaverify::cli {
namespace {

using rules::Arch;
using rules::GpuKernel;
using rules::PageClass;
using rules::TypeClass;

// A shape with so many rows whose present configuration takes 100 us.
TunedShape shape(int64_t rows, std::vector<TunedShape::Candidate> candidates, Configuration present = {GpuKernel::hopper, 32}) {
  TunedShape s;
  s.key = {Arch::sm_90, rows, TypeClass::same_16_bit, PageClass::boxes};
  s.present = present;
  s.present_time.median = 100e-6;
  s.candidates = std::move(candidates);
  return s;
}

TunedShape::Candidate candidate(GpuKernel kernel, int32_t shares, double us, double spread = 0, std::string wrong = "") {
  return {{kernel, shares}, {us * 1e-6, spread, 9}, std::move(wrong)};
}

TEST(TuneChoice, ConfigurationsAreWhatTheArchitectureHas) {
  const auto has = [](Arch arch, GpuKernel kernel, int32_t shares) {
    const auto all = configurations_of(arch);
    return std::count(all.begin(), all.end(), Configuration{kernel, shares}) == 1;
  };
  EXPECT_TRUE(has(Arch::sm_90, GpuKernel::hopper, 128));
  EXPECT_TRUE(has(Arch::sm_90, GpuKernel::portable_64, 4));
  EXPECT_FALSE(has(Arch::sm_80, GpuKernel::hopper, 32));
  EXPECT_FALSE(has(Arch::sm_86, GpuKernel::portable_64, 32));
  EXPECT_TRUE(has(Arch::sm_86, GpuKernel::portable_16, 32));
  EXPECT_TRUE(has(Arch::sm_86, GpuKernel::generic, 32));
}

TEST(TuneChoice, OnlyWhatIsFasterByMoreThanTheNoiseWins) {
  EXPECT_TRUE(tuned_rows({}).empty());
  EXPECT_TRUE(tuned_rows({shape(64, {})}).empty());
  EXPECT_TRUE(tuned_rows({shape(64, {candidate(GpuKernel::hopper, 64, 98.5)})}).empty());
  EXPECT_TRUE(tuned_rows({shape(64, {candidate(GpuKernel::hopper, 64, 94, 0.08)})}).empty());
  const std::vector<TunedRow> rows =
      tuned_rows({shape(64, {candidate(GpuKernel::hopper, 64, 95), candidate(GpuKernel::hopper, 128, 80)})});
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_TRUE(rows[0].row ==
              (rules::GpuRow{Arch::sm_90, 64, 64, TypeClass::same_16_bit, PageClass::boxes, GpuKernel::hopper, 128}));
  EXPECT_NEAR(rows[0].gain, 1.25, 1e-9);
  EXPECT_EQ(rows[0].shapes, 1);
}

TEST(TuneChoice, WrongResultsNeverWin) {
  const TunedShape right = shape(64, {candidate(GpuKernel::hopper, 64, 50)});
  const TunedShape wrong = shape(64, {candidate(GpuKernel::hopper, 64, 50, 0, "row 0: out is off")});
  EXPECT_EQ(tuned_rows({right}).size(), 1U);
  EXPECT_TRUE(tuned_rows({wrong}).empty());
  EXPECT_TRUE(tuned_rows({right, wrong}).empty());
}

TEST(TuneChoice, AConfigurationMustNotLoseAtAnyShapeOfItsRow) {
  const TunedShape gains = shape(64, {candidate(GpuKernel::hopper, 64, 80), candidate(GpuKernel::hopper, 16, 95)});
  const TunedShape loses = shape(64, {candidate(GpuKernel::hopper, 64, 104), candidate(GpuKernel::hopper, 16, 95)});
  const std::vector<TunedRow> rows = tuned_rows({gains, loses});
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].row.shares_squared_per_tile, 16);
  // A shape that cannot have the kernel stays as it is: no loss, and a part in the mean.
  const TunedShape without = shape(64, {}, {GpuKernel::portable_64, 32});
  const std::vector<TunedRow> with = tuned_rows({gains, without});
  ASSERT_EQ(with.size(), 1U);
  EXPECT_NEAR(with[0].gain, std::sqrt(100.0 / 80), 1e-9);
  EXPECT_EQ(with[0].least, 1);
}

TEST(TuneChoice, OfEquallyFastOnesTheClosestToThePresentWins) {
  const std::vector<TunedRow> rows =
      tuned_rows({shape(16,
                        {candidate(GpuKernel::hopper, 4, 90), candidate(GpuKernel::hopper, 32, 90.5),
                         candidate(GpuKernel::hopper, 16, 90.4), candidate(GpuKernel::hopper, 128, 89.9)},
                        {GpuKernel::portable_16, 16})});
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].row.shares_squared_per_tile, 16);
}

TEST(TuneChoice, NeighbouringRowCountsWithOneWinnerMakeOneRow) {
  const auto wins = [](int64_t rows, int32_t shares, double us = 80) {
    return shape(rows, {candidate(GpuKernel::hopper, shares, us)});
  };
  std::vector<TunedShape> shapes = {wins(128, 64),  wins(32, 64),  wins(64, 64, 50),
                                    shape(256, {}), wins(512, 64), wins(1024, 8)};
  std::vector<TunedRow> rows = tuned_rows(shapes);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].row.rows_from, 32);
  EXPECT_EQ(rows[0].row.rows_to, 128);
  EXPECT_EQ(rows[0].shapes, 3);
  EXPECT_NEAR(rows[0].gain, std::cbrt(1.25 * 1.25 * 2), 1e-9);
  EXPECT_NEAR(rows[0].most, 2, 1e-9);
  EXPECT_EQ(rows[1].row.rows_from, 512);
  EXPECT_EQ(rows[1].row.rows_to, 512);
  EXPECT_EQ(rows[2].row.shares_squared_per_tile, 8);
  shapes[0].key.pages = PageClass::gathered;
  rows = tuned_rows(shapes);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0].row.rows_to, 64);
}

}  // namespace
}  // namespace mlaverify::cli
