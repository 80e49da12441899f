// How many threads the CPU backend starts, also for callers that are in an OpenMP parallel region themselves.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "support/test_call.h"

namespace mlaverify::test {
namespace {

int threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

// Work for several threads.
std::unique_ptr<TestCall> make_call(int32_t num_threads) {
  TestCase c;
  c.lens = {4000, 3000};
  c.heads = 16;
  auto call = std::make_unique<TestCall>(c);
  call->args.backend = MLAVERIFY_BACKEND_CPU;
  call->args.num_threads = num_threads;
  return call;
}

// The most threads that the process has at once while each of `callers` threads of a parallel region makes calls with `num_threads`;
// less those that it has without the calls.
int started_in_a_region(int callers, int32_t num_threads) {
  std::vector<std::unique_ptr<TestCall>> calls;
  for (int i = 0; i < callers; ++i) calls.push_back(make_call(num_threads));
  std::atomic<int> most = 0, failed = 0;
  std::atomic<bool> done = false;
  std::atomic<int> members = 0;
#pragma omp parallel num_threads(callers)
  ++members;  // starts the region's threads
  EXPECT_EQ(members, callers);
  const int before = threads_of_this_process() + 1;  // and the one that counts
  std::thread counts([&] {
    while (!done) most = std::max(most.load(), threads_of_this_process());
  });
#pragma omp parallel num_threads(callers)
  for (int repeat = 0; repeat < 20; ++repeat) {
    if (!calls[static_cast<std::size_t>(omp_get_thread_num())]->run().empty()) ++failed;
  }
  done = true;
  counts.join();
  EXPECT_EQ(failed, 0);
  for (const auto &call : calls) EXPECT_EQ(call->mismatch(), "");
  return most - before;
}

TEST(OmpThreads, AsManyAsAskedFor) {
  const auto call = make_call(3);
  const int before = threads_of_this_process();
  ASSERT_EQ(call->run(), "");
  const int started = threads_of_this_process() - before;  // they stay, for later calls
  EXPECT_GT(started, 0);
  EXPECT_LE(started, 2);
}

TEST(OmpThreads, NoneInAParallelRegionOfTheCaller) {
  omp_set_max_active_levels(1);
  for (const int32_t num_threads : {0, 1, 4}) EXPECT_LE(started_in_a_region(2, num_threads), 0) << num_threads;
}

// A caller that allows nested regions gets them where it asks for more than one thread only. (How many of a nested region's threads are
// there at once is the runtime's matter: it ends them after each and starts new ones.)
TEST(OmpThreads, NoneForOneThreadInNestedRegions) {
  omp_set_max_active_levels(2);
  EXPECT_LE(started_in_a_region(2, 1), 0);
}

}  // namespace
}  // namespace mlaverify::test
