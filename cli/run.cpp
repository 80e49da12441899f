// `mlaverify run`: computes one step file and writes the results.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "backend_option.h"
#include "error.h"
#include "io/step.h"
#include "progress.h"
#include "step_call.h"
#include "verb.h"

namespace mlaverify::cli {
namespace {

struct RunOptions {
  std::string in, out;
  mlaverify_backend backend = MLAVERIFY_BACKEND_AUTO;
  int32_t num_kv_splits = 0;
  int32_t repeat = 1;
  int32_t threads = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

// Throws Failure (exit code 1) if the bits differ from those of the first run.
void demand_same_bits(const RunOptions &options, int32_t run, const char *name, const void *first, const void *now,
                      std::size_t bytes) {
  if (bytes == 0 || std::memcmp(first, now, bytes) == 0) return;
  throw Failure(kCheckFailed,
                fmt::format("{}: run {} of {} gave other bits of {} than run 1", options.in, run, options.repeat, name));
}

void run(const RunOptions &options, bool override_splits) {
  const mlaverify_backend_info backend = chosen_backend(options.backend);
  std::error_code not_there;
  if (std::filesystem::equivalent(options.in, options.out, not_there)) {
    throw Failure(kBadInput, options.out + ": is the step file itself, must be another file");
  }
  io::Step step = io::read_step(options.in);
  if (override_splits) step.num_kv_splits = options.num_kv_splits;
  StepCall call(step, options.in, backend.backend, options.threads);
  std::vector<char> first_out, first_lse;
  std::vector<double> seconds;
  Progress progress;
  for (int32_t i = 1; i <= options.repeat; ++i) {
    progress.show(static_cast<double>(i - 1) / options.repeat, options.in);
    call.run();
    seconds.push_back(call.seconds());
    const auto *out = static_cast<const char *>(call.out());
    const auto *lse = reinterpret_cast<const char *>(call.lse());
    if (i == 1) {
      first_out.assign(out, out + call.out_bytes());
      first_lse.assign(lse, lse + call.lse_bytes());
      continue;
    }
    demand_same_bits(options, i, "o", first_out.data(), out, call.out_bytes());
    demand_same_bits(options, i, "lse", first_lse.data(), lse, call.lse_bytes());
  }
  io::write_safetensors(options.out,
                        {{"o", step.q.dtype(), {call.rows(), call.heads(), step.v_head_dim}, first_out.data()},
                         {"lse", DType::f32, {call.rows(), call.heads()}, first_lse.data()}},
                        {});
  fmt::print("{}: {} rows x {} heads on {}, {:.3f} ms{}\n", options.out, call.rows(), call.heads(), backend.name,
             median(seconds) * 1e3,
             options.repeat > 1 ? fmt::format(" (median of {} runs, all bits equal)", options.repeat) : "");
}

}  // namespace

void add_run(CLI::App &app, int &exit_code) {
  CLI::App *verb = app.add_subcommand("run", "Compute one step file and write its results");
  auto options = std::make_shared<RunOptions>();
  verb->add_option("file", options->in, "Step file (safetensors)")->required()->type_name("IN");
  verb->add_option("--out", options->out, "Where to write o and lse (safetensors)")->required()->type_name("OUT");
  add_backend_option(*verb, options->backend);
  CLI::Option *splits =
      verb->add_option("--num-kv-splits", options->num_kv_splits, "KV splits instead of the file's (0: automatic)");
  verb->add_option("--repeat", options->repeat, "Run N times and demand equal bits")->check(CLI::Range(1, 1'000'000));
  verb->add_option("--threads", options->threads, "CPU threads at most (0: the OpenMP default)");
  verb->callback([options, splits, &exit_code] {
    run(*options, splits->count() > 0);
    exit_code = kOk;
  });
}

}  // namespace mlaverify::cli
