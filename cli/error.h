// What ends a verb early. main.cpp prints the message on one line of standard error and exits with the code.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>

#include "verb.h"

namespace mlaverify::cli {

class Failure : public std::runtime_error {
 public:
  Failure(int code, const std::string &message) : std::runtime_error(message), exit_code(code) {}
  int exit_code;
};

// On one line of standard error, whatever a path in the message holds.
inline void print_error(std::string message, const char *hint = "") {
  for (char &c : message) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  std::fprintf(stderr, "mlaverify: %s%s\n", message.c_str(), hint);
}

}  // namespace mlaverify::cli
