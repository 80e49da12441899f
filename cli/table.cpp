#include "table.h"

#include <algorithm>
#include <cctype>

namespace mlaverify::cli {
namespace {

// Starts like a number: goes to the right.
bool is_number(const std::string &cell) {
  const std::size_t at = !cell.empty() && (cell[0] == '-' || cell[0] == '+') ? 1 : 0;
  return at < cell.size() && std::isdigit(static_cast<unsigned char>(cell[at])) != 0;
}

}  // namespace

std::string Table::text() const {
  std::vector<std::size_t> widths;
  std::vector<bool> right;  // a column whose cells below the header are all numbers
  for (std::size_t c = 0; c < header_.size(); ++c) {
    std::size_t width = header_[c].size();
    bool numbers = !rows_.empty();
    for (const auto &row : rows_) {
      if (c >= row.size()) continue;
      width = std::max(width, row[c].size());
      numbers = numbers && (row[c].empty() || is_number(row[c]));
    }
    widths.push_back(width);
    right.push_back(numbers);
  }
  std::string text;
  const auto add = [&](const std::vector<std::string> &row) {
    std::string line;
    for (std::size_t c = 0; c < row.size() && c < widths.size(); ++c) {
      const std::string pad(widths[c] - row[c].size(), ' ');
      line += (c == 0 ? "" : "  ") + (right[c] ? pad + row[c] : row[c] + pad);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add(header_);
  for (const auto &row : rows_) add(row);
  return text;
}

}  // namespace mlaverify::cli
