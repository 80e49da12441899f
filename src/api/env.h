// The environment variables that the library reads, in one place. Each is read once per process, at its first use.
#pragma once

#include <string>
#include <vector>

namespace mlaverify {

struct EnvVariable {
  const char *name;
  const char *meaning;
  std::string value;  // empty: not set
};

const std::vector<EnvVariable> &environment();

// Value of a variable of the table; empty if it is not set.
const std::string &env_backend();    // MLAVERIFY_BACKEND
const std::string &env_cpu_isa();    // MLAVERIFY_CPU_ISA
const std::string &env_tune_file();  // MLAVERIFY_TUNE_FILE

}  // namespace mlaverify
