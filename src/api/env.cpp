#include "api/env.h"

#include <cstdlib>

namespace mlaverify {
namespace {

std::string read(const char *name) {
  const char *value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

const std::vector<EnvVariable> &environment() {
  static const std::vector<EnvVariable> variables = [] {
    std::vector<EnvVariable> v = {
        {"MLAVERIFY_BACKEND", "backend of calls that ask for none: cuda, cpu or reference", ""},
        {"MLAVERIFY_CPU_ISA",
         "instruction set of the cpu backend: amx_bf16, avx512_bf16, avx512, avx2 or scalar (default: the best one here)", ""},
        {"MLAVERIFY_TUNE_FILE", "file by `mlaverify tune`: rows of the config table for this GPU (cuda backend)", ""},
    };
    for (EnvVariable &e : v) e.value = read(e.name);
    return v;
  }();
  return variables;
}

const std::string &env_backend() { return environment()[0].value; }
const std::string &env_cpu_isa() { return environment()[1].value; }
const std::string &env_tune_file() { return environment()[2].value; }

}  // namespace mlaverify
