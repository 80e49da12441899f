// What the program takes for a number on its command line.
#pragma once

#include "verb.h"

namespace mlaverify::cli {

// Has every option of every verb that takes a number refuse all but a decimal one, before its other checks. CLI11 alone reads "" as 0, 010
// as 8, and what does not fit an unsigned number, -1 for one, as the greatest. To be called when all verbs have been added.
void demand_decimal_numbers(CLI::App &app);

}  // namespace mlaverify::cli
