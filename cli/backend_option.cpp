#include "backend_option.h"

#include "api/env.h"
#include "backends/backend.h"
#include "error.h"
#include "io/device_memory.h"

namespace mlaverify::cli {

std::vector<mlaverify_backend_info> backends() {
  std::vector<mlaverify_backend_info> list(static_cast<std::size_t>(mlaverify_backend_count()));
  for (std::size_t i = 0; i < list.size(); ++i) {
    list[i].size = sizeof(mlaverify_backend_info);
    demand_ok(mlaverify_get_backend_info(static_cast<int32_t>(i), &list[i]), "");
  }
  return list;
}

void add_backend_option(CLI::App &verb, mlaverify_backend &backend) {
  std::string names = "auto";
  for (const mlaverify_backend_info &info : backends()) names += std::string(", ") + info.name;
  verb.add_option_function<std::string>(
          "--backend",
          [&backend, names](const std::string &name) {
            if (name == "auto") {
              backend = MLAVERIFY_BACKEND_AUTO;
              return;
            }
            for (const mlaverify_backend_info &info : backends()) {
              if (name == info.name) {
                backend = info.backend;
                return;
              }
            }
            throw CLI::ValidationError("--backend", "'" + name + "' is not one of " + names);
          },
          "Backend: " + names)
      ->type_name("NAME");
}

void demand_ok(mlaverify_status status, const std::string &context) {
  if (status != MLAVERIFY_OK) demand_ok(Status(status, mlaverify_last_error()), context);
}

void demand_ok(const Status &status, const std::string &context) {
  if (status.ok()) return;
  const std::string message = (context.empty() ? "" : context + ": ") + status.message;
  if (status.code == MLAVERIFY_ERR_DEVICE) throw io::DeviceError(message);
  const bool bad_input = status.code == MLAVERIFY_ERR_INVALID_ARGUMENT || status.code == MLAVERIFY_ERR_INVALID_VALUE;
  throw Failure(bad_input ? kBadInput : kCannotRun, message);
}

void demand_sound_environment() {
  bool known = env_backend().empty();
  std::string names;
  for (const Backend *b : backend_list()) {
    known = known || env_backend() == b->name();
    names += (names.empty() ? "" : ", ") + std::string(b->name());
    const Status &status = b->availability().status;
    if (status.code == MLAVERIFY_ERR_INVALID_ARGUMENT) throw Failure(kBadInput, status.message);
    // The library's "auto" would go on to the reference backend, and a check of that instruction set would look like one passed.
    const bool isa_missing = b->id() == MLAVERIFY_BACKEND_CPU && !env_cpu_isa().empty() && !status.ok();
    if (isa_missing) throw Failure(kCannotRun, status.message);
  }
  if (!known) throw Failure(kBadInput, "MLAVERIFY_BACKEND: got '" + env_backend() + "', must be one of " + names);
}

mlaverify_backend_info chosen_backend(mlaverify_backend asked) {
  demand_sound_environment();
  const std::string &forced = env_backend();
  for (const mlaverify_backend_info &info : backends()) {
    const bool automatic = forced.empty() ? info.available != 0 : forced == info.name;
    if (asked == MLAVERIFY_BACKEND_AUTO ? !automatic : info.backend != asked) continue;
    demand_available(info.backend);
    return info;
  }
  throw Failure(kCannotRun, "no backend can run here");
}

void demand_available(mlaverify_backend backend) {
  demand_sound_environment();
  for (const mlaverify_backend_info &info : backends()) {
    if (info.backend == backend && info.available == 0) {
      throw Failure(kCannotRun, std::string("backend ") + info.name + " cannot run here: " + info.detail);
    }
  }
}

}  // namespace mlaverify::cli
