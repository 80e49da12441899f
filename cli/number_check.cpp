#include "number_check.h"

#include <charconv>
#include <cstdint>
#include <type_traits>

#include "io/safetensors.h"

namespace mlaverify::cli {
namespace {

// "" or what is wrong.
template <class Number>
std::string fault(const std::string &text, const char *wanted) {
  Number x = {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  bool sound = end == text.data() + text.size() && error != std::errc::invalid_argument;
  if constexpr (std::is_integral_v<Number>) {
    const std::size_t first = text[0] == '-' ? 1 : 0;
    const bool octal = text.size() > first + 1 && text[first] == '0';
    sound = sound && error == std::errc() && !octal;
  }
  return sound ? "" : io::quote(text) + ", must be " + wanted;
}

}  // namespace

void demand_decimal_numbers(CLI::App &app) {
  for (CLI::App *verb : app.get_subcommands({})) {
    for (CLI::Option *option : verb->get_options()) {
      const std::string type = option->get_type_name().substr(0, option->get_type_name().find(':'));  // behind it: other checks
      const auto check = [option](std::string (*of)(const std::string &, const char *), const char *wanted) {
        option->transform(CLI::Validator([of, wanted](std::string &text) { return of(text, wanted); }, ""));
      };
      if (type == "INT") check(fault<int64_t>, "a whole number");
      if (type == "UINT") check(fault<uint64_t>, "a whole number from 0 to 18446744073709551615");
      if (type == "FLOAT") check(fault<double>, "a number");
    }
  }
}

}  // namespace mlaverify::cli
