// Writing a file whole or not at all.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mlaverify::io {

// Writes `parts`, one behind the other, to a temporary name beside `path` and renames it, so that a file already there is replaced whole
// or not at all. Throws FileError (io/safetensors.h).
void replace_file(const std::string &path, const std::vector<std::string_view> &parts);

// Throws it now if replace_file() would, but for room: before work whose result is to be written there.
void demand_replaceable(const std::string &path);

}  // namespace mlaverify::io
