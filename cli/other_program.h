// Another implementation of the same step, timed by a program of its own: `bench --vs PROGRAM`. It is called with the shape as bench writes
// it and `--threads N`, and prints the median seconds of a call as the last line of its output.
#pragma once

#include <cstdint>
#include <string>

#include "work.h"

namespace mlaverify::cli {

// Throws Failure where the program cannot be run, fails or prints something else.
double seconds_of_program(const std::string &program, const Shape &shape, int32_t threads);

}  // namespace mlaverify::cli
