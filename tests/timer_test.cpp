// What the timer makes of its samples. Nothing here is timed.
#include "timer.h"

#include <gtest/gtest.h>

namespace mlaverify::cli {
namespace {

TEST(Timer, MedianOfOddAndEvenCounts) {
  EXPECT_DOUBLE_EQ(summarize({5, 1, 3}).median, 3);
  EXPECT_DOUBLE_EQ(summarize({4, 1, 3, 2}).median, 2.5);
  EXPECT_EQ(summarize({4, 1, 3, 2}).repetitions, 4);
}

TEST(Timer, OneOutlierMovesNeitherMedianNorSpread) {
  const Timing t = summarize({2, 2, 2, 2, 2, 2, 2, 1000});
  EXPECT_DOUBLE_EQ(t.median, 2);
  EXPECT_DOUBLE_EQ(t.spread, 0);
}

TEST(Timer, SpreadIsTheDistanceOfTheQuartilesOverTheMedian) {
  EXPECT_DOUBLE_EQ(summarize({8, 9, 10, 12, 13}).spread, 0.3);
  EXPECT_DOUBLE_EQ(summarize({7}).spread, 0);
  EXPECT_DOUBLE_EQ(summarize({0, 0, 0}).spread, 0);
}

TEST(Timer, NineOfTenTakeNoLongerThanP90) {
  EXPECT_DOUBLE_EQ(summarize({11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}).p90, 10);
  EXPECT_DOUBLE_EQ(summarize({1, 2}).p90, 1.9);
  EXPECT_DOUBLE_EQ(summarize({7}).p90, 7);
}

TEST(Timer, CallsAtLeastFiveTimesAfterTheWarmUp) {
  int calls = 0;
  const Timing t = time_calls([&] { ++calls; });
  EXPECT_GE(t.repetitions, 5);
  EXPECT_GT(calls, t.repetitions);
}

TEST(Timer, WarmsUpWithOneCallAtLeast) {
  int calls = 0;
  const Timing t = time_calls([&] { ++calls; }, 0);
  EXPECT_GT(calls, t.repetitions);
}

}  // namespace
}  // namespace mlaverify::cli
