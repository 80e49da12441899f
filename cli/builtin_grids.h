// The texts of shapes/*.txt, compiled in so that the program finds them wherever it runs. Generated from builtin_grids.cpp.in.
#pragma once

#include <string_view>
#include <vector>

namespace mlaverify::cli {

struct BuiltinGrid {
  std::string_view name;  // of the file, without ".txt"
  std::string_view text;
};
const std::vector<BuiltinGrid> &builtin_grids();

}  // namespace mlaverify::cli
