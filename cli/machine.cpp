#include "machine.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace mlaverify::cli {

namespace {

// The text after `key` and its colon in a file of "key : value" lines, or "".
std::string field(const char *path, const std::string &key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    if (line.compare(0, key.size(), key) != 0 || colon == std::string::npos) continue;
    const std::size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

// "32768K", "1 GB" and the like; K, M, G are binary.
int64_t bytes_of(const std::string &text) {
  std::istringstream in(text);
  int64_t n = 0;
  char unit = ' ';
  if (!(in >> n)) return 0;
  in >> unit;
  switch (unit) {
    case 'k':
    case 'K': return n << 10;
    case 'M': return n << 20;
    case 'G': return n << 30;
    default: return n;
  }
}

}  // namespace

std::string cpu_model() {
  const std::string name = field("/proc/cpuinfo", "model name");
  return name.empty() ? "unknown CPU" : name;
}

int64_t last_level_cache_bytes() {
  int64_t largest = 0;
  for (int i = 0; i < 8; ++i) {
    std::ifstream in("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/size");
    std::string size;
    if (in >> size) largest = std::max(largest, bytes_of(size));
  }
  return largest;
}

int64_t available_memory_bytes() { return bytes_of(field("/proc/meminfo", "MemAvailable")); }

std::string compiler() {
#if defined(__clang__)
  std::string name = "clang++ " __clang_version__;
#elif defined(__GNUC__)
  std::string name = "g++ " __VERSION__;
#else
  std::string name = "unknown compiler";
#endif
#if !defined(__OPTIMIZE__)
  name += ", not optimised";
#endif
  return name;
}

}  // namespace mlaverify::cli
