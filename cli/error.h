// What ends a verb early. main.cpp prints the message on one line of standard error and exits with the code.
#pragma once

#include <stdexcept>
#include <string>

#include "verb.h"

namespace mlaverify::cli {

class Failure : public std::runtime_error {
 public:
  Failure(int code, const std::string &message) : std::runtime_error(message), exit_code(code) {}
  int exit_code;
};

}  // namespace mlaverify::cli
