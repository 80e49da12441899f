#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace mlaverify::cli {
namespace {
constexpr char kClearLine[] = "\r\033[K";
}

Progress::Progress() : terminal_(isatty(STDERR_FILENO) != 0), next_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (terminal_) std::fputs(kClearLine, stderr);
}

void Progress::show(double done, const std::string &note) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  constexpr std::size_t width = 30;
  const double share = std::clamp(done, 0.0, 1.0);
  const auto full = static_cast<std::size_t>(share * width);
  const std::string bar = std::string(full, '#') + std::string(width - full, '.');
  std::fprintf(stderr, "%s[%s] %3.0f%%  %s", kClearLine, bar.c_str(), 100 * share, note.c_str());
  std::fflush(stderr);
}

}  // namespace mlaverify::cli
