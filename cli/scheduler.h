// Continuous batching without the tensors: which requests are live, which pages they own, how far each has come. The caller
// computes a step between begin_step() and finish_step() and says how long it took; nothing else here depends on time, so the
// tokens that a request gains in each of its steps follow from the seed alone, unless the caller says how many there were.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "page_pool.h"
#include "random.h"
#include "trace.h"

namespace mlaverify::cli {

struct SchedulerOptions {
  int32_t qlen = 4;        // tokens verified per request and step: the last accepted one and qlen-1 drafted ones
  int32_t max_batch = 64;  // requests live at once
  int32_t page_size = 64;  // tokens
  int32_t num_pages = 1;
  double accept_rate = 0.7;  // chance that a drafted token is accepted, given that those before it were
  double speed_up = 1;       // arrivals come at arrival_ms / speed_up
  uint64_t seed = 1;
};

struct LiveRequest {
  TraceRequest trace;
  int32_t length;              // tokens of the prompt and accepted ones
  int32_t remaining;           // output tokens still to come
  int32_t written;             // tokens whose latents are in its pages: 0 when it has just come in, else `length`
  int64_t steps = 0;           // finished ones
  std::vector<int32_t> pages;  // its block table row: during a step enough for length + qlen tokens
  Random acceptance;           // a stream of its own, by seed and line: batch mates and timing do not change it
};

// The seed of one of many independent random streams under one seed.
inline uint64_t stream_seed(uint64_t seed, uint64_t stream) { return Random(Random(seed).next() + stream).next(); }

struct Refusal {
  TraceRequest request;
  std::string why;
};

// Admission is first come, first served. A request comes in when the batch has room and the pool can promise all pages that it
// may ever need, so that no live request ever waits for a page: there is no deadlock and nothing to preempt. A request that
// needs more than the whole pool is refused from the start.
class Scheduler {
 public:
  // `trace` in order of arrival.
  Scheduler(const SchedulerOptions &options, const std::vector<TraceRequest> &trace);

  // Admits what can come in, jumping to the next arrival if nothing is live, and gives every live request pages for its qlen
  // new tokens. False when every request has been served.
  bool begin_step();

  struct Outcome {
    int64_t accepted = 0;              // tokens that the requests advanced by: 1 + accepted drafts each
    std::vector<int32_t> freed_pages;  // of finished requests, and wholly rolled back ones
  };

  // Advances the clock by `ms`, accepts or rejects the drafted tokens by chance, and lets go of pages past the new lengths.
  Outcome finish_step(double ms);
  // The same with the tokens that each live request has gained: from 1 to qlen, and no more than its `remaining`. Throws
  // std::logic_error for others.
  Outcome finish_step(double ms, const std::vector<int32_t> &gained);

  const std::vector<LiveRequest> &live() const { return live_; }
  const PagePool &pool() const { return pool_; }
  int64_t reserved_pages() const { return reserved_; }
  double now_ms() const { return now_ms_; }

  // Every request of the trace is in exactly one of these.
  const std::vector<Refusal> &refused() const { return refused_; }
  int64_t served() const { return served_; }
  int64_t waiting() const;  // has arrived, has not come in
  int64_t to_arrive() const { return static_cast<int64_t>(queue_.size()) - next_ - waiting(); }

  // Over the requests that are not refused.
  int64_t output_tokens() const { return output_tokens_; }
  int64_t max_pages() const { return max_pages_; }  // of one request: the width of a block table

 private:
  double arrival_ms(const TraceRequest &request) const { return request.arrival_ms / options_.speed_up; }
  void admit();

  SchedulerOptions options_;
  PagePool pool_;
  std::vector<TraceRequest> queue_;
  int64_t next_ = 0;  // the first of queue_ that has not come in
  std::vector<LiveRequest> live_;
  std::vector<Refusal> refused_;
  int64_t reserved_ = 0;
  int64_t served_ = 0;
  int64_t output_tokens_ = 0;
  int64_t max_pages_ = 0;
  double now_ms_ = 0;
};

// Tokens that the cache may hold of a request: before its last step all but its last output token are there, and the step adds
// qlen. 0 for a request without output, which needs no step.
int64_t max_tokens(const TraceRequest &request, int32_t qlen);

}  // namespace mlaverify::cli
