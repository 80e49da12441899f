// Running programs; and another implementation of the same step, timed by a program of its own: `bench --vs PROGRAM`. It is called
// with the shape as bench writes it and `--threads N`, and prints the median seconds of a call as the last line of its output.
#pragma once

#include <cstdint>
#include <string>

#include "work.h"

namespace mlaverify::cli {

// For the shell: in single quotes, those inside it taken out.
std::string quoted(const std::string &text);

struct ProgramRun {
  int exit_code = -1;  // -1: it could not be started, or was killed
  std::string output;  // what it wrote to standard output; standard error goes where ours does
};
ProgramRun run_command(const std::string &shell_command);

// Throws Failure where the program cannot be run, fails or prints something else.
double seconds_of_program(const std::string &program, const Shape &shape, int32_t threads);

}  // namespace mlaverify::cli
