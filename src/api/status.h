// The result of a library step: a code of the public interface and, on failure, the message for the user.
#pragma once

#include <string>
#include <utility>

#include "mlaverify/mlaverify.h"

namespace mlaverify {

struct Status {
  Status() = default;
  Status(mlaverify_status c, std::string m) : code(c), message(std::move(m)) {}

  mlaverify_status code = MLAVERIFY_OK;
  std::string message;

  bool ok() const { return code == MLAVERIFY_OK; }
};

const char *status_name(mlaverify_status code);

}  // namespace mlaverify
