// A progress bar on standard error, for long work. Without a terminal there it writes nothing.
#pragma once

#include <chrono>
#include <string>

namespace mlaverify::cli {

class Progress {
 public:
  Progress();
  ~Progress();  // takes the bar away
  Progress(const Progress &) = delete;
  Progress &operator=(const Progress &) = delete;

  // `done` is a share from 0 to 1; `note` stands beside the bar. Draws ten times a second at most.
  void show(double done, const std::string &note);

 private:
  bool terminal_;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace mlaverify::cli
