// `mlaverify plan`: what a step of given sizes will use and need, without running it.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "api/validate.h"
#include "backend_option.h"
#include "backends/launch_facts.h"
#include "error.h"
#include "gpu.h"
#include "gpu_report.h"
#include "grid.h"
#include "mlaverify/mlaverify.h"
#include "rules/hd.h"
#include "rules/row.h"
#include "step_call.h"
#include "verb.h"
#include "work.h"

namespace mlaverify::cli {
namespace {

struct PlanOptions {
  ShapeOptions shape = {{"seq-len", "4096"}};
  int32_t num_kv_splits = 0;
  std::string arch;      // empty: what the default backend runs on here
  int32_t sm_count = 0;  // 0: not given
  bool json = false;
};

// A call of these sizes, without data.
mlaverify_verify_args args_for(const Shape &shape, int32_t num_kv_splits) {
  const auto batch = static_cast<int64_t>(shape.seq_lens.size());
  int64_t num_pages = 0, width = 0;
  for (int32_t len : shape.seq_lens) {
    const int64_t pages = rules::ceil_div(len, shape.page_size);
    num_pages += pages;
    width = std::max(width, pages);
  }
  mlaverify_verify_args args = {};
  args.size = sizeof(args);
  args.q = shape_only(shape.q_dtype, {batch * shape.qlen, shape.num_heads, shape.qk_dim});
  args.kv_cache =
      shape_only(shape.kv_dtype, {num_pages, shape.page_size, 1, rules::row_elements(shape.kv_dtype, shape.qk_dim)});
  args.out = shape_only(shape.q_dtype, {batch * shape.qlen, shape.num_heads, shape.v_dim});
  args.lse = shape_only(DType::f32, {batch * shape.qlen, shape.num_heads});
  args.block_table = shape_only(DType::i32, {batch, width});
  args.seq_lens = shape_only(DType::i32, {batch});
  args.v_head_dim = shape.v_dim;
  args.qlen = shape.qlen;
  args.page_size = shape.page_size;
  args.num_kv_splits = num_kv_splits;
  args.sm_scale = 1;
  args.backend = MLAVERIFY_BACKEND_CPU;
  return args;
}

Problem problem_of(const mlaverify_verify_args &args) {
  Call call = {};
  if (const Status s = validate(&args, false, &call); !s.ok()) throw Failure(kBadInput, "plan: " + s.message);
  return call.problem;
}

// A CUDA architecture of the config table.
std::optional<rules::Arch> gpu_arch_of(const std::string &name) {
  for (const rules::Arch arch : {rules::Arch::sm_80, rules::Arch::sm_86, rules::Arch::sm_90, rules::Arch::sm_100}) {
    if (name == rules::arch_name(arch)) return arch;
  }
  return std::nullopt;
}

nlohmann::ordered_json config_json(const mlaverify_verify_config &c) {
  return {{"block_h", c.block_h},
          {"block_n", c.block_n},
          {"split_align", c.split_align},
          {"min_split_len", c.min_split_len},
          {"q_split", c.q_split},
          {"num_warps", c.num_warps},
          {"num_stages", c.num_stages},
          {"s2_block_s", c.s2_block_s},
          {"s2_num_warps", c.s2_num_warps},
          {"waves_per_eu", c.waves_per_eu},
          {"matrix_instr_nonkdim", c.matrix_instr_nonkdim},
          {"kpack", c.kpack}};
}

// What is planned for.
struct Target {
  std::string arch;
  int32_t sm_count = 0;       // 0: not known
  std::string ceilings_from;  // empty: there are none
  Ceilings ceilings;
};

Target target_of(const PlanOptions &options) {
  Target t;
  t.arch = options.arch;
  if (t.arch.empty() && chosen_backend(MLAVERIFY_BACKEND_AUTO).backend == MLAVERIFY_BACKEND_CUDA) {
    GpuKind gpu;
    if (const Status s = gpu_kind(kGpu, &gpu); !s.ok()) throw Failure(kCannotRun, s.message);
    const GpuCeilings measured = measure_gpu_ceilings(kGpu);
    t = {rules::arch_name(gpu.arch), gpu.sms, "measured on this GPU just now; product: " + measured.product, measured.ceilings};
  } else if (t.arch.empty() || t.arch == "cpu") {
    const auto threads = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
    t = {"cpu", threads, "measured on this CPU just now", measure_cpu_ceilings(threads)};
  } else if (const std::optional<rules::Arch> arch = gpu_arch_of(t.arch)) {
    const StatedGpu stated = stated_gpu(*arch);
    t = {t.arch, stated.sms, fmt::format("stated for {}: {}", stated.card, stated.source), stated.ceilings};
  }
  if (options.sm_count != 0) t.sm_count = options.sm_count;
  return t;
}

// Null where this build knows no launches.
nlohmann::ordered_json launch_json(const Target &target, const mlaverify_verify_args &args) {
  LaunchFacts f = {};
  const Status status = launch_facts({*gpu_arch_of(target.arch), target.sm_count}, problem_of(args), &f);
  if (status.code == MLAVERIFY_ERR_UNSUPPORTED) return nullptr;
  if (!status.ok()) throw Failure(kBadInput, "plan: " + status.message);
  return {{"kernel", f.tensor_core ? "tensor-core" : "generic"},
          {"why", f.why},
          {"row", row_json(f.row)},
          {"tile_rows", f.rows},
          {"tile_keys", f.keys},
          {"row_tiles", f.row_tiles},
          {"blocks", f.blocks},
          {"blocks_per_sm", f.blocks_per_sm},
          {"threads", f.threads},
          {"shared_bytes", f.shared_bytes},
          {"splits", f.splits},
          {"launches", f.launches},
          {"workspace_bytes", f.workspace_bytes}};
}

// Keys as in docs/cli.md. Null: not known for this architecture, or in this build.
nlohmann::ordered_json make_plan(const PlanOptions &options) {
  const Shape shape = make_shape(options.shape);
  const auto batch = static_cast<int32_t>(shape.seq_lens.size());
  const int32_t max_len = *std::max_element(shape.seq_lens.begin(), shape.seq_lens.end());
  const mlaverify_verify_args args = args_for(shape, options.num_kv_splits);
  std::size_t cpu_workspace = 0;
  demand_ok(mlaverify_workspace_size(&args, &cpu_workspace), "plan");  // refuses bad sizes, whatever the architecture

  nlohmann::ordered_json j;
  j["version"] = mlaverify_version();
  j["shape"] = {{"batch", batch},
                {"qlen", shape.qlen},
                {"heads", shape.num_heads},
                {"max_seq_len", max_len},
                {"page_size", shape.page_size},
                {"dtype", dtype_name(shape.q_dtype)},
                {"kv_dtype", dtype_name(shape.kv_dtype)},
                {"lk", shape.qk_dim},
                {"lv", shape.v_dim},
                {"num_kv_splits", options.num_kv_splits}};

  const Target target = target_of(options);
  mlaverify_verify_config config = {};
  config.size = sizeof(config);
  demand_ok(mlaverify_select_verify_config(batch, shape.qlen, shape.num_heads, MLAVERIFY_HOST, target.arch.c_str(), &config),
            "--arch");
  j["arch"] = target.arch;
  j["config"] = config_json(config);

  j["sm_count"] = nullptr;
  j["max_kv_splits"] = nullptr;
  if (target.sm_count != 0) {
    const int32_t bound = mlaverify_verify_num_kv_splits(max_len, batch, shape.qlen, shape.num_heads, target.sm_count,
                                                         config.block_h, 1.0, 64, 8);
    if (bound == 0) demand_ok(MLAVERIFY_ERR_INVALID_ARGUMENT, "plan");
    j["sm_count"] = target.sm_count;
    j["max_kv_splits"] = bound;
  }

  j["launch"] = nullptr;
  j["workspace_bytes"] = nullptr;
  if (gpu_arch_of(target.arch)) {
    j["launch"] = launch_json(target, args);
    if (!j["launch"].is_null()) j["workspace_bytes"] = j["launch"]["workspace_bytes"];
  } else if (target.arch == "cpu") {
    j["workspace_bytes"] = cpu_workspace;
  }
  const Work work = work_of(shape);
  j["work"] = {{"bytes", work.bytes}, {"flops", work.flops}};
  j["ceilings"] = nullptr;
  j["floor_seconds"] = nullptr;
  if (!target.ceilings_from.empty()) {
    const Ceilings ceilings = ceilings_of(shape, target.ceilings);
    j["ceilings"] = {{"bytes_per_second", ceilings.bytes_per_second},
                     {"flops_per_second", ceilings.flops_per_second},
                     {"from", target.ceilings_from}};
    j["floor_seconds"] = floor_seconds(work, ceilings);
  }
  return j;
}

void print_launch(const nlohmann::ordered_json &l) {
  const auto number = [&](const char *key) { return l[key].get<int64_t>(); };
  fmt::print("kernel     {}: {}\n", l["kernel"].get<std::string>(), l["why"].get<std::string>());
  const nlohmann::ordered_json &r = l["row"];
  fmt::print("row        rows={}..{} types={} pages={} kernel={} shares={}\n", r["rows"][0].get<int64_t>(),
             r["rows"][1].get<int64_t>(), r["types"].get<std::string>(), r["pages"].get<std::string>(),
             r["kernel"].get<std::string>(), r["shares"].get<int64_t>());
  fmt::print("tiles      {} rows x {} keys; {} row tile{} in all\n", number("tile_rows"), number("tile_keys"),
             number("row_tiles"), number("row_tiles") == 1 ? "" : "s");
  fmt::print("blocks     {} ({} a multiprocessor) of {} threads, {} bytes of shared memory each\n", number("blocks"),
             number("blocks_per_sm"), number("threads"), number("shared_bytes"));
  const int64_t splits = number("splits");
  const std::string cut = splits == 0 ? "each block takes an equal share of all key tiles" : fmt::format("at most {}", splits);
  fmt::print("splits     {}; {} launch{}\n", cut, number("launches"),
             number("launches") == 1 ? "" : "es: the second merges partial results");
}

void print(const nlohmann::ordered_json &j) {
  const auto number = [](const nlohmann::ordered_json &value) { return value.get<double>(); };
  const auto text = [](const nlohmann::ordered_json &value) { return value.get<std::string>(); };
  const nlohmann::ordered_json &s = j["shape"];
  fmt::print("shape      {} requests x {} query tokens x {} heads, up to {} keys, pages of {}\n", s["batch"].get<int>(),
             s["qlen"].get<int>(), s["heads"].get<int>(), s["max_seq_len"].get<int>(), s["page_size"].get<int>());
  fmt::print("           keys {} wide, values {}; queries {}, cache {}\n", s["lk"].get<int>(), s["lv"].get<int>(),
             text(s["dtype"]), text(s["kv_dtype"]));
  fmt::print("config     {}:", text(j["arch"]));
  for (const auto &[key, value] : j["config"].items()) {
    if (value.get<int>() != 0) fmt::print(" {}={}", key, value.get<int>());
  }
  fmt::print("\n");
  if (j["max_kv_splits"].is_null()) {
    fmt::print("KV splits  bound not known without --sm-count\n");
  } else {
    fmt::print("KV splits  at most {} ({} multiprocessors or threads)\n", j["max_kv_splits"].get<int>(),
               j["sm_count"].get<int>());
  }
  if (!j["launch"].is_null()) print_launch(j["launch"]);
  if (!j["workspace_bytes"].is_null()) {
    fmt::print(
        "workspace  {} bytes ({})\n", j["workspace_bytes"].get<uint64_t>(),
        s["num_kv_splits"].get<int>() == 0 ? "automatic splits" : fmt::format("{} splits", s["num_kv_splits"].get<int>()));
  }
  fmt::print("work       {:.3f} MB to move, {:.3f} MFLOP to compute: {:.1f} FLOP/byte\n", number(j["work"]["bytes"]) / 1e6,
             number(j["work"]["flops"]) / 1e6, number(j["work"]["flops"]) / number(j["work"]["bytes"]));
  if (j["floor_seconds"].is_null()) return;
  const double bandwidth = number(j["ceilings"]["bytes_per_second"]);
  const double arithmetic = number(j["ceilings"]["flops_per_second"]);
  const bool by_memory = number(j["work"]["bytes"]) / bandwidth >= number(j["work"]["flops"]) / arithmetic;
  fmt::print("ceilings   {:.1f} GB/s, {:.1f} GFLOP/s ({})\n", bandwidth / 1e9, arithmetic / 1e9, text(j["ceilings"]["from"]));
  fmt::print("floor      {:.4f} ms, set by {}\n", number(j["floor_seconds"]) * 1e3,
             by_memory ? "memory bandwidth" : "arithmetic");
}

}  // namespace

void add_plan(CLI::App &app, int &exit_code) {
  CLI::App *verb = app.add_subcommand("plan", "Show launch, split bound, workspace, work and floor of a step");
  auto options = std::make_shared<PlanOptions>();
  add_shape_options(*verb, options->shape);
  for (const char *name : {"--heads", "--qlen", "--batch"}) verb->get_option(name)->required();
  verb->add_option("--num-kv-splits", options->num_kv_splits, "KV splits for the workspace (0: automatic)");
  verb->add_option("--arch", options->arch, "Architecture to plan for (default: of this machine)")->type_name("NAME");
  verb->add_option("--sm-count", options->sm_count, "Multiprocessors (on a CPU: its threads)")->check(CLI::Range(1, 1 << 20));
  verb->add_flag("--json", options->json, "Print one JSON document");
  verb->callback([options, &exit_code] {
    const nlohmann::ordered_json j = make_plan(*options);
    if (options->json) {
      fmt::print("{}\n", j.dump(2));
    } else {
      print(j);
    }
    exit_code = kOk;
  });
}

}  // namespace mlaverify::cli
