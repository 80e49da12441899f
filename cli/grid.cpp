#include "grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <filesystem>
#include <fstream>
#include <optional>

#include "builtin_grids.h"
#include "error.h"
#include "io/safetensors.h"
#include "mlaverify/mlaverify.h"
#include "rules/row.h"

namespace mlaverify::cli {

namespace {

constexpr std::size_t kMaxGridBytes = 1 << 20;
constexpr std::size_t kMaxRequests =
    1 << 20;                          // of all shapes of a grid together: bounds what a hostile file can make us allocate
constexpr int32_t kMaxCount = 65536;  // heads, queries per request

struct DTypeName {
  const char *name;
  DType dtype;
};
constexpr DTypeName kQueryTypes[] = {{"bf16", DType::bf16}, {"f16", DType::f16}, {"f32", DType::f32}};
constexpr DTypeName kCacheTypes[] = {{"bf16", DType::bf16},       {"f16", DType::f16},         {"f32", DType::f32},
                                     {"f8_e4m3", DType::f8_e4m3}, {"f8_e5m2", DType::f8_e5m2}, {"f8_ds_mla", DType::f8_ds_mla}};

[[noreturn]] void fail(const std::string &option, std::string_view value, const std::string &wanted) {
  throw Failure(kBadInput, fmt::format("--{}: {} should be {}", option, io::quote(std::string(value)), wanted));
}

int32_t whole_number(const std::string &option, std::string_view text, int32_t least, int32_t most) {
  int32_t x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc() || end != text.data() + text.size() || x < least || x > most) {
    fail(option, text, fmt::format("a whole number from {} to {}", least, most));
  }
  return x;
}

int32_t head_dim(const std::string &option, std::string_view text) {
  const int32_t x = whole_number(option, text, 8, MLAVERIFY_MAX_HEAD_DIM);
  if (x % 8 != 0) fail(option, text, "a multiple of 8");
  return x;
}

template <std::size_t n>
DType dtype_of(const std::string &option, std::string_view text, const DTypeName (&names)[n]) {
  std::string wanted = "one of";
  for (const DTypeName &d : names) {
    if (text == d.name) return d.dtype;
    wanted += fmt::format(" {}", d.name);
  }
  fail(option, text, wanted);
}

std::vector<int32_t> lengths(const std::string &option, std::string_view text) {
  std::vector<int32_t> out;
  for (std::size_t at = 0;;) {
    const std::size_t comma = text.find(',', at);
    out.push_back(whole_number(option, text.substr(at, comma - at), 1, INT32_MAX));
    if (comma == std::string_view::npos) return out;
    at = comma + 1;
  }
}

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view blank = " \t\r";
  std::vector<std::string_view> words;
  for (std::size_t at = line.find_first_not_of(blank); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(blank, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(blank, end);
  }
  return words;
}

// The options of one line. Only their names are looked at.
ShapeOptions options_of(const std::vector<std::string_view> &words) {
  ShapeOptions options;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    const auto &known = shape_options();
    const bool found = std::any_of(known.begin(), known.end(), [&](const ShapeOption &o) {
      return words[i].substr(0, 2) == "--" && words[i].substr(2) == o.name;
    });
    if (!found) {
      throw Failure(kBadInput, fmt::format("{} is no option of a shape (for example --heads 16 --qlen 4 --seq-len 4096)",
                                           io::quote(std::string(words[i]))));
    }
    const std::string name(words[i].substr(2));
    if (i + 1 == words.size()) throw Failure(kBadInput, fmt::format("--{}: its value is missing", name));
    if (!options.emplace(name, words[i + 1]).second) throw Failure(kBadInput, fmt::format("--{} is given twice", name));
  }
  return options;
}

std::string read_text(const std::string &path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    std::string names;
    for (const BuiltinGrid &g : builtin_grids()) names += fmt::format("{}{}", names.empty() ? "" : ", ", g.name);
    throw Failure(kBadInput, fmt::format("--grid: {} is neither a built-in grid ({}) nor a file", io::quote(path), names));
  }
  if (!std::filesystem::is_regular_file(path, error)) throw Failure(kBadInput, fmt::format("{}: not a plain file", path));
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxGridBytes + 1, '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(text.size())) && !in.eof()) {
    throw Failure(kBadInput, fmt::format("{}: cannot be read", path));
  }
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMaxGridBytes) throw Failure(kBadInput, fmt::format("{}: longer than a grid may be (1 MiB)", path));
  return text;
}

}  // namespace

const std::vector<ShapeOption> &shape_options() {
  static const std::vector<ShapeOption> options = {
      {"heads", "Query heads (16)", true},
      {"qlen", "Query tokens of each request (1)", true},
      {"batch", "Requests (1, or as many as there are lengths)", true},
      {"seq-len", "Keys of each request, its query tokens included: one number for all, or one a request, with commas", true},
      {"page-size", "Tokens of a page (64)", false},
      {"dtype", "Type of queries and output: bf16 f16 f32 (bf16)", false},
      {"kv-dtype", "Type of the cache: bf16 f16 f32 f8_e4m3 f8_e5m2 f8_ds_mla (bf16)", false},
      {"lk", "Width of a key (576)", false},
      {"lv", "Width of a value (512)", false}};
  return options;
}

std::vector<CLI::Option *> add_shape_options(CLI::App &verb, ShapeOptions &options) {
  std::vector<CLI::Option *> added;
  for (const ShapeOption &o : shape_options()) {
    added.push_back(verb.add_option_function<std::string>(
        fmt::format("--{}", o.name), [&options, &o](const std::string &value) { options[o.name] = value; }, o.help));
  }
  return added;
}

Shape change_shape(Shape shape, const ShapeOptions &options) {
  const auto value = [&](const char *name) -> std::optional<std::string_view> {
    const auto it = options.find(name);
    if (it == options.end()) return std::nullopt;
    return it->second;
  };
  if (const auto v = value("heads")) shape.num_heads = whole_number("heads", *v, 1, kMaxCount);
  if (const auto v = value("qlen")) shape.qlen = whole_number("qlen", *v, 1, kMaxCount);
  if (const auto v = value("seq-len")) shape.seq_lens = lengths("seq-len", *v);
  if (shape.seq_lens.empty()) throw Failure(kBadInput, "--seq-len is missing");
  if (const auto v = value("batch")) {
    const auto batch = static_cast<std::size_t>(whole_number("batch", *v, 1, kMaxRequests));
    if (shape.seq_lens.size() == 1) shape.seq_lens.resize(batch, shape.seq_lens[0]);
    if (shape.seq_lens.size() != batch) fail("batch", *v, fmt::format("{}, as many as --seq-len has", shape.seq_lens.size()));
  }
  if (const auto v = value("page-size")) shape.page_size = whole_number("page-size", *v, 1, INT32_MAX);
  if (const auto v = value("dtype")) shape.q_dtype = dtype_of("dtype", *v, kQueryTypes);
  if (const auto v = value("kv-dtype")) shape.kv_dtype = dtype_of("kv-dtype", *v, kCacheTypes);
  if (const auto v = value("lk")) shape.qk_dim = head_dim("lk", *v);
  if (const auto v = value("lv")) shape.v_dim = head_dim("lv", *v);
  if (shape.v_dim > shape.qk_dim) fail("lv", std::to_string(shape.v_dim), fmt::format("at most --lk, {}", shape.qk_dim));
  if (rules::is_record(shape.kv_dtype)) {
    const auto demand = [](const char *option, int32_t got, int32_t want) {
      if (got != want) fail(option, std::to_string(got), fmt::format("{} with --kv-dtype f8_ds_mla", want));
    };
    demand("lk", shape.qk_dim, rules::kRecordWidth);
    demand("lv", shape.v_dim, rules::kRecordScaled);
  }
  return shape;
}

Shape make_shape(const ShapeOptions &options) { return change_shape(Shape(), options); }

const char *dtype_name(DType dtype) {
  for (const DTypeName &d : kCacheTypes) {
    if (d.dtype == dtype) return d.name;
  }
  return "unknown";
}

std::string shape_line(const Shape &shape) {
  const Shape usual;
  const std::vector<int32_t> &l = shape.seq_lens;
  std::string line = fmt::format("--heads {} --qlen {}", shape.num_heads, shape.qlen);
  if (std::all_of(l.begin(), l.end(), [&](int32_t x) { return x == l[0]; })) {
    line += fmt::format(" --batch {} --seq-len {}", l.size(), l[0]);
  } else {
    line += fmt::format(" --seq-len {}", fmt::join(l, ","));
  }
  if (shape.page_size != usual.page_size) line += fmt::format(" --page-size {}", shape.page_size);
  if (shape.q_dtype != usual.q_dtype) line += fmt::format(" --dtype {}", dtype_name(shape.q_dtype));
  if (shape.kv_dtype != usual.kv_dtype) line += fmt::format(" --kv-dtype {}", dtype_name(shape.kv_dtype));
  if (shape.qk_dim != usual.qk_dim) line += fmt::format(" --lk {}", shape.qk_dim);
  if (shape.v_dim != usual.v_dim) line += fmt::format(" --lv {}", shape.v_dim);
  return line;
}

std::vector<Shape> parse_grid(std::string_view text, const std::string &source) {
  std::vector<Shape> shapes;
  std::size_t requests = 0;
  for (std::size_t at = 0, number = 1; at < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    const auto words = words_of(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    try {
      shapes.push_back(make_shape(options_of(words)));
      requests += shapes.back().seq_lens.size();
      if (requests > kMaxRequests) {
        throw Failure(kBadInput, fmt::format("more than {} requests in this and the shapes before it", kMaxRequests));
      }
    } catch (const Failure &e) {
      throw Failure(e.exit_code, fmt::format("{}:{}: {}", source, number, e.what()));
    }
  }
  if (shapes.empty()) throw Failure(kBadInput, fmt::format("{}: no shape in it", source));
  return shapes;
}

std::vector<Shape> load_grid(const std::string &name_or_path) {
  for (const BuiltinGrid &g : builtin_grids()) {
    if (g.name == name_or_path) return parse_grid(g.text, fmt::format("shapes/{}.txt", g.name));
  }
  return parse_grid(read_text(name_or_path), name_or_path);
}

std::vector<Shape> requested_shapes(const std::string &grid, const ShapeOptions &options, const std::string &usual) {
  const bool sizes_given = std::any_of(shape_options().begin(), shape_options().end(),
                                       [&](const ShapeOption &o) { return o.size && options.count(o.name) > 0; });
  if (sizes_given && grid.empty()) return {make_shape(options)};
  if (sizes_given)
    throw Failure(kBadInput, "--grid has sizes of its own: --heads, --qlen, --batch and --seq-len don't go with it");
  std::vector<Shape> shapes = load_grid(grid.empty() ? usual : grid);
  for (Shape &s : shapes) s = change_shape(std::move(s), options);
  return shapes;
}

}  // namespace mlaverify::cli
