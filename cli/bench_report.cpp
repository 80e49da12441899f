#include "bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "gpu_report.h"
#include "grid.h"
#include "table.h"

namespace mlaverify::cli {
namespace {

constexpr double kTie = 1.03;  // a peer that was faster by less is as fast

template <class Value>
double geometric_mean(const std::vector<const BenchResult *> &results, const Value &value) {
  double sum = 0;
  for (const BenchResult *r : results) sum += std::log(value(*r));
  return std::exp(sum / static_cast<double>(results.size()));
}

std::vector<const BenchResult *> pointers(const std::vector<BenchResult> &results) {
  std::vector<const BenchResult *> all(results.size());
  std::transform(results.begin(), results.end(), all.begin(), [](const BenchResult &r) { return &r; });
  return all;
}

double mean_times_floor(const std::vector<const BenchResult *> &results) {
  return geometric_mean(results, [](const BenchResult &r) { return r.times_floor(); });
}

double mean_invariant_ratio(const std::vector<BenchResult> &results) {
  return geometric_mean(pointers(results), [](const BenchResult &r) { return r.invariant->median / r.time.median; });
}

double mean_sustained_times_floor(const std::vector<BenchResult> &results) {
  return geometric_mean(pointers(results), [](const BenchResult &r) { return r.sustained_times_floor(); });
}

double mean_ratio_to_other(const std::vector<BenchResult> &results) {
  return geometric_mean(pointers(results), [](const BenchResult &r) { return r.ratio_to_other(); });
}

// Means over the results of one group of recorded points.
struct GroupMeans {
  std::string name, meaning;
  double target;
  std::size_t points;
  double times_floor, best_times_floor, ratio_to_best, speed_up_over_triton;
};

std::vector<GroupMeans> group_means(const std::vector<BenchResult> &results) {
  std::vector<GroupMeans> groups;
  const auto add = [&](const PeerGroup &group, const auto &belongs) {
    std::vector<const BenchResult *> inside;
    for (const BenchResult &r : results) {
      if (r.record != nullptr && r.record->group != nullptr && belongs(*r.record->group)) inside.push_back(&r);
    }
    if (inside.empty()) return;
    groups.push_back({group.name, group.meaning, group.target, inside.size(), mean_times_floor(inside),
                      geometric_mean(inside, [](const BenchResult &r) { return r.record->best() / r.record->floor; }),
                      geometric_mean(inside, [](const BenchResult &r) { return r.ratio_to_best(); }),
                      geometric_mean(inside, [](const BenchResult &r) { return r.speed_up_over_triton(); })});
  };
  for (const PeerGroup &g : peer_groups()) {
    add(g, [&](const PeerGroup &other) { return &other == &g; });
  }
  const std::string users = "users";
  add({"A-D", "all bf16 points of h200", 1.27}, [&](const PeerGroup &other) { return other.name != users; });
  return groups;
}

std::string repeat_options(const BenchSetting &s) {
  std::string text = fmt::format("--backend {}", s.backend);
  if (!s.gpu) text += fmt::format(" --threads {}", s.threads);
  if (s.num_kv_splits > 0) text += fmt::format(" --num-kv-splits {}", s.num_kv_splits);
  if (s.invariant) text += " --invariant";
  if (s.sustained) text += " --sustained";
  if (s.host_overhead) text += " --host-overhead";
  if (!s.other.empty()) text += " --vs " + s.other;
  return text;
}

void print_groups(const std::vector<BenchResult> &results, const Ceilings &now) {
  const std::vector<GroupMeans> groups = group_means(results);
  if (!groups.empty()) {
    Table table({"group", "points", "x floor", "target", "best peer x floor", "ours/best peer", "Triton/ours", ""});
    for (const GroupMeans &g : groups) {
      table.add({g.name, std::to_string(g.points), fmt::format("{:.2f}", g.times_floor), fmt::format("{:.2f}", g.target),
                 fmt::format("{:.2f}", g.best_times_floor), fmt::format("{:.2f}", g.ratio_to_best),
                 fmt::format("{:.2f}", g.speed_up_over_triton), g.meaning});
    }
    fmt::print("\ngeometric means:\n{}", table.text());
  }
  std::size_t compared = 0, slower_scaled = 0, slower_than_triton = 0;
  std::vector<const BenchResult *> slower;
  for (const BenchResult &r : results) {
    if (r.record == nullptr) continue;
    ++compared;
    if (r.ratio_to_best() > kTie) slower.push_back(&r);
    if (r.ratio_to_best_scaled(now) > kTie) ++slower_scaled;
    if (r.speed_up_over_triton() < 1) ++slower_than_triton;
  }
  fmt::print(
      "\nslower than the best peer (by more than {:.0f} %) at {} of {} points; {} with its times scaled to these ceilings\n",
      (kTie - 1) * 100, slower.size(), compared, slower_scaled);
  std::sort(slower.begin(), slower.end(),
            [](const BenchResult *a, const BenchResult *b) { return a->ratio_to_best() > b->ratio_to_best(); });
  for (const BenchResult *r : slower) {
    fmt::print("  {:.2f}  heads {} qlen {} {}\n", r->ratio_to_best(), r->shape.num_heads, r->shape.qlen, r->record->name);
  }
}

nlohmann::ordered_json ceilings_json(const Ceilings &c) {
  nlohmann::ordered_json j = {{"bytes_per_second", c.bytes_per_second}, {"flops_per_second", c.flops_per_second}};
  if (c.bf16_flops_per_second > 0) j["bf16_flops_per_second"] = c.bf16_flops_per_second;
  return j;
}

nlohmann::ordered_json sustained_json(const BenchResult &r) {
  nlohmann::ordered_json j = {{"seconds", r.sustained->median},
                              {"spread", r.sustained->spread},
                              {"repetitions", r.sustained->repetitions},
                              {"bytes_per_second", r.work.bytes / r.sustained->median},
                              {"flops_per_second", r.work.flops / r.sustained->median},
                              {"times_floor", r.sustained_times_floor()}};
  if (const auto ratio = r.ratio_to_sustained_peer()) {
    const auto &[peer, seconds] = *r.record->best_sustained();
    j["recorded"] = {{"best_peer", peer}, {"seconds", seconds}, {"ratio_to_best_peer", *ratio}};
  }
  return j;
}

nlohmann::ordered_json json_of(const BenchResult &r, const Ceilings &now) {
  nlohmann::ordered_json j = {{"shape", shape_line(r.shape)},
                              {"heads", r.shape.num_heads},
                              {"qlen", r.shape.qlen},
                              {"seq_lens", r.shape.seq_lens},
                              {"page_size", r.shape.page_size},
                              {"dtype", dtype_name(r.shape.q_dtype)},
                              {"kv_dtype", dtype_name(r.shape.kv_dtype)},
                              {"lk", r.shape.qk_dim},
                              {"lv", r.shape.v_dim},
                              {"seconds", r.time.median},
                              {"spread", r.time.spread},
                              {"repetitions", r.time.repetitions},
                              {"bytes", r.work.bytes},
                              {"flops", r.work.flops},
                              {"bytes_per_second", r.work.bytes / r.time.median},
                              {"flops_per_second", r.work.flops / r.time.median},
                              {"floor_seconds", r.floor},
                              {"times_floor", r.times_floor()}};
  if (r.invariant) {
    j["invariant"] = {
        {"seconds", r.invariant->median}, {"spread", r.invariant->spread}, {"ratio", r.invariant->median / r.time.median}};
  }
  if (r.sustained) j["sustained"] = sustained_json(r);
  if (r.on_host) {
    j["host"] = {{"seconds", r.on_host->median}, {"p90_seconds", r.on_host->p90}, {"repetitions", r.on_host->repetitions}};
  }
  if (r.other) j["other"] = {{"seconds", *r.other}, {"ratio", r.ratio_to_other()}};
  if (r.record != nullptr) {
    j["recorded"] = {{"name", r.record->name},
                     {"group", nullptr},
                     {"floor_seconds", r.record->floor},
                     {"seconds", r.record->seconds},
                     {"best_peer", r.record->best_peer},
                     {"ratio_to_best_peer", r.ratio_to_best()},
                     {"ratio_to_best_peer_scaled", r.ratio_to_best_scaled(now)},
                     {"speed_up_over_triton", r.speed_up_over_triton()}};
    if (r.record->group != nullptr) j["recorded"]["group"] = r.record->group->name;
  }
  return j;
}

}  // namespace

std::optional<double> BenchResult::ratio_to_sustained_peer() const {
  if (!sustained || record == nullptr || record->best_sustained() == nullptr) return std::nullopt;
  return sustained->median / record->best_sustained()->second;
}

void print_bench_setting(const BenchSetting &s) {
  fmt::print("mlaverify {}{}, {}\n", s.version, s.commit.empty() ? "" : " (git " + s.commit + ")", s.compiler);
  if (s.gpu) {
    fmt::print("{}, compute capability {}, {} multiprocessors, driver {}, backend {} ({})\n", s.gpu->name,
               s.gpu->compute_capability, s.gpu->sms, s.gpu->driver, s.backend, s.detail);
    fmt::print("clocks: {}\n", s.gpu->clocks);
    fmt::print("measured ceilings: memory read {:.1f} GB/s, bf16 product {:.1f} TFLOP/s ({})\n",
               s.ceilings.bytes_per_second / 1e9, s.ceilings.flops_per_second / 1e12, s.product);
  } else {
    fmt::print("{}, {} thread{}, backend {} ({})\n", s.cpu, s.threads, s.threads == 1 ? "" : "s", s.backend, s.detail);
    fmt::print("measured ceilings: memory read {:.1f} GB/s, f32 multiply-add {:.1f} GFLOP/s", s.ceilings.bytes_per_second / 1e9,
               s.ceilings.flops_per_second / 1e9);
    if (s.ceilings.bf16_flops_per_second > 0)
      fmt::print(", bf16 product {:.1f} GFLOP/s", s.ceilings.bf16_flops_per_second / 1e9);
    fmt::print("\n");
  }
}

void print_bench_head(const BenchSetting &s, bool peers) {
  print_bench_setting(s);
  if (peers) {
    const PeerRecords &all = peer_records();
    fmt::print("peers as recorded on {} on an {}; scaled: to these ceilings, as the floor scales\n", all.date, all.device);
  }
  fmt::print("one shape again: mlaverify bench SHAPE {}\n\n", repeat_options(s));

  fmt::print("{:>10}  {:>6}  {:>7}  {:>8}  {:>7}", s.gpu ? "median us" : "median ms", "spread", "GB/s",
             s.gpu ? "TFLOP/s" : "GFLOP/s", "× floor");
  if (s.invariant) fmt::print("  {:>10}  {:>5}", "invariant", "ratio");
  if (s.sustained) fmt::print("  {:>10}  {:>7}  {:>8}  {:>7}", "sustained", "GB/s", s.gpu ? "TFLOP/s" : "GFLOP/s", "× floor");
  if (s.sustained && peers) fmt::print("  {:>9}  {:>5}", "best peer", "ratio");
  if (s.host_overhead) fmt::print("  {:>7}  {:>6}", "host us", "p90");
  if (!s.other.empty()) fmt::print("  {:>10}  {:>5}", "other", "ratio");
  if (peers)
    fmt::print("  {:>9}  {:>5}  {:>6}  {:>9}  {:>5}  {:<16}", "best peer", "ratio", "scaled", "Triton us", "ratio", "peer");
  fmt::print("  shape\n");
  std::fflush(stdout);
}

void print_bench_row(const BenchSetting &s, const BenchResult &r, bool peers) {
  const double time_unit = s.gpu ? 1e-6 : 1e-3, rate_unit = s.gpu ? 1e12 : 1e9;
  fmt::print("{:>10.{}f}  {:>5.1f}%  {:>7.2f}  {:>8.2f}  {:>7.2f}", r.time.median / time_unit, s.gpu ? 2 : 4,
             r.time.spread * 100, r.work.bytes / r.time.median / 1e9, r.work.flops / r.time.median / rate_unit,
             r.times_floor());
  if (r.invariant) {
    fmt::print("  {:>10.{}f}  {:>5.2f}", r.invariant->median / time_unit, s.gpu ? 2 : 4, r.invariant->median / r.time.median);
  }
  if (r.sustained) {
    fmt::print("  {:>10.{}f}  {:>7.2f}  {:>8.2f}  {:>7.2f}", r.sustained->median / time_unit, s.gpu ? 2 : 4,
               r.work.bytes / r.sustained->median / 1e9, r.work.flops / r.sustained->median / rate_unit,
               r.sustained_times_floor());
    if (const auto ratio = r.ratio_to_sustained_peer()) {
      fmt::print("  {:>9.1f}  {:>5.2f}", r.record->best_sustained()->second * 1e6, *ratio);
    } else if (peers) {
      fmt::print("{:18}", "");
    }
  }
  if (r.on_host) fmt::print("  {:>7.2f}  {:>6.2f}", r.on_host->median * 1e6, r.on_host->p90 * 1e6);
  if (r.other) fmt::print("  {:>10.{}f}  {:>5.2f}", *r.other / time_unit, s.gpu ? 2 : 4, r.ratio_to_other());
  if (peers && r.record != nullptr) {
    fmt::print("  {:>9.1f}  {:>5.2f}  {:>6.2f}  {:>9.1f}  {:>5.2f}  {:<16}", r.record->best() * 1e6, r.ratio_to_best(),
               r.ratio_to_best_scaled(s.ceilings), r.record->triton() * 1e6, 1 / r.speed_up_over_triton(), r.record->best_peer);
  } else if (peers) {
    fmt::print("{:62}", "");
  }
  fmt::print("  {}\n", shape_line(r.shape));
  std::fflush(stdout);  // a grid takes minutes
}

void print_end_ceilings(const BenchSetting &s, const Ceilings &end) {
  const auto change = [](double now, double before) { return (now / before - 1) * 100; };
  fmt::print("ceilings at the end: memory read {:+.0f} %, {} {:+.0f} %",
             change(end.bytes_per_second, s.ceilings.bytes_per_second), s.gpu ? "product" : "multiply-add",
             change(end.flops_per_second, s.ceilings.flops_per_second));
  if (s.ceilings.bf16_flops_per_second > 0)
    fmt::print(", bf16 product {:+.0f} %", change(end.bf16_flops_per_second, s.ceilings.bf16_flops_per_second));
  fmt::print("\n");
}

void print_bench_tail(const BenchSetting &s, const std::vector<BenchResult> &results, const Ceilings &end) {
  fmt::print("\ngeometric mean over {} shape{}: {:.2f} × floor\n", results.size(), results.size() == 1 ? "" : "s",
             mean_times_floor(pointers(results)));
  if (s.sustained) fmt::print("sustained: {:.2f} × floor\n", mean_sustained_times_floor(results));
  if (s.invariant) fmt::print("batch-invariant mode: {:.2f} × the default's time\n", mean_invariant_ratio(results));
  if (!s.other.empty()) {
    const auto faster =
        std::count_if(results.begin(), results.end(), [](const BenchResult &r) { return r.ratio_to_other() < 1; });
    fmt::print("{}: ours takes {:.2f} × its time in geometric mean, and is faster at {} of {}\n", s.other,
               mean_ratio_to_other(results), faster, results.size());
  }
  print_end_ceilings(s, end);
  if (std::any_of(results.begin(), results.end(), [](const BenchResult &r) { return r.record != nullptr; })) {
    print_groups(results, s.ceilings);
  }
}

nlohmann::ordered_json bench_setting_json(const BenchSetting &s, const Ceilings &end) {
  nlohmann::ordered_json j = {{"version", s.version}, {"commit", s.commit},   {"compiler", s.compiler},
                              {"cpu", s.cpu},         {"backend", s.backend}, {"isa", s.detail}};
  if (s.gpu) {
    j["gpu"] = gpu_json(*s.gpu);
    j["gpu"]["product"] = s.product;
  } else {
    j["threads"] = s.threads;
  }
  j["num_kv_splits"] = s.num_kv_splits;
  j["ceilings"] = ceilings_json(s.ceilings);
  j["ceilings_at_the_end"] = ceilings_json(end);
  return j;
}

nlohmann::ordered_json bench_json(const BenchSetting &s, const std::vector<BenchResult> &results, const Ceilings &end) {
  nlohmann::ordered_json j = bench_setting_json(s, end);
  j["shapes"] = nlohmann::ordered_json::array();
  for (const BenchResult &r : results) j["shapes"].push_back(json_of(r, s.ceilings));
  j["geometric_mean_times_floor"] = mean_times_floor(pointers(results));
  if (s.sustained) j["geometric_mean_sustained_times_floor"] = mean_sustained_times_floor(results);
  if (s.invariant) j["geometric_mean_invariant_ratio"] = mean_invariant_ratio(results);
  if (!s.other.empty()) {
    j["other"] = s.other;
    j["geometric_mean_ratio_to_other"] = mean_ratio_to_other(results);
  }
  const std::vector<GroupMeans> groups = group_means(results);
  if (groups.empty()) return j;
  j["recorded_peers"] = {{"device", peer_records().device}, {"date", peer_records().date}};
  for (const GroupMeans &g : groups) {
    j["groups"].push_back({{"name", g.name},
                           {"meaning", g.meaning},
                           {"points", g.points},
                           {"times_floor", g.times_floor},
                           {"target", g.target},
                           {"best_peer_times_floor", g.best_times_floor},
                           {"ratio_to_best_peer", g.ratio_to_best},
                           {"speed_up_over_triton", g.speed_up_over_triton}});
  }
  return j;
}

}  // namespace mlaverify::cli
