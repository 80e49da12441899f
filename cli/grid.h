// Shapes as text: the options of `mlaverify bench`, one shape a line. A grid is a list of them, built in (shapes/*.txt) or a
// file. The same options, read by the same code, stand on the command line, in a grid and in what bench prints. docs/bench.md
// has the syntax.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "verb.h"
#include "work.h"

namespace mlaverify::cli {

// Option names without the dashes, and their values as written: {"heads", "16"}, ...
using ShapeOptions = std::map<std::string, std::string>;

struct ShapeOption {
  const char *name;
  const char *help;
  bool size;  // heads, queries, requests or lengths: what makes a shape, as opposed to how it is stored
};
const std::vector<ShapeOption> &shape_options();

// Adds all of them to a verb; what is given goes into `options`, which must outlive the parse.
std::vector<CLI::Option *> add_shape_options(CLI::App &verb, ShapeOptions &options);

// Throws Failure (bad input) that names the option, its value and what it should be.
Shape make_shape(const ShapeOptions &options);

// As make_shape, on top of `shape`: what is not named stays.
Shape change_shape(Shape shape, const ShapeOptions &options);

// The shape as options: what make_shape and a line of a grid read back. Defaults are left out, but for heads and qlen.
std::string shape_line(const Shape &shape);

const char *dtype_name(DType dtype);

// Reads the text of a grid. Throws Failure "source:line: what is wrong"; a grid without shapes is a fault too.
std::vector<Shape> parse_grid(std::string_view text, const std::string &source);

// A built-in grid by its name, else the file of that path.
std::vector<Shape> load_grid(const std::string &name_or_path);

// What --grid and the options of a shape ask for: the one shape whose sizes are given, or a grid (`usual`, where `grid` is empty) with
// `options` in each of its shapes. Throws Failure, also where both have sizes.
std::vector<Shape> requested_shapes(const std::string &grid, const ShapeOptions &options, const std::string &usual);

}  // namespace mlaverify::cli
