#include "scheduler.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "rules/paging.h"

namespace mlaverify::cli {
namespace {

struct Case {
  SchedulerOptions options;
  std::vector<TraceRequest> trace;
};

void showValue(const Case &c, std::ostream &os) {
  const SchedulerOptions &o = c.options;
  os << "qlen " << o.qlen << ", max_batch " << o.max_batch << ", page_size " << o.page_size << ", num_pages " << o.num_pages
     << ", accept_rate " << o.accept_rate << ", speed_up " << o.speed_up << ", seed " << o.seed << "; arrival, input, output:";
  for (const TraceRequest &r : c.trace) os << " (" << r.arrival_ms << "," << r.input_tokens << "," << r.output_tokens << ")";
}

std::vector<TraceRequest> numbered(std::vector<TraceRequest> trace) {
  for (std::size_t i = 0; i < trace.size(); ++i) trace[i].line = static_cast<int64_t>(i) + 2;
  return trace;
}

rc::Gen<Case> cases() {
  const auto request = rc::gen::construct<TraceRequest>(
      rc::gen::just<int64_t>(0), rc::gen::map(rc::gen::inRange(0, 200), [](int x) { return static_cast<double>(x); }),
      rc::gen::inRange<int32_t>(1, 60), rc::gen::inRange<int32_t>(0, 30));
  const auto trace = rc::gen::map(rc::gen::container<std::vector<TraceRequest>>(request), [](std::vector<TraceRequest> t) {
    std::stable_sort(t.begin(), t.end(), [](const auto &a, const auto &b) { return a.arrival_ms < b.arrival_ms; });
    return numbered(std::move(t));
  });
  const auto rate = rc::gen::element(0.0, 0.3, 0.7, 1.0);
  const auto options = rc::gen::construct<SchedulerOptions>(
      rc::gen::inRange<int32_t>(1, 9), rc::gen::inRange<int32_t>(1, 6), rc::gen::inRange<int32_t>(1, 20),
      rc::gen::inRange<int32_t>(1, 40), rate, rc::gen::element(0.5, 1.0, 100.0), rc::gen::inRange<uint64_t>(0, 1000));
  return rc::gen::construct<Case>(options, trace);
}

void check_pages(const Scheduler &scheduler, const SchedulerOptions &options) {
  std::set<int32_t> owned;
  std::size_t count = 0;
  for (const LiveRequest &r : scheduler.live()) {
    owned.insert(r.pages.begin(), r.pages.end());
    count += r.pages.size();
  }
  RC_ASSERT(owned.size() == count);  // one owner each
  for (int32_t page : owned) RC_ASSERT(page >= 0 && page < options.num_pages);
  RC_ASSERT(scheduler.pool().in_use() == static_cast<int32_t>(count));
  RC_ASSERT(scheduler.pool().in_use() <= scheduler.reserved_pages());
  RC_ASSERT(scheduler.reserved_pages() <= options.num_pages);
}

// Runs to the end, with `ms` for each step; `watch` sees the requests during each step.
void run(Scheduler &scheduler, const std::function<double(int64_t)> &ms,
         const std::function<void(const std::vector<LiveRequest> &)> &watch) {
  for (int64_t step = 0; scheduler.begin_step(); ++step) {
    watch(scheduler.live());
    scheduler.finish_step(ms(step));
  }
}

RC_GTEST_PROP(Scheduler, KeepsItsPromisesInEveryStep, ()) {
  const Case c = *cases();
  const SchedulerOptions &o = c.options;
  const auto times = *rc::gen::container<std::vector<int>>(7, rc::gen::inRange(0, 100));
  Scheduler scheduler(o, c.trace);
  int64_t accepted = 0, steps = 0;
  int64_t last_admitted = 0;
  while (scheduler.begin_step()) {
    RC_ASSERT(!scheduler.live().empty());
    RC_ASSERT(static_cast<int32_t>(scheduler.live().size()) <= o.max_batch);
    check_pages(scheduler, o);
    std::map<int64_t, LiveRequest> before;
    for (const LiveRequest &r : scheduler.live()) {
      RC_ASSERT(r.trace.arrival_ms / o.speed_up <= scheduler.now_ms());
      RC_ASSERT(r.written == (r.steps == 0 ? 0 : r.length));
      RC_ASSERT(static_cast<int64_t>(r.pages.size()) == rules::pages_for(r.length + o.qlen, o.page_size));
      RC_ASSERT(r.length + r.remaining == r.trace.input_tokens + r.trace.output_tokens);
      if (r.steps == 0) {
        RC_ASSERT(r.trace.line > last_admitted);  // first come, first served
        last_admitted = r.trace.line;
      }
      before.emplace(r.trace.line, r);
    }

    const double now = scheduler.now_ms();
    const double ms = times[static_cast<std::size_t>(steps % 7)];
    const Scheduler::Outcome outcome = scheduler.finish_step(ms);
    RC_ASSERT(scheduler.now_ms() == now + ms);
    check_pages(scheduler, o);
    std::set<int32_t> owned_before, owned_after;
    int64_t advance = 0;
    for (const auto &[line, r] : before) {
      owned_before.insert(r.pages.begin(), r.pages.end());
      const auto &live = scheduler.live();
      const auto after = std::find_if(live.begin(), live.end(), [l = line](const LiveRequest &x) { return x.trace.line == l; });
      if (after == live.end()) {
        RC_ASSERT(r.remaining <= o.qlen);
        advance += r.remaining;
        continue;
      }
      const int32_t gained = after->length - r.length;
      RC_ASSERT(gained >= 1 && gained <= o.qlen);
      if (o.accept_rate == 0) RC_ASSERT(gained == 1);
      if (o.accept_rate == 1) RC_ASSERT(gained == std::min(o.qlen, r.remaining));
      RC_ASSERT(after->remaining == r.remaining - gained && after->remaining > 0);
      RC_ASSERT(static_cast<int64_t>(after->pages.size()) == rules::pages_for(after->length, o.page_size));
      RC_ASSERT(std::equal(after->pages.begin(), after->pages.end(), r.pages.begin()));  // what stays, stays in place
      owned_after.insert(after->pages.begin(), after->pages.end());
      advance += gained;
    }
    RC_ASSERT(outcome.accepted == advance);
    std::set<int32_t> freed(outcome.freed_pages.begin(), outcome.freed_pages.end());
    RC_ASSERT(freed.size() == outcome.freed_pages.size());
    owned_after.insert(freed.begin(), freed.end());
    RC_ASSERT(owned_after == owned_before);  // every page is kept or named as freed
    accepted += advance;
    ++steps;
    RC_ASSERT(scheduler.served() + static_cast<int64_t>(scheduler.live().size() + scheduler.refused().size()) +
                  scheduler.waiting() + scheduler.to_arrive() ==
              static_cast<int64_t>(c.trace.size()));
  }
  RC_ASSERT(scheduler.pool().in_use() == 0);
  RC_ASSERT(scheduler.reserved_pages() == 0);
  RC_ASSERT(scheduler.served() + static_cast<int64_t>(scheduler.refused().size()) == static_cast<int64_t>(c.trace.size()));
  RC_ASSERT(accepted == scheduler.output_tokens());
  for (const Refusal &r : scheduler.refused())
    RC_ASSERT(max_tokens(r.request, o.qlen) > static_cast<int64_t>(o.num_pages) * o.page_size);
}

// Tokens that each request (by line) gained in each of its steps.
using Gains = std::map<int64_t, std::vector<int32_t>>;

Gains gains(const SchedulerOptions &options, const std::vector<TraceRequest> &trace, const std::function<double(int64_t)> &ms) {
  Scheduler scheduler(options, trace);
  std::map<int64_t, std::vector<int32_t>> lengths;
  run(scheduler, ms, [&](const std::vector<LiveRequest> &live) {
    for (const LiveRequest &r : live) lengths[r.trace.line].push_back(r.length);
  });
  return lengths;
}

RC_GTEST_PROP(Scheduler, AcceptanceDependsOnTheSeedAlone, ()) {
  Case c = *cases();
  const Gains a = gains(c.options, c.trace, [](int64_t) { return 1.0; });
  c.options.max_batch = c.options.max_batch % 5 + 1;
  c.options.speed_up = 3;
  const Gains b = gains(c.options, c.trace, [](int64_t step) { return static_cast<double>(step % 3) * 17; });
  RC_ASSERT(a == b);
}

TEST(Scheduler, AcceptsDraftsAtTheGivenRate) {
  SchedulerOptions o;
  o.qlen = 4;
  o.accept_rate = 0.7;
  o.num_pages = 10000;
  Scheduler scheduler(o, numbered({{0, 0, 1, 100000}}));
  int64_t steps = 0;
  run(
      scheduler, [](int64_t) { return 1.0; }, [&](const std::vector<LiveRequest> &) { ++steps; });
  // 1 + 0.7 + 0.49 + 0.343 tokens a step are expected; the seed is fixed, and 1 % is ten standard errors.
  EXPECT_NEAR(100000.0 / static_cast<double>(steps), 2.533, 0.025);
}

TEST(Scheduler, RollsRejectedTokensBackPageByPage) {
  SchedulerOptions o;
  o.qlen = 4;
  o.page_size = 1;
  o.num_pages = 20;
  o.accept_rate = 0;
  Scheduler scheduler(o, numbered({{0, 0, 5, 3}}));
  for (int32_t length : {5, 6}) {
    ASSERT_TRUE(scheduler.begin_step());
    ASSERT_EQ(scheduler.live()[0].length, length);
    ASSERT_EQ(scheduler.pool().in_use(), length + 4);
    const std::vector<int32_t> pages = scheduler.live()[0].pages;
    const Scheduler::Outcome outcome = scheduler.finish_step(1);
    EXPECT_EQ(outcome.accepted, 1);
    EXPECT_EQ(outcome.freed_pages, std::vector<int32_t>(pages.rbegin(), pages.rbegin() + 3));
    EXPECT_EQ(scheduler.pool().in_use(), length + 1);
  }
  ASSERT_TRUE(scheduler.begin_step());
  EXPECT_EQ(scheduler.pool().in_use(), 11);  // input + output - 1 + qlen: all that was promised
  EXPECT_EQ(scheduler.reserved_pages(), 11);
  EXPECT_EQ(scheduler.finish_step(1).freed_pages.size(), 11u);
  EXPECT_FALSE(scheduler.begin_step());
}

TEST(Scheduler, RefusesWhatCanNeverFitAndLetsTheRestWait) {
  SchedulerOptions o;
  o.qlen = 1;
  o.page_size = 4;
  o.num_pages = 3;
  // Of 12 tokens, the first needs all, the second one more than all; the third and fourth fit together.
  Scheduler scheduler(o, numbered({{0, 0, 10, 2}, {0, 0, 11, 2}, {0, 0, 4, 1}, {0, 0, 1, 1}}));
  ASSERT_EQ(scheduler.refused().size(), 1u);
  EXPECT_EQ(scheduler.refused()[0].request.line, 3);
  EXPECT_EQ(scheduler.refused()[0].why, "needs 4 pages of 4 tokens, the pool has 3");
  EXPECT_EQ(scheduler.max_pages(), 3);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(scheduler.begin_step());
    ASSERT_EQ(scheduler.live().size(), 1u);
    EXPECT_EQ(scheduler.live()[0].trace.line, 2);
    EXPECT_EQ(scheduler.waiting(), 2);
    scheduler.finish_step(1);
  }
  ASSERT_TRUE(scheduler.begin_step());
  EXPECT_EQ(scheduler.live().size(), 2u);
  EXPECT_EQ(scheduler.pool().peak(), 3);
  scheduler.finish_step(1);
  EXPECT_FALSE(scheduler.begin_step());
  EXPECT_EQ(scheduler.served(), 3);
}

TEST(Scheduler, RefusesSequencesBeyond32Bits) {
  SchedulerOptions o;
  o.page_size = 1 << 20;
  o.num_pages = 1 << 20;
  const Scheduler scheduler(o, numbered({{0, 0, 2147483647, 2147483647}, {0, 0, 2147483643, 1}, {0, 0, 2147483644, 1}}));
  ASSERT_EQ(scheduler.refused().size(), 2u);
  EXPECT_EQ(scheduler.refused()[0].why, "needs 4294967297 tokens, a sequence has at most 2147483647");
  EXPECT_EQ(scheduler.refused()[1].request.line, 4);
}

TEST(Scheduler, JumpsToTheNextArrivalWhenIdle) {
  SchedulerOptions o;
  o.num_pages = 10;
  o.speed_up = 2;
  Scheduler scheduler(o, numbered({{0, 100, 5, 0}, {0, 1000, 5, 1}, {0, 9000, 5, 1}}));
  ASSERT_TRUE(scheduler.begin_step());
  EXPECT_EQ(scheduler.now_ms(), 500);
  EXPECT_EQ(scheduler.served(), 1);  // the one without output
  EXPECT_EQ(scheduler.to_arrive(), 1);
  scheduler.finish_step(7);
  ASSERT_TRUE(scheduler.begin_step());
  EXPECT_EQ(scheduler.now_ms(), 4500);
  scheduler.finish_step(1);
  EXPECT_FALSE(scheduler.begin_step());
  EXPECT_FALSE(scheduler.begin_step());
}

TEST(Scheduler, TakesTheGainsThatTheCallerCounted) {
  SchedulerOptions o;
  o.qlen = 3;
  o.page_size = 2;
  o.num_pages = 20;
  Scheduler scheduler(o, numbered({{0, 0, 4, 4}, {0, 0, 1, 9}}));
  ASSERT_TRUE(scheduler.begin_step());
  EXPECT_EQ(scheduler.live()[0].pages.size(), 4u);  // 7 tokens
  for (const std::vector<int32_t> &wrong : {std::vector<int32_t>{1}, {1, 0}, {4, 1}, {1, 1, 1}}) {
    EXPECT_THROW(scheduler.finish_step(1, wrong), std::logic_error);
  }
  EXPECT_EQ(scheduler.finish_step(1, {1, 3}).accepted, 4);
  EXPECT_EQ(scheduler.live()[0].length, 5);
  EXPECT_EQ(scheduler.live()[1].length, 4);
  EXPECT_EQ(scheduler.live()[0].pages.size(), 3u);
  ASSERT_TRUE(scheduler.begin_step());
  scheduler.finish_step(1, {2, 1});
  ASSERT_TRUE(scheduler.begin_step());
  EXPECT_THROW(scheduler.finish_step(1, {2, 1}), std::logic_error);  // more than it still wants
  scheduler.finish_step(1, {1, 1});
  EXPECT_EQ(scheduler.served(), 1);
}

}  // namespace
}  // namespace mlaverify::cli
