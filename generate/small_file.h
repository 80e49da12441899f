// Files that are read whole: configs and prompts.
#pragma once

#include <string>

namespace mlaverify::generate {

// The bytes of a file, as they are. Throws io::FileError for one that cannot be read, is no regular file, or is larger than 1 MiB.
std::string read_small_file(const std::string &path);

}  // namespace mlaverify::generate
