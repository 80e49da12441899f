#include "page_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace mlaverify::cli {
namespace {

// Any sequence of calls against a plain list of owned pages.
RC_GTEST_PROP(PagePool, EveryPageHasOneOwner, ()) {
  const int32_t capacity = *rc::gen::inRange(0, 20);
  const auto choices = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 100));
  PagePool pool(capacity);
  std::vector<int32_t> owned;
  std::size_t peak = 0;
  int64_t allocations = 0;
  for (int choice : choices) {
    if (choice >= 40 && static_cast<int32_t>(owned.size()) == capacity) {
      RC_ASSERT_THROWS_AS(pool.allocate(), std::logic_error);
    } else if (choice >= 40) {
      const int32_t page = pool.allocate();
      ++allocations;
      RC_ASSERT(page >= 0 && page < capacity);
      RC_ASSERT(std::find(owned.begin(), owned.end(), page) == owned.end());
      owned.push_back(page);
    } else if (!owned.empty()) {
      const auto at = owned.begin() + choice % static_cast<int>(owned.size());
      const int32_t page = *at;
      owned.erase(at);
      pool.free(page);
      RC_ASSERT_THROWS_AS(pool.free(page), std::logic_error);
    }
    peak = std::max(peak, owned.size());
    RC_ASSERT(pool.in_use() == static_cast<int32_t>(owned.size()));
    RC_ASSERT(pool.peak() == static_cast<int32_t>(peak));
    RC_ASSERT(pool.allocations() == allocations);
  }
}

TEST(PagePool, ReusesFreedPagesFirst) {
  PagePool pool(4);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 1);
  pool.free(0);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.peak(), 3);
  EXPECT_EQ(pool.allocations(), 4);
}

TEST(PagePool, RefusesPagesThatAreNotInUse) {
  PagePool pool(4);
  pool.allocate();
  for (int32_t page : {-1, 1, 4, 2147483647}) EXPECT_THROW(pool.free(page), std::logic_error) << page;
  pool.free(0);
  EXPECT_THROW(pool.free(0), std::logic_error);
  EXPECT_EQ(pool.in_use(), 0);
}

TEST(PagePool, CostsNothingForPagesNeverUsed) {
  PagePool pool(2147483647);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.capacity(), 2147483647);
}

}  // namespace
}  // namespace mlaverify::cli
