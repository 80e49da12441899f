#include "cuda/tune_file.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "api/env.h"
#include "mlaverify/mlaverify.h"

namespace mlaverify::cuda {
namespace {

using rules::Arch;
using rules::GpuRow;

constexpr std::string_view kFormat = "mlaverify-tune 1";
constexpr std::size_t kMostBytes = 1 << 20;
constexpr std::string_view kBlank = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// Text of the file fit for a message.
std::string in_quotes(std::string_view text) {
  constexpr std::size_t most = 60;
  std::string out = "'";
  for (const char c : text.substr(0, most)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > most ? "...'" : "'");
}

bool parse_number(std::string_view text, int64_t least, int64_t most, int64_t *number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && *number >= least && *number <= most;
}

// The value among `count` whose name is `text`.
template <class Value>
bool parse_name(std::string_view text, int32_t count, const char *(*name)(Value), Value *value) {
  for (int32_t i = 0; i < count; ++i) {
    *value = static_cast<Value>(i);
    if (text == name(*value)) return true;
  }
  return false;
}

template <class Value>
std::string names(int32_t count, const char *(*name)(Value)) {
  std::string all;
  for (int32_t i = 0; i < count; ++i)
    all += (i == 0 ? "" : i + 1 == count ? " or " : ", ") + std::string(name(static_cast<Value>(i)));
  return all;
}

// (Rules are always inlined: these have addresses.)
const char *arch_of(Arch a) { return rules::arch_name(a); }
const char *kernel_of(rules::GpuKernel k) { return rules::kernel_name(k); }
const char *types_of(rules::TypeClass t) { return rules::type_class_name(t); }
const char *pages_of(rules::PageClass p) { return rules::page_class_name(p); }

bool is_gpu(Arch a) { return a != Arch::cpu && a != Arch::gfx942; }

bool parse_rows(std::string_view text, GpuRow *row) {
  const std::size_t dots = text.find("..");
  return dots != std::string_view::npos && parse_number(text.substr(0, dots), 0, rules::kMostRows, &row->rows_from) &&
         parse_number(text.substr(dots + 2), row->rows_from, rules::kMostRows, &row->rows_to);
}

bool parse_shares(std::string_view text, GpuRow *row) {
  int64_t number = 0;
  if (!parse_number(text, rules::kLeastShares, rules::kMostShares, &number)) return false;
  row->shares_squared_per_tile = static_cast<int32_t>(number);
  return true;
}

class Parser {
 public:
  Parser(std::string_view text, const std::string &source) : text_(text) { file_.source = source; }

  Status parse(TuneFile *file) {
    if (!next()) number_ = 1;  // an empty file
    if (line_ != kFormat) return fault("got " + in_quotes(line_) + ", must be '" + std::string(kFormat) + "'");
    std::string library, multiprocessors, arch;
    int64_t count = 0;
    if (Status s = head("library", &library); !s.ok()) return s;
    if (library != mlaverify_version()) {
      return fault("library: got " + in_quotes(library) + ", must be '" + mlaverify_version() + "', this version: tune again");
    }
    if (Status s = head("card", &file_.card.name); !s.ok()) return s;
    file_.card_line = number_;
    if (Status s = head("compute-capability", &file_.card.compute_capability); !s.ok()) return s;
    if (Status s = head("arch", &arch); !s.ok()) return s;
    if (!parse_name(arch, rules::kNumArchs, arch_of, &file_.card.arch) || !is_gpu(file_.card.arch)) {
      return fault("arch: got " + in_quotes(arch) + ", must be that of a CUDA GPU: sm_80, sm_86, sm_90 or sm_100");
    }
    if (Status s = head("multiprocessors", &multiprocessors); !s.ok()) return s;
    if (!parse_number(multiprocessors, 1, INT32_MAX, &count)) {
      return fault("multiprocessors: got " + in_quotes(multiprocessors) + ", must be a whole number from 1");
    }
    file_.card.multiprocessors = static_cast<int32_t>(count);
    while (next()) {
      if (line_.empty()) continue;
      if (Status s = row(); !s.ok()) return s;
    }
    *file = std::move(file_);
    return {};
  }

 private:
  Status fault(const std::string &what) const {
    return {MLAVERIFY_ERR_INVALID_ARGUMENT, file_.source + ":" + std::to_string(number_) + ": " + what};
  }

  // The next line, without its comment and blanks around it; false at the end, which has the number of the last line.
  bool next() {
    line_ = {};
    if (at_ >= text_.size()) return false;
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    line_ = text_.substr(at_, end - at_);
    line_ = trimmed(line_.substr(0, line_.find('#')));
    at_ = end + 1;
    ++number_;
    return true;
  }

  // "name value".
  Status head(std::string_view name, std::string *value) {
    next();
    const std::size_t end = std::min(line_.find_first_of(kBlank), line_.size());
    *value = trimmed(line_.substr(end));
    if (line_.substr(0, end) == name && !value->empty()) return {};
    return fault("got " + in_quotes(line_) + ", must be '" + std::string(name) + "' and its value");
  }

  // "row rows=17..64 types=same_16_bit pages=boxes kernel=hopper shares=64".
  Status row() {
    GpuRow r = {};
    r.arch = file_.card.arch;
    std::string_view rest = line_;
    const auto word = [&rest] {
      const std::string_view w = rest.substr(0, rest.find_first_of(kBlank));
      rest = trimmed(rest.substr(w.size()));
      return w;
    };
    if (const std::string_view w = word(); w != "row") return fault("got " + in_quotes(w) + ", must be 'row'");
    const auto value = [&](std::string_view name, std::string_view *v) {
      *v = word();
      const bool good = v->size() > name.size() && v->substr(0, name.size()) == name && (*v)[name.size()] == '=';
      if (good) v->remove_prefix(name.size() + 1);
      return good;
    };
    const auto wrong = [&](std::string_view name, std::string_view got, const std::string &wanted) {
      return fault(std::string(name) + ": got " + in_quotes(got) + ", must be " + wanted);
    };
    std::string_view v;
    if (!value("rows", &v) || !parse_rows(v, &r)) {
      return wrong("rows", v, "rows=FROM..TO, whole numbers from 0 to " + std::to_string(rules::kMostRows) + " in order");
    }
    if (!value("types", &v) || !parse_name(v, rules::kNumTypeClasses, types_of, &r.types)) {
      return wrong("types", v, "types=" + names(rules::kNumTypeClasses, types_of));
    }
    if (!value("pages", &v) || !parse_name(v, rules::kNumPageClasses, pages_of, &r.pages)) {
      return wrong("pages", v, "pages=" + names(rules::kNumPageClasses, pages_of));
    }
    if (!value("kernel", &v) || !parse_name(v, rules::kNumGpuKernels, kernel_of, &r.kernel)) {
      return wrong("kernel", v, "kernel=" + names(rules::kNumGpuKernels, kernel_of));
    }
    if (!value("shares", &v) || !parse_shares(v, &r)) {
      return wrong(
          "shares", v,
          "shares=N, a whole number from " + std::to_string(rules::kLeastShares) + " to " + std::to_string(rules::kMostShares));
    }
    if (!rest.empty()) return fault("got " + in_quotes(rest) + " behind a row, must be nothing or a comment after '#'");
    file_.rows.push_back(r);
    return {};
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int32_t number_ = 0;
  std::string_view line_;
  TuneFile file_;
};

Status unreadable(const std::string &source, const std::string &why) {
  return {MLAVERIFY_ERR_INVALID_ARGUMENT, source + ": " + why + ", must be a tune file"};
}

Status read_tune_file(const std::string &path, TuneFile *file) {
  const std::string source = "MLAVERIFY_TUNE_FILE: " + path;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return unreadable(source, "does not exist or cannot be reached");
  if (!std::filesystem::is_regular_file(path, error)) return unreadable(source, "is not a plain file");
  const std::unique_ptr<std::FILE, int (*)(std::FILE *)> in(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!in) return unreadable(source, std::string("cannot be opened (") + std::strerror(errno) + ")");
  std::string text(kMostBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), in.get()));
  if (std::ferror(in.get()) != 0) return unreadable(source, std::string("cannot be read (") + std::strerror(errno) + ")");
  if (text.size() > kMostBytes) return unreadable(source, "is longer than 1 MiB");
  return parse_tune_file(text, source, file);
}

Status other_card(const TuneFile &file, int32_t line, const std::string &name, const std::string &got,
                  const std::string &here) {
  return {MLAVERIFY_ERR_INVALID_ARGUMENT, file.source + ":" + std::to_string(line) + ": " + name + ": got " + in_quotes(got) +
                                              ", must be " + in_quotes(here) + ", the GPU's: tune on this one"};
}

}  // namespace

std::string tune_head(const TuneCard &card) {
  return std::string(kFormat) + "\nlibrary " + mlaverify_version() + "\ncard " + card.name + "\ncompute-capability " +
         card.compute_capability + "\narch " + rules::arch_name(card.arch) + "\nmultiprocessors " +
         std::to_string(card.multiprocessors) + "\n";
}

std::string tune_row(const GpuRow &row) {
  return "row rows=" + std::to_string(row.rows_from) + ".." + std::to_string(row.rows_to) + " types=" + types_of(row.types) +
         " pages=" + pages_of(row.pages) + " kernel=" + kernel_of(row.kernel) +
         " shares=" + std::to_string(row.shares_squared_per_tile);
}

Status parse_tune_file(std::string_view text, const std::string &source, TuneFile *file) {
  return Parser(text, source).parse(file);
}

Status check_card(const TuneFile &file, Arch arch, int32_t multiprocessors) {
  const TuneCard &card = file.card;
  if (card.arch != arch) return other_card(file, file.card_line + 2, "arch", arch_of(card.arch), arch_of(arch));
  if (card.multiprocessors == multiprocessors) return {};
  return other_card(file, file.card_line + 3, "multiprocessors", std::to_string(card.multiprocessors),
                    std::to_string(multiprocessors));
}

Status check_card(const TuneFile &file, const TuneCard &here) {
  const TuneCard &card = file.card;
  if (card.name != here.name) return other_card(file, file.card_line, "card", card.name, here.name);
  if (card.compute_capability != here.compute_capability) {
    return other_card(file, file.card_line + 1, "compute-capability", card.compute_capability, here.compute_capability);
  }
  return check_card(file, here.arch, here.multiprocessors);
}

const TuneSetting &tune_setting() {
  static const TuneSetting setting = [] {
    TuneSetting s;
    s.set = !env_tune_file().empty();
    if (s.set) s.status = read_tune_file(env_tune_file(), &s.file);
    return s;
  }();
  return setting;
}

}  // namespace mlaverify::cuda
