#include "scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "rules/paging.h"

namespace mlaverify::cli {

int64_t max_tokens(const TraceRequest &request, int32_t qlen) {
  if (request.output_tokens == 0) return 0;
  return static_cast<int64_t>(request.input_tokens) + request.output_tokens - 1 + qlen;
}

Scheduler::Scheduler(const SchedulerOptions &options, const std::vector<TraceRequest> &trace)
    : options_(options), pool_(options.num_pages) {
  for (const TraceRequest &request : trace) {
    const int64_t tokens = max_tokens(request, options_.qlen);
    const int64_t pages = rules::pages_for(tokens, options_.page_size);
    if (pages > pool_.capacity()) {
      refused_.push_back(
          {request, fmt::format("needs {} pages of {} tokens, the pool has {}", pages, options_.page_size, pool_.capacity())});
    } else if (tokens > std::numeric_limits<int32_t>::max()) {
      refused_.push_back(
          {request, fmt::format("needs {} tokens, a sequence has at most {}", tokens, std::numeric_limits<int32_t>::max())});
    } else {
      queue_.push_back(request);
      output_tokens_ += request.output_tokens;
      max_pages_ = std::max(max_pages_, pages);
    }
  }
}

void Scheduler::admit() {
  for (; next_ < static_cast<int64_t>(queue_.size()); ++next_) {
    const TraceRequest &request = queue_[static_cast<std::size_t>(next_)];
    if (arrival_ms(request) > now_ms_) return;
    if (request.output_tokens == 0) {
      ++served_;
      continue;
    }
    const int64_t pages = rules::pages_for(max_tokens(request, options_.qlen), options_.page_size);
    if (static_cast<int32_t>(live_.size()) >= options_.max_batch || reserved_ + pages > pool_.capacity()) return;
    reserved_ += pages;
    live_.push_back({request,
                     request.input_tokens,
                     request.output_tokens,
                     0,
                     0,
                     {},
                     Random(stream_seed(options_.seed, static_cast<uint64_t>(request.line)))});
  }
}

bool Scheduler::begin_step() {
  for (admit(); live_.empty(); admit()) {
    if (next_ == static_cast<int64_t>(queue_.size())) return false;
    now_ms_ = std::max(now_ms_, arrival_ms(queue_[static_cast<std::size_t>(next_)]));
  }
  for (LiveRequest &request : live_) {
    const auto pages =
        static_cast<std::size_t>(rules::pages_for(static_cast<int64_t>(request.length) + options_.qlen, options_.page_size));
    while (request.pages.size() < pages) request.pages.push_back(pool_.allocate());
  }
  return true;
}

Scheduler::Outcome Scheduler::finish_step(double ms) {
  std::vector<int32_t> gained;
  for (LiveRequest &request : live_) {
    int32_t advance = 1;
    while (advance < options_.qlen && request.acceptance.uniform() < options_.accept_rate) ++advance;
    gained.push_back(std::min(advance, request.remaining));
  }
  return finish_step(ms, gained);
}

Scheduler::Outcome Scheduler::finish_step(double ms, const std::vector<int32_t> &gained) {
  if (gained.size() != live_.size()) {
    throw std::logic_error(fmt::format("scheduler: gains of {} requests, {} are live", gained.size(), live_.size()));
  }
  for (std::size_t i = 0; i < live_.size(); ++i) {
    const int32_t most = std::min(options_.qlen, live_[i].remaining);
    if (gained[i] < 1 || gained[i] > most) {
      throw std::logic_error(fmt::format("scheduler: a request gains {} tokens, must be from 1 to {}", gained[i], most));
    }
  }
  now_ms_ += ms;
  Outcome outcome;
  for (std::size_t i = 0; i < live_.size(); ++i) {
    LiveRequest &request = live_[i];
    const int32_t advance = gained[i];
    outcome.accepted += advance;
    request.length += advance;
    request.remaining -= advance;
    request.written = request.length;
    ++request.steps;
    const auto kept =
        static_cast<std::size_t>(request.remaining > 0 ? rules::pages_for(request.length, options_.page_size) : 0);
    while (request.pages.size() > kept) {
      pool_.free(request.pages.back());
      outcome.freed_pages.push_back(request.pages.back());
      request.pages.pop_back();
    }
    if (request.remaining == 0) {
      ++served_;
      reserved_ -= rules::pages_for(max_tokens(request.trace, options_.qlen), options_.page_size);
    }
  }
  live_.erase(std::remove_if(live_.begin(), live_.end(), [](const LiveRequest &r) { return r.remaining == 0; }), live_.end());
  return outcome;
}

int64_t Scheduler::waiting() const {
  const auto first = queue_.begin() + next_;
  return std::find_if(first, queue_.end(), [this](const TraceRequest &r) { return arrival_ms(r) > now_ms_; }) - first;
}

}  // namespace mlaverify::cli
