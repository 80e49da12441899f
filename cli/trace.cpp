#include "trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <limits>
#include <string_view>

#include "error.h"

namespace mlaverify::cli {
namespace {

constexpr std::string_view kHeader = "arrival_ms,input_tokens,output_tokens";
constexpr std::string_view kSessionHeader = "session,arrival_ms,input_tokens,output_tokens";
constexpr std::size_t kMaxLineBytes = 1024;
constexpr std::size_t kMaxTraceRequests = 10'000'000;
constexpr double kMaxArrivalMs = 1e12;  // 31 years

// Text of the file as an error message can show it: printable, short.
std::string shown(std::string_view text) {
  constexpr std::size_t longest = 60;
  std::string out = "'";
  for (char c : text.substr(0, longest)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > longest ? "...'" : "'");
}

class Reader {
 public:
  Reader(std::istream &in, const std::string &name) : in_(in), name_(name) {}

  // The next line without its end (LF or CRLF) in `line`, or false at the end of the file.
  bool next(std::string_view &line) {
    ++number_;
    in_.getline(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    auto length = static_cast<std::size_t>(in_.gcount());
    if (in_.bad()) throw Failure(kBadInput, fmt::format("{}: cannot read it", name_));
    if (in_.fail() && length == 0) return false;
    if (in_.fail()) fail(fmt::format("the line is longer than {} bytes", kMaxLineBytes));
    if (!in_.eof()) --length;  // the line feed
    line = std::string_view(buffer_.data(), length);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    return true;
  }

  int64_t number() const { return number_; }

  [[noreturn]] void fail(const std::string &fault) const {
    throw Failure(kBadInput, fmt::format("{}:{}: {}", name_, number_, fault));
  }

 private:
  std::istream &in_;
  const std::string &name_;
  int64_t number_ = 0;
  std::array<char, kMaxLineBytes + 1> buffer_{};
};

template <class T>
bool parses(std::string_view text, T &value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

double arrival(const Reader &reader, std::string_view text) {
  double value = 0;
  // The comparison refuses NaN as well.
  if (!parses(text, value) || !(value >= 0 && value <= kMaxArrivalMs)) {
    reader.fail(fmt::format("arrival_ms is {}; it should be a number from 0 to {:.0f}", shown(text), kMaxArrivalMs));
  }
  return value;
}

int32_t tokens(const Reader &reader, const char *column, std::string_view text, int32_t least) {
  int32_t value = 0;
  if (!parses(text, value) || value < least) {
    reader.fail(fmt::format("{} is {}; it should be a whole number from {} to {}", column, shown(text), least,
                            std::numeric_limits<int32_t>::max()));
  }
  return value;
}

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

}  // namespace

std::vector<TraceRequest> parse_trace(std::istream &in, const std::string &name) {
  Reader reader(in, name);
  std::string_view line;
  if (!reader.next(line))
    throw Failure(kBadInput, fmt::format("{}: the file is empty; its first line should be {}", name, kHeader));
  const bool has_session = line == kSessionHeader;
  if (!has_session && line != kHeader) {
    reader.fail(fmt::format("the header is {}; it should be {} or {}", shown(line), kHeader, kSessionHeader));
  }

  std::vector<TraceRequest> requests;
  const std::size_t columns = has_session ? 4 : 3;
  while (reader.next(line)) {
    const std::vector<std::string_view> fields = split(line);
    if (fields.size() != columns) {
      reader.fail(fmt::format("{} has {} field{}; it should have {}", shown(line), fields.size(), fields.size() == 1 ? "" : "s",
                              columns));
    }
    if (has_session && fields[0].empty()) reader.fail("session is empty; it should name the request's session");
    if (requests.size() == kMaxTraceRequests)
      reader.fail(fmt::format("more than {} requests; cut the trace", kMaxTraceRequests));
    const std::size_t first = columns - 3;
    requests.push_back({reader.number(), arrival(reader, fields[first]), tokens(reader, "input_tokens", fields[first + 1], 1),
                        tokens(reader, "output_tokens", fields[first + 2], 0)});
  }
  if (requests.empty()) throw Failure(kBadInput, fmt::format("{}: no requests after the header", name));
  std::stable_sort(requests.begin(), requests.end(),
                   [](const TraceRequest &a, const TraceRequest &b) { return a.arrival_ms < b.arrival_ms; });
  return requests;
}

std::vector<TraceRequest> read_trace(const std::string &path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Failure(kBadInput, fmt::format("{}: cannot open it: {}", path, std::strerror(errno)));
  return parse_trace(in, path);
}

}  // namespace mlaverify::cli
