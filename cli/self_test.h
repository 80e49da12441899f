// The built-in cases of `mlaverify check`: small steps made from a fixed seed, over types, page sizes, head counts and lengths.
#pragma once

#include <string>
#include <vector>

#include "io/step.h"

namespace mlaverify::cli {

std::vector<std::string> self_test_names();

// Throws Failure (bad input) for a name that is not in the list.
io::Step self_test_step(const std::string &name);

}  // namespace mlaverify::cli
