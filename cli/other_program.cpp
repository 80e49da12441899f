#include "other_program.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <memory>

#include "error.h"
#include "grid.h"

namespace mlaverify::cli {
namespace {

// For the shell: in single quotes, those inside it taken out.
std::string quoted(const std::string &text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

double seconds_of_program(const std::string &program, const Shape &shape, int32_t threads) {
  const std::string command = fmt::format("{} {} --threads {}", quoted(program), shape_line(shape), threads);
  std::FILE *pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw Failure(kCheckFailed, fmt::format("--vs {}: cannot be started", program));
  std::string output;
  std::array<char, 256> piece;
  while (std::fgets(piece.data(), piece.size(), pipe) != nullptr) output += piece.data();
  const int status = pclose(pipe);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw Failure(kCheckFailed, fmt::format("--vs {}: failed at {}", program, shape_line(shape)));
  const std::string line = last_line(output);
  double seconds = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), seconds);
  if (error != std::errc() || end != line.data() + line.size() || !(seconds > 0))
    throw Failure(kCheckFailed,
                  fmt::format("--vs {}: printed '{}', should be the seconds of a call", program, line.substr(0, 60)));
  return seconds;
}

}  // namespace mlaverify::cli
