// Times a call: warm-up, then repetitions until the median is known well.
#pragma once

#include <functional>
#include <vector>

namespace mlaverify::cli {

struct Timing {
  double median = 0;  // seconds
  double spread = 0;  // distance between the quartiles, as a fraction of the median: half of the repetitions lie within it
  int repetitions = 0;
  double p90 = 0;  // seconds: nine of ten repetitions take no longer
};

// By this machine's clock.
double seconds_of(const std::function<void()> &call);

// `seconds` must not be empty.
Timing summarize(std::vector<double> seconds);

constexpr double kWarmUpSeconds = 0.05;
constexpr double kSustainedSeconds = 1;  // long enough that a machine's power and heat limits have set in

// Calls `call` for `warm_up_seconds` unmeasured (once at least), then at least 5 times and for at least 0.3 s in all, then on until the
// standard error of the median is below 1 %, or 1.5 s are over.
Timing time_calls(const std::function<void()> &call, double warm_up_seconds = kWarmUpSeconds);

}  // namespace mlaverify::cli
