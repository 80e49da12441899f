// mlaverify replay: serves a recorded trace of requests and reports what it took (docs/replay.md).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "backend_option.h"
#include "error.h"
#include "grid.h"
#include "machine.h"
#include "progress.h"
#include "rules/paging.h"
#include "rules/row.h"
#include "serve.h"
#include "trace.h"
#include "verb.h"
#include "work.h"

namespace mlaverify::cli {
namespace {

constexpr std::size_t kShown = 5;  // refusals and mismatches that are described
constexpr double kDefaultPoolBytes = 1024.0 * 1024 * 1024;

// The options of a shape that are the user's here; the trace gives the others. Read by the code that reads them for `bench`.
struct ShapeHelp {
  const char *name;
  const char *help;
};
constexpr ShapeHelp kShapeOptions[] = {
    {"heads", "Query heads (8)"},
    {"qlen", "Tokens verified per request and step: the last accepted one and the drafted ones (4)"},
    {"page-size", "Tokens of a page (64)"},
    {"dtype", "Type of queries and output: bf16 f16 f32 (bf16)"},
    {"kv-dtype", "Type of the cache: bf16 f16 f32 f8_e4m3 f8_e5m2 f8_ds_mla (bf16)"},
    {"lk", "Width of a key (576)"},
    {"lv", "Width of a value (512)"}};
const ShapeOptions kShapeDefaults = {{"heads", "8"}, {"qlen", "4"}};

struct Options {
  std::string trace;
  ShapeOptions shape = kShapeDefaults;
  std::optional<int32_t> pool_pages;
  std::optional<int64_t> max_requests;
  std::optional<int64_t> max_steps;
  bool json = false;
  ServeOptions serve;
};

// What happened over a run.
struct Summary {
  std::size_t requests_in_trace = 0;
  std::size_t requests = 0;     // taken from it: --max-requests
  std::vector<double> step_ms;  // sorted once the run is over
  double attention_ms = 0;      // their sum
  Work work;
  double floor_seconds = 0;  // sum over the steps
  int64_t tokens_verified = 0;
  int64_t tokens_accepted = 0;
  int64_t request_steps = 0;  // sum over the steps of the live requests
  int64_t live_peak = 0;
  int64_t page_steps = 0;  // sum over the steps of the pages in use
  int64_t reserved_peak = 0;
  int64_t rows_checked = 0;
  double worst_error = 0;
  int64_t mismatches = 0;
  std::vector<Mismatch> first_mismatches;
  bool cut = false;  // by --max-steps

  int64_t steps() const { return static_cast<int64_t>(step_ms.size()); }
  double mean_live() const { return static_cast<double>(request_steps) / static_cast<double>(steps()); }
  double mean_pages() const { return static_cast<double>(page_steps) / static_cast<double>(steps()); }
  double per_second(double count) const { return count / (attention_ms / 1e3); }
  double times_floor() const { return attention_ms / 1e3 / floor_seconds; }
  // The smallest time that this share of the steps does not exceed.
  double quantile_ms(double share) const {
    const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(steps())));
    return step_ms[rank - 1];
  }

  void add(const StepReport &report, const Ceilings &ceilings);
};

void Summary::add(const StepReport &report, const Ceilings &ceilings) {
  step_ms.push_back(report.ms);
  attention_ms += report.ms;
  work += report.work;
  floor_seconds += cli::floor_seconds(report.work, ceilings);
  tokens_verified += report.tokens_verified;
  tokens_accepted += report.tokens_accepted;
  request_steps += report.live_requests;
  live_peak = std::max(live_peak, report.live_requests);
  page_steps += report.pages_in_use;
  reserved_peak = std::max(reserved_peak, report.pages_reserved);
  rows_checked += report.rows_checked;
  worst_error = std::max(worst_error, report.worst_error);
  mismatches += static_cast<int64_t>(report.mismatches.size());
  for (const Mismatch &m : report.mismatches) {
    if (first_mismatches.size() < kShown) first_mismatches.push_back(m);
  }
}

double page_bytes(const Shape &shape) {
  return static_cast<double>(shape.page_size) * static_cast<double>(rules::row_bytes(shape.kv_dtype, shape.qk_dim));
}

// Unless the user says: what 1 GiB holds, or all requests at once if that is less.
int32_t default_pool_pages(const Shape &shape, const std::vector<TraceRequest> &trace) {
  double pages = 0;
  for (const TraceRequest &r : trace)
    pages += static_cast<double>(rules::pages_for(max_tokens(r, shape.qlen), shape.page_size));
  return static_cast<int32_t>(std::clamp(pages, 1.0, std::max(1.0, kDefaultPoolBytes / page_bytes(shape))));
}

// Refused before it is asked for: an allocation that the machine cannot back may end the process only once it is written to.
void demand_memory(const ServeOptions &options) {
  const double bytes = options.pool_pages * page_bytes(options.shape);
  const auto available = static_cast<double>(available_memory_bytes());
  if (available > 0 && bytes > available) {
    throw Failure(kBadInput, fmt::format("--pool-pages: {} pages take {:.1f} GB, this machine has {:.1f} GB available",
                                         options.pool_pages, bytes / 1e9, available / 1e9));
  }
}

void demand_number(const char *option, double value, bool good, const char *wanted) {
  if (!good) throw Failure(kBadInput, fmt::format("--{}: {} should be {}", option, value, wanted));
}

nlohmann::json to_json(const Options &options, const Summary &s, const Scheduler &scheduler, const Ceilings &ceilings) {
  nlohmann::json refused = nlohmann::json::array();
  for (const Refusal &r : scheduler.refused()) refused.push_back({{"line", r.request.line}, {"why", r.why}});
  nlohmann::json mismatches = nlohmann::json::array();
  for (const Mismatch &m : s.first_mismatches) {
    mismatches.push_back({{"step", m.step}, {"line", m.line}, {"token", m.token}, {"head", m.head}, {"why", m.why}});
  }
  const ServeOptions &serve = options.serve;
  const Shape &shape = serve.shape;
  return {
      {"trace", options.trace},
      {"options",
       {{"heads", shape.num_heads},
        {"qlen", shape.qlen},
        {"page_size", shape.page_size},
        {"dtype", dtype_name(shape.q_dtype)},
        {"kv_dtype", dtype_name(shape.kv_dtype)},
        {"lk", shape.qk_dim},
        {"lv", shape.v_dim},
        {"max_batch", serve.max_batch},
        {"pool_pages", serve.pool_pages},
        {"accept_rate", serve.accept_rate},
        {"speed_up", serve.speed_up},
        {"seed", serve.seed},
        {"check_rows", serve.check_rows},
        {"threads", serve.num_threads}}},
      {"requests",
       {{"in_trace", s.requests_in_trace},
        {"total", s.requests},
        {"served", scheduler.served()},
        {"in_flight", scheduler.live().size()},
        {"waiting", scheduler.waiting()},
        {"to_arrive", scheduler.to_arrive()},
        {"refused", scheduler.refused().size()}}},
      {"refused", refused},
      {"cut_by_max_steps", s.cut},
      {"steps", s.steps()},
      {"clock_ms", scheduler.now_ms()},
      {"attention_ms", s.attention_ms},
      {"step_ms", {{"p50", s.quantile_ms(0.5)}, {"p95", s.quantile_ms(0.95)}, {"p99", s.quantile_ms(0.99)}}},
      {"tokens_verified", s.tokens_verified},
      {"tokens_accepted", s.tokens_accepted},
      {"tokens_verified_per_second", s.per_second(static_cast<double>(s.tokens_verified))},
      {"tokens_accepted_per_second", s.per_second(static_cast<double>(s.tokens_accepted))},
      {"live_requests", {{"peak", s.live_peak}, {"mean", s.mean_live()}}},
      {"pool",
       {{"pages", serve.pool_pages},
        {"bytes", serve.pool_pages * page_bytes(shape)},
        {"in_use_peak", scheduler.pool().peak()},
        {"in_use_mean", s.mean_pages()},
        {"reserved_peak", s.reserved_peak},
        {"allocations", scheduler.pool().allocations()}}},
      {"gb_per_second", s.per_second(s.work.bytes) / 1e9},
      {"gflop_per_second", s.per_second(s.work.flops) / 1e9},
      {"times_floor", s.times_floor()},
      {"ceilings", {{"gb_per_second", ceilings.bytes_per_second / 1e9}, {"gflop_per_second", ceilings.flops_per_second / 1e9}}},
      {"check", {{"rows", s.rows_checked}, {"worst_error", s.worst_error}, {"mismatches", s.mismatches}}},
      {"first_mismatches", mismatches},
  };
}

std::string to_text(const Options &options, const Summary &s, const Scheduler &scheduler, const Ceilings &ceilings) {
  const ServeOptions &serve = options.serve;
  const Shape &shape = serve.shape;
  std::string out;
  const auto line = [&out](const char *label, const std::string &text) { out += fmt::format("{:<10} {}\n", label, text); };

  line("trace", fmt::format("{}, {} of its {} requests", options.trace, s.requests, s.requests_in_trace));
  line("model",
       fmt::format("{} heads, {}/{} wide, queries {}, cache {}, {} tokens verified per request and step", shape.num_heads,
                   shape.qk_dim, shape.v_dim, dtype_name(shape.q_dtype), dtype_name(shape.kv_dtype), shape.qlen));
  line("requests",
       fmt::format("{} served, {} in flight, {} waiting, {} still to arrive, {} refused", scheduler.served(),
                   scheduler.live().size(), scheduler.waiting(), scheduler.to_arrive(), scheduler.refused().size()));
  for (std::size_t i = 0; i < std::min(kShown, scheduler.refused().size()); ++i) {
    const Refusal &r = scheduler.refused()[i];
    line("", fmt::format("refused: the request of line {} {}", r.request.line, r.why));
  }
  if (scheduler.refused().size() > kShown) line("", fmt::format("refused: {} more", scheduler.refused().size() - kShown));
  if (s.cut) line("", fmt::format("cut after {} steps (--max-steps), before the trace was served", s.steps()));
  line("clock", fmt::format("{:.1f} s, of which {:.1f} s attention; arrivals {} times as fast as recorded",
                            scheduler.now_ms() / 1e3, s.attention_ms / 1e3, serve.speed_up));
  line("steps", fmt::format("{}; time per step p50 {:.1f} ms, p95 {:.1f} ms, p99 {:.1f} ms", s.steps(), s.quantile_ms(0.5),
                            s.quantile_ms(0.95), s.quantile_ms(0.99)));
  line("tokens", fmt::format("{} verified ({:.0f}/s), {} accepted ({:.0f}/s), {:.2f} accepted per request and step",
                             s.tokens_verified, s.per_second(static_cast<double>(s.tokens_verified)), s.tokens_accepted,
                             s.per_second(static_cast<double>(s.tokens_accepted)),
                             static_cast<double>(s.tokens_accepted) / static_cast<double>(s.request_steps)));
  line("live", fmt::format("peak {}, mean {:.1f} requests (at most {})", s.live_peak, s.mean_live(), serve.max_batch));
  const double share = 100.0 / serve.pool_pages;
  const PagePool &pool = scheduler.pool();
  line("pool",
       fmt::format("{} pages of {} tokens, {:.0f} MB: in use peak {} ({:.0f} %), mean {:.0f} ({:.0f} %), reserved peak {} "
                   "({:.0f} %)",
                   serve.pool_pages, shape.page_size, serve.pool_pages * page_bytes(shape) / 1e6, pool.peak(),
                   pool.peak() * share, s.mean_pages(), s.mean_pages() * share, s.reserved_peak,
                   static_cast<double>(s.reserved_peak) * share));
  line("", fmt::format("{} pages handed out, {} of them used before", pool.allocations(), pool.allocations() - pool.peak()));
  line("speed", fmt::format("{:.1f} GB/s, {:.1f} GFLOP/s, {:.2f} x the floor (this machine: {:.1f} GB/s, {:.1f} GFLOP/s)",
                            s.per_second(s.work.bytes) / 1e9, s.per_second(s.work.flops) / 1e9, s.times_floor(),
                            ceilings.bytes_per_second / 1e9, ceilings.flops_per_second / 1e9));
  line("check",
       fmt::format("{} rows compared with the float64 oracle (seed {}), {} mismatches, worst error {:.2f} of the tolerance",
                   s.rows_checked, serve.seed, s.mismatches == 0 ? "no" : std::to_string(s.mismatches), s.worst_error));
  for (const Mismatch &m : s.first_mismatches) {
    line("",
         fmt::format("mismatch: step {}, request of line {}, token {}, head {}: {}", m.step, m.line, m.token, m.head, m.why));
  }
  return out;
}

int replay(Options &options) {
  ServeOptions &serve = options.serve;
  demand_available(serve.backend);
  demand_number("accept-rate", serve.accept_rate, serve.accept_rate >= 0 && serve.accept_rate <= 1, "from 0 to 1");
  demand_number("speed-up", serve.speed_up, serve.speed_up >= 1e-6 && serve.speed_up <= 1e12, "from 1e-6 to 1e12");
  Shape shape;
  shape.seq_lens = {1};  // the lengths are those of the trace
  serve.shape = change_shape(shape, options.shape);
  std::vector<TraceRequest> trace = read_trace(options.trace);
  Summary summary;
  summary.requests_in_trace = trace.size();
  if (options.max_requests) trace.resize(std::min(trace.size(), static_cast<std::size_t>(*options.max_requests)));
  summary.requests = trace.size();
  serve.pool_pages = options.pool_pages ? *options.pool_pages : default_pool_pages(serve.shape, trace);
  demand_memory(serve);
  // Fixed, so that the call and the floor mean the same threads.
  if (serve.num_threads == 0) serve.num_threads = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));

  Server server(serve, trace);
  const Scheduler &scheduler = server.scheduler();
  const Ceilings ceilings = ceilings_of(serve.shape, measure_cpu_ceilings(serve.num_threads));
  {
    Progress progress;
    StepReport report;
    while (!(summary.cut = options.max_steps && summary.steps() == *options.max_steps) && server.step(report)) {
      summary.add(report, ceilings);
      const double tokens = static_cast<double>(summary.tokens_accepted) / static_cast<double>(scheduler.output_tokens());
      const double steps =
          options.max_steps ? static_cast<double>(summary.steps()) / static_cast<double>(*options.max_steps) : 0.0;
      progress.show(std::max(tokens, steps), fmt::format("step {}, {} live, {} waiting, {:.0f} ms", summary.steps(),
                                                         report.live_requests, scheduler.waiting(), report.ms));
    }
  }
  summary.cut = summary.cut && !(scheduler.live().empty() && scheduler.waiting() + scheduler.to_arrive() == 0);
  std::sort(summary.step_ms.begin(), summary.step_ms.end());

  const std::string out =
      options.json
          ? to_json(options, summary, scheduler, ceilings).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
          : to_text(options, summary, scheduler, ceilings);
  std::fputs(out.c_str(), stdout);
  return summary.mismatches == 0 ? kOk : kCheckFailed;
}

}  // namespace

void add_replay(CLI::App &app, int &exit_code) {
  const auto options = std::make_shared<Options>();
  CLI::App &verb = *app.add_subcommand("replay", "Serve a recorded trace of requests on a virtual clock");
  verb.add_option("trace", options->trace, "CSV file: arrival_ms,input_tokens,output_tokens")->required()->type_name("TRACE");

  for (const ShapeHelp &o : kShapeOptions) {
    verb.add_option_function<std::string>(
        std::string("--") + o.name, [options, name = o.name](const std::string &value) { options->shape[name] = value; },
        o.help);
  }
  verb.add_option("--max-batch", options->serve.max_batch, "Requests live at once, at most (64)")->check(CLI::Range(1, 65536));
  verb.add_option("--pool-pages", options->pool_pages,
                  "Pages of the cache (what 1 GiB holds, or fewer if the trace needs fewer)")
      ->check(CLI::Range(1, std::numeric_limits<int32_t>::max()));
  verb.add_option("--accept-rate", options->serve.accept_rate,
                  "Chance that a drafted token is accepted, given that those before it were (0.7)");
  verb.add_option("--speed-up", options->serve.speed_up, "Let requests arrive this many times as fast as recorded (1)");
  verb.add_option("--seed", options->serve.seed, "Seed of latents, queries, acceptance and the sample of rows (1)");
  verb.add_option("--max-requests", options->max_requests, "Take only this many requests, the first to arrive (all)")
      ->check(CLI::Range(1, std::numeric_limits<int32_t>::max()));
  verb.add_option("--max-steps", options->max_steps, "End after this many steps (when all requests have been served)")
      ->check(CLI::Range(1, std::numeric_limits<int32_t>::max()));
  verb.add_option("--check-rows", options->serve.check_rows, "Rows of each step to compare with the float64 oracle (2)")
      ->check(CLI::Range(0, 1 << 20));
  verb.add_option("--threads", options->serve.num_threads, "Threads (all cores)")->check(CLI::Range(0, 4096));
  add_backend_option(verb, options->serve.backend);
  verb.add_flag("--json", options->json, "Print one JSON document");
  verb.callback([options, &exit_code] { exit_code = replay(*options); });
}

}  // namespace mlaverify::cli
