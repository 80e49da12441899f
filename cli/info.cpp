// `mlaverify info`: what this build is and what it can use on this machine.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "api/env.h"
#include "backend_option.h"
#include "machine.h"
#include "mlaverify/mlaverify.h"
#include "table.h"
#include "verb.h"

namespace mlaverify::cli {
namespace {

nlohmann::ordered_json collect() {
  nlohmann::ordered_json j;
  j["version"] = mlaverify_version();
  j["build"] = {{"compiler", compiler()}, {"type", MLAVERIFY_BUILD_TYPE}, {"openmp", MLAVERIFY_WITH_OPENMP != 0}};
  j["cpu"] = {{"model", cpu_model()}, {"threads", std::thread::hardware_concurrency()}};
  j["backends"] = nlohmann::ordered_json::array();
  for (const mlaverify_backend_info &b : backends()) {
    j["backends"].push_back({{"name", b.name}, {"available", b.available != 0}, {"detail", b.detail}});
  }
  j["environment"] = nlohmann::ordered_json::array();
  for (const EnvVariable &e : environment()) {
    nlohmann::ordered_json value;
    if (!e.value.empty()) value = e.value;
    j["environment"].push_back({{"name", e.name}, {"value", value}, {"meaning", e.meaning}});
  }
  return j;
}

void print(const nlohmann::ordered_json &j) {
  const auto text = [](const nlohmann::ordered_json &value) { return value.get<std::string>(); };
  fmt::print("mlaverify {}\n", text(j["version"]));
  fmt::print("build    {}, {}, {} OpenMP\n", text(j["build"]["compiler"]), text(j["build"]["type"]),
             j["build"]["openmp"].get<bool>() ? "with" : "without");
  fmt::print("CPU      {}, {} threads\n\n", text(j["cpu"]["model"]), j["cpu"]["threads"].get<unsigned>());

  Table list({"backend", "available", "detail"});
  for (const auto &b : j["backends"]) list.add({text(b["name"]), b["available"].get<bool>() ? "yes" : "no", text(b["detail"])});
  fmt::print("{}\n", list.text());

  Table variables({"variable", "value", "meaning"});
  for (const auto &e : j["environment"]) {
    variables.add({text(e["name"]), e["value"].is_null() ? "(not set)" : text(e["value"]), text(e["meaning"])});
  }
  fmt::print("{}", variables.text());
}

}  // namespace

void add_info(CLI::App &app, int &exit_code) {
  CLI::App *verb = app.add_subcommand("info", "Show version, build, CPU, backends and environment");
  auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "Print one JSON document");
  verb->callback([json, &exit_code] {
    const nlohmann::ordered_json j = collect();
    if (*json) {
      fmt::print("{}\n", j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    } else {
      print(j);
    }
    exit_code = kOk;
  });
}

}  // namespace mlaverify::cli
