#include "timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace mlaverify::cli {

namespace {

constexpr double kLeastSeconds = 0.3;
constexpr double kMostSeconds = 1.5;
constexpr std::size_t kLeastRepetitions = 5;
constexpr double kStableError = 0.01;

// Linear between the two nearest of the sorted values.
double quantile(const std::vector<double> &sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

// The standard error of a median is about 0.93 times the quartile distance over the root of the count, for normal errors.
bool stable(const Timing &t) { return 0.93 * t.spread <= kStableError * std::sqrt(t.repetitions); }

}  // namespace

double seconds_of(const std::function<void()> &call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Timing summarize(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  Timing t;
  t.median = quantile(seconds, 0.5);
  t.spread = t.median > 0 ? (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / t.median : 0;
  t.repetitions = static_cast<int>(seconds.size());
  t.p90 = quantile(seconds, 0.9);
  return t;
}

Timing time_calls(const std::function<void()> &call, double warm_up_seconds) {
  double total = 0;
  do {
    total += seconds_of(call);
  } while (total < warm_up_seconds);

  std::vector<double> seconds;
  total = 0;
  // Sorting the samples after each call would disturb the next one, so stability is asked for every tenth of a second.
  for (double next_look = kLeastSeconds; total < kMostSeconds || seconds.size() < kLeastRepetitions;) {
    seconds.push_back(seconds_of(call));
    total += seconds.back();
    if (seconds.size() < kLeastRepetitions || total < next_look) continue;
    if (stable(summarize(seconds))) break;
    next_look = total + 0.1;
  }
  return summarize(std::move(seconds));
}

}  // namespace mlaverify::cli
