// What the operating system tells about this machine. Where it tells nothing: "unknown" or 0.
#pragma once

#include <cstdint>
#include <string>

namespace mlaverify::cli {

std::string cpu_model();
int64_t last_level_cache_bytes();
int64_t available_memory_bytes();  // that can be allocated without swapping

// "g++ 12.2.0", with ", not optimised" where the program was built so.
std::string compiler();

}  // namespace mlaverify::cli
