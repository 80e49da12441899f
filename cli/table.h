// Plain text tables: columns as wide as their widest cell, numbers to the right.
#pragma once

#include <string>
#include <vector>

namespace mlaverify::cli {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;  // ends in a newline

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace mlaverify::cli
