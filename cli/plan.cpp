// `mlaverify plan`: what a step of given sizes will use and need, without running it.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "backend_option.h"
#include "grid.h"
#include "mlaverify/mlaverify.h"
#include "rules/hd.h"
#include "step_call.h"
#include "verb.h"
#include "work.h"

namespace mlaverify::cli {
namespace {

struct PlanOptions {
  ShapeOptions shape = {{"seq-len", "4096"}};
  int32_t num_kv_splits = 0;
  std::string arch;      // empty: this machine's CPU
  int32_t sm_count = 0;  // 0: not given
  bool json = false;
};

// Of the backend that a call on host tensors gets.
std::size_t workspace_bytes(const Shape &shape, int32_t num_kv_splits) {
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
  args.kv_cache = shape_only(shape.kv_dtype, {num_pages, shape.page_size, 1, shape.qk_dim});
  args.out = shape_only(shape.q_dtype, {batch * shape.qlen, shape.num_heads, shape.v_dim});
  args.lse = shape_only(DType::f32, {batch * shape.qlen, shape.num_heads});
  args.block_table = shape_only(DType::i32, {batch, width});
  args.seq_lens = shape_only(DType::i32, {batch});
  args.v_head_dim = shape.v_dim;
  args.qlen = shape.qlen;
  args.page_size = shape.page_size;
  args.num_kv_splits = num_kv_splits;
  args.sm_scale = 1;
  std::size_t bytes = 0;
  demand_ok(mlaverify_workspace_size(&args, &bytes), "plan");
  return bytes;
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

// Keys as in docs/cli.md. Null: not known for this architecture here.
nlohmann::ordered_json make_plan(const PlanOptions &options) {
  const Shape shape = make_shape(options.shape);
  const bool on_cpu = options.arch.empty() || options.arch == "cpu";
  const auto threads = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  const auto batch = static_cast<int32_t>(shape.seq_lens.size());
  const int32_t max_len = *std::max_element(shape.seq_lens.begin(), shape.seq_lens.end());

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

  mlaverify_verify_config config = {};
  config.size = sizeof(config);
  const char *arch = options.arch.empty() ? nullptr : options.arch.c_str();
  demand_ok(mlaverify_select_verify_config(batch, shape.qlen, shape.num_heads, MLAVERIFY_HOST, arch, &config), "--arch");
  j["arch"] = options.arch.empty() ? "cpu" : options.arch;
  j["config"] = config_json(config);

  const int32_t sm_count = options.sm_count != 0 ? options.sm_count : on_cpu ? threads : 0;
  j["sm_count"] = nullptr;
  j["max_kv_splits"] = nullptr;
  if (sm_count != 0) {
    const int32_t bound =
        mlaverify_verify_num_kv_splits(max_len, batch, shape.qlen, shape.num_heads, sm_count, config.block_h, 1.0, 64, 8);
    if (bound == 0) demand_ok(MLAVERIFY_ERR_INVALID_ARGUMENT, "plan");
    j["sm_count"] = sm_count;
    j["max_kv_splits"] = bound;
  }

  const Work work = work_of(shape);
  j["work"] = {{"bytes", work.bytes}, {"flops", work.flops}};
  j["workspace_bytes"] = nullptr;
  j["ceilings"] = nullptr;
  j["floor_seconds"] = nullptr;
  if (on_cpu) {
    j["workspace_bytes"] = workspace_bytes(shape, options.num_kv_splits);
    const Ceilings ceilings = measure_cpu_ceilings(threads);
    j["ceilings"] = {{"bytes_per_second", ceilings.bytes_per_second}, {"flops_per_second", ceilings.flops_per_second}};
    j["floor_seconds"] = floor_seconds(work, ceilings);
  }
  return j;
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
  if (!j["workspace_bytes"].is_null()) {
    fmt::print(
        "workspace  {} bytes (here, {})\n", j["workspace_bytes"].get<uint64_t>(),
        s["num_kv_splits"].get<int>() == 0 ? "automatic splits" : fmt::format("{} splits", s["num_kv_splits"].get<int>()));
  }
  fmt::print("work       {:.3f} MB to move, {:.3f} MFLOP to compute: {:.1f} FLOP/byte\n", number(j["work"]["bytes"]) / 1e6,
             number(j["work"]["flops"]) / 1e6, number(j["work"]["flops"]) / number(j["work"]["bytes"]));
  if (j["floor_seconds"].is_null()) return;
  const double bandwidth = number(j["ceilings"]["bytes_per_second"]);
  const double arithmetic = number(j["ceilings"]["flops_per_second"]);
  const bool by_memory = number(j["work"]["bytes"]) / bandwidth >= number(j["work"]["flops"]) / arithmetic;
  fmt::print("ceilings   {:.1f} GB/s, {:.1f} GFLOP/s (measured on this CPU just now)\n", bandwidth / 1e9, arithmetic / 1e9);
  fmt::print("floor      {:.3f} ms, set by {}\n", number(j["floor_seconds"]) * 1e3,
             by_memory ? "memory bandwidth" : "arithmetic");
}

}  // namespace

void add_plan(CLI::App &app, int &exit_code) {
  CLI::App *verb = app.add_subcommand("plan", "Show configuration, split bound, workspace, work and floor of a step");
  auto options = std::make_shared<PlanOptions>();
  for (const ShapeOption &o : shape_options()) {
    const std::string name = o.name;
    CLI::Option *option = verb->add_option_function<std::string>(
        "--" + name, [options, name](const std::string &value) { options->shape[name] = value; }, o.help);
    if (name == "heads" || name == "qlen" || name == "batch") option->required();
  }
  verb->add_option("--num-kv-splits", options->num_kv_splits, "KV splits for the workspace (0: automatic)");
  verb->add_option("--arch", options->arch, "Architecture of the configuration (default: this CPU)")->type_name("NAME");
  verb->add_option("--sm-count", options->sm_count, "Multiprocessors, for the split bound (on a CPU: its threads)")
      ->check(CLI::Range(1, 1 << 20));
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
