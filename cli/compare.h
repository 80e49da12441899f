// Compares computed outputs of a step with the float64 oracle and with the expected results in its file, row by row.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/step.h"
#include "step_call.h"

namespace mlaverify::cli {

// The worst of all rows, as in RowError.
struct StepError {
  double out = 0;
  double lse = 0;
  std::string why;  // of the first bad row or of a guard band; empty: all good
};

// One result for each of `calls`, which have run the same step. The oracle computes each row once, on all processors. `name`
// stands in front of messages and beside the progress bar. Throws Failure (bad input) where lengths or page ids are impossible.
std::vector<StepError> compare_step(const io::Step &step, const std::string &name,
                                    const std::vector<std::unique_ptr<StepCall>> &calls);

}  // namespace mlaverify::cli
