#include "first_call.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "error.h"
#include "gpu.h"
#include "grid.h"
#include "other_program.h"
#include "timer.h"

namespace mlaverify::cli {

FirstCall time_first_call(const Shape &shape, const CallOptions &call, bool warm) {
  constexpr int later_calls = 9;
  TimedStep step(shape, 1, call);  // one page set: kernels count here, not where keys come from
  replay_first_graph(kGpu);
  if (warm) step.warm_up();
  const TimedStep::CapturedCall first = step.capture_call();
  std::vector<double> later(later_calls);
  for (double &s : later) s = step.capture_call().seconds;
  return {first.kernel_nodes, first.other_nodes, first.seconds, summarize(std::move(later)).median};
}

FirstCall first_call_of_new_process(const Shape &shape, bool warm) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string options =
      fmt::format("bench {} --backend cuda --first-call {} --json", shape_line(shape), warm ? "warm" : "cold");
  const ProgramRun run = run_command(fmt::format("CUDA_MODULE_LOADING=LAZY {} {}", quoted(program), options));
  if (run.exit_code != 0) throw Failure(kCheckFailed, fmt::format("mlaverify {}: exit code {}", options, run.exit_code));
  return parse_first_call(run.output);
}

nlohmann::ordered_json first_call_json(const Shape &shape, const FirstCall &call, bool warm) {
  return {{"shape", shape_line(shape)},      {"first_call", warm ? "warm" : "cold"}, {"kernel_nodes", call.kernel_nodes},
          {"other_nodes", call.other_nodes}, {"first_seconds", call.first},          {"later_seconds", call.later}};
}

FirstCall parse_first_call(const std::string &json) {
  const auto j = nlohmann::json::parse(json);
  return {j.at("kernel_nodes"), j.at("other_nodes"), j.at("first_seconds"), j.at("later_seconds")};
}

std::string first_call_text(const FirstCall &call, bool warm) {
  return fmt::format(
      "kernels of a call: {}; other nodes in its graph: {}\n"
      "first call, {} a warm-up: {:.1f} us on the host; later ones: {:.1f} us (captured, replayed and waited for)\n",
      call.kernel_nodes, call.other_nodes, warm ? "behind" : "without", call.first * 1e6, call.later * 1e6);
}

}  // namespace mlaverify::cli
