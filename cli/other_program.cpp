#include "other_program.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <array>
#include <charconv>
#include <cstdio>

#include "error.h"
#include "grid.h"

namespace mlaverify::cli {
namespace {

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

std::string quoted(const std::string &text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

ProgramRun run_command(const std::string &shell_command) {
  ProgramRun run;
  std::FILE *pipe = popen(shell_command.c_str(), "r");
  if (pipe == nullptr) return run;
  std::array<char, 256> piece;
  while (std::fgets(piece.data(), piece.size(), pipe) != nullptr) run.output += piece.data();
  const int status = pclose(pipe);
  if (WIFEXITED(status)) run.exit_code = WEXITSTATUS(status);
  return run;
}

double seconds_of_program(const std::string &program, const Shape &shape, int32_t threads) {
  const ProgramRun run = run_command(fmt::format("{} {} --threads {}", quoted(program), shape_line(shape), threads));
  if (run.exit_code != 0) throw Failure(kCheckFailed, fmt::format("--vs {}: failed at {}", program, shape_line(shape)));
  const std::string line = last_line(run.output);
  double seconds = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), seconds);
  if (error != std::errc() || end != line.data() + line.size() || !(seconds > 0))
    throw Failure(kCheckFailed,
                  fmt::format("--vs {}: printed '{}', should be the seconds of a call", program, line.substr(0, 60)));
  return seconds;
}

}  // namespace mlaverify::cli
