// `mlaverify check`: steps on every backend against the oracle and against the expected results in their files.
#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "api/env.h"
#include "backend_option.h"
#include "compare.h"
#include "error.h"
#include "io/device_memory.h"
#include "io/step.h"
#include "oracle/tolerance.h"
#include "self_test.h"
#include "step_call.h"
#include "verb.h"

namespace mlaverify::cli {
namespace {

struct CheckOptions {
  std::vector<std::string> files;
  std::vector<std::string> cases;
  mlaverify_backend backend = MLAVERIFY_BACKEND_AUTO;
  bool json = false;
};

struct Subject {
  std::string name;  // a path, or the name of a built-in case
  bool built_in;
};

struct Result {
  Result(std::string subject_name, std::string backend_name)
      : subject(std::move(subject_name)), backend(std::move(backend_name)) {}

  std::string subject, backend;  // backend: empty if the input is bad
  const char *status = "ok";     // or failed, skipped, bad input
  StepError error;
  Tolerance tolerance = {};
  std::string message, repeat;
};

// As a word of a shell command.
std::string shell_word(const std::string &text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string("/._-+=:,@").find(static_cast<char>(c)) != std::string::npos;
  });
  if (plain) return text;
  std::string word = "'";
  for (char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

std::string repeat_command(const Subject &subject, const std::string &backend) {
  std::string command;
  for (const EnvVariable &e : environment()) {
    if (!e.value.empty()) command += std::string(e.name) + "=" + shell_word(e.value) + " ";
  }
  return command + "mlaverify check --backend " + backend + (subject.built_in ? " --case " : " ") + shell_word(subject.name);
}

// Files as they are, directories as the step files in them.
std::vector<Subject> subjects_of(const CheckOptions &options) {
  std::vector<Subject> subjects;
  for (const std::string &path : options.files) {
    std::error_code ec;
    if (!std::filesystem::is_directory(path, ec)) {
      subjects.push_back({path, false});
      continue;
    }
    std::vector<std::string> inside;
    for (std::filesystem::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec)) {
      if (it->path().extension() == ".safetensors") inside.push_back(it->path().string());
    }
    if (ec) throw Failure(kBadInput, path + ": cannot read the directory: " + ec.message());
    if (inside.empty()) throw Failure(kBadInput, path + ": has no *.safetensors files in it");
    std::sort(inside.begin(), inside.end());
    for (const std::string &file : inside) subjects.push_back({file, false});
  }
  for (const std::string &name : options.cases) subjects.push_back({name, true});
  if (subjects.empty()) {
    for (const std::string &name : self_test_names()) subjects.push_back({name, true});
  }
  return subjects;
}

// One result a backend. Throws Failure or FileError for bad input, and where a backend that was asked for cannot do the step.
std::vector<Result> check_subject(const Subject &subject, const std::vector<mlaverify_backend_info> &list, bool asked) {
  const io::Step step = subject.built_in ? self_test_step(subject.name) : io::read_step(subject.name);
  std::vector<Result> results;
  std::vector<std::unique_ptr<StepCall>> calls;
  std::vector<std::size_t> result_of_call;
  for (const mlaverify_backend_info &info : list) {
    results.emplace_back(subject.name, info.name);
    results.back().tolerance = tolerance_for(step.q.dtype());
    try {
      auto call = std::make_unique<StepCall>(step, subject.name, info.backend, 0);
      call->run();
      calls.push_back(std::move(call));
      result_of_call.push_back(results.size() - 1);
    } catch (const Failure &e) {
      if (asked || e.exit_code != kCannotRun) throw;
      results.back().status = "skipped";
      results.back().message = e.what();
    } catch (const io::DeviceError &e) {
      results.back().status = "failed";
      results.back().error = {NAN, NAN, e.what()};
      results.back().message = e.what();
      results.back().repeat = repeat_command(subject, info.name);
    }
  }
  const std::vector<StepError> errors = compare_step(step, subject.name, calls);
  for (std::size_t i = 0; i < errors.size(); ++i) {
    Result &r = results[result_of_call[i]];
    r.error = errors[i];
    if (errors[i].why.empty()) continue;
    r.status = "failed";
    r.message = errors[i].why;
    r.repeat = repeat_command(subject, r.backend);
  }
  return results;
}

void print(const Result &r, std::size_t width) {
  const bool skipped = std::string(r.status) == "skipped";
  const bool failed = std::string(r.status) == "failed";
  fmt::print("{:<4}  {:<{}}  {:<9}  ", skipped ? "skip" : failed ? "FAIL" : "ok", r.subject, width, r.backend);
  if (skipped) {
    fmt::print("{}\n", r.message);
  } else {
    fmt::print("out {:.1e} of {:.0e}  lse {:.1e} of {:.0e}\n", r.error.out, r.tolerance.out, r.error.lse, r.tolerance.lse);
  }
  if (failed) fmt::print("      {}\n      repeat: {}\n", r.message, r.repeat);
  std::fflush(stdout);
}

nlohmann::ordered_json to_json(const Result &r) {
  nlohmann::ordered_json j = {{"case", r.subject}, {"backend", nullptr}, {"status", r.status}};
  if (!r.backend.empty()) j["backend"] = r.backend;
  if (r.tolerance.out > 0) {
    const auto number = [](double x) { return std::isfinite(x) ? nlohmann::ordered_json(x) : nlohmann::ordered_json(nullptr); };
    j["out_error"] = number(r.error.out);
    j["out_tolerance"] = r.tolerance.out;
    j["lse_error"] = number(r.error.lse);
    j["lse_tolerance"] = r.tolerance.lse;
  }
  j["message"] = r.message;
  j["repeat"] = r.repeat;
  return j;
}

int check(const CheckOptions &options) {
  demand_available(options.backend);
  std::vector<mlaverify_backend_info> list;
  const bool asked = options.backend != MLAVERIFY_BACKEND_AUTO;
  for (const mlaverify_backend_info &info : backends()) {
    if (asked ? info.backend == options.backend : info.available != 0) list.push_back(info);
  }
  const std::vector<Subject> subjects = subjects_of(options);
  std::size_t width = 0;
  for (const Subject &s : subjects) width = std::max(width, s.name.size());

  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  std::size_t ok = 0, failed = 0, skipped = 0, bad = 0;
  for (const Subject &subject : subjects) {
    std::vector<Result> of_subject;
    try {
      of_subject = check_subject(subject, list, asked);
    } catch (const std::runtime_error &e) {
      const auto *failure = dynamic_cast<const Failure *>(&e);
      if (failure != nullptr && failure->exit_code != kBadInput) throw;
      std::fflush(stdout);
      print_error(e.what());
      of_subject.emplace_back(subject.name, "");
      of_subject.back().status = "bad input";
      of_subject.back().message = e.what();
    }
    for (const Result &r : of_subject) {
      const std::string status = r.status;
      ++(status == "ok" ? ok : status == "failed" ? failed : status == "skipped" ? skipped : bad);
      if (options.json) results.push_back(to_json(r));
      if (!options.json && status != "bad input") print(r, width);
    }
  }
  if (options.json) {
    const nlohmann::ordered_json document = {{"version", mlaverify_version()},
                                             {"ok", ok},
                                             {"failed", failed},
                                             {"skipped", skipped},
                                             {"bad_input", bad},
                                             {"results", results}};
    fmt::print("{}\n", document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("{} ok, {} failed, {} skipped, {} bad input\n", ok, failed, skipped, bad);
  }
  return failed > 0 ? kCheckFailed : bad > 0 ? kBadInput : kOk;
}

}  // namespace

void add_check(CLI::App &app, int &exit_code) {
  CLI::App *verb = app.add_subcommand("check", "Compare backends with the float64 oracle and with expected results");
  auto options = std::make_shared<CheckOptions>();
  verb->add_option("file", options->files, "Step files, or directories of them; none: the built-in cases")->type_name("FILE");
  verb->add_option("--case", options->cases, "Only this built-in case (may be repeated)")
      ->type_name("NAME")
      ->expected(1)
      ->take_all();
  add_backend_option(*verb, options->backend);
  verb->add_flag("--json", options->json, "Print one JSON document");
  verb->callback([options, &exit_code] { exit_code = check(*options); });
}

}  // namespace mlaverify::cli
