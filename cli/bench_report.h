// What `mlaverify bench` found, as text and as JSON. docs/bench.md describes both.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "gpu.h"
#include "peers.h"
#include "timer.h"
#include "work.h"

namespace mlaverify::cli {

// What ran where: the head of every report.
struct BenchSetting {
  std::string version, commit, compiler, cpu, backend, detail;
  int32_t threads = 0;         // of the ceilings and calls on a CPU
  std::optional<GpuInfo> gpu;  // of the cuda backend
  std::string product;         // there: where the arithmetic ceiling comes from
  int32_t num_kv_splits = 0;
  bool invariant = false;      // the batch-invariant mode is timed too
  bool sustained = false;      // calls after a second of others are timed too
  bool host_overhead = false;  // with the cuda backend: what a call costs the host is timed too
  std::string other;           // another program that is timed too; empty: none
  Ceilings ceilings;           // before the first shape: those of the floor
};

struct BenchResult {
  Shape shape;
  Timing time;
  std::optional<Timing> invariant, sustained;
  std::optional<Timing> on_host;  // calls that only enqueue
  std::optional<double> other;    // seconds of the other program
  Work work;
  double floor = 0;                    // seconds
  const PeerRecord *record = nullptr;  // null: no peer was timed at this shape, or not on a GPU

  double ratio_to_other() const { return time.median / *other; }
  double times_floor() const { return time.median / floor; }
  double sustained_times_floor() const { return sustained->median / floor; }
  // Ours over the best recorded peer's; nothing where none is recorded, or sustained calls were not timed.
  std::optional<double> ratio_to_sustained_peer() const;
  double ratio_to_best() const { return time.median / record->best(); }
  double ratio_to_best_scaled(const Ceilings &now) const { return time.median / record->best_scaled(now); }
  double speed_up_over_triton() const { return record->triton() / time.median; }
};

// Text: the head, a line a result, the tail. `peers`: with the columns of recorded peers.
void print_bench_head(const BenchSetting &setting, bool peers);
void print_bench_row(const BenchSetting &setting, const BenchResult &result, bool peers);
void print_bench_tail(const BenchSetting &setting, const std::vector<BenchResult> &results, const Ceilings &end);

// What ran where, and how far the ceilings were off at the end: for other reports too.
void print_bench_setting(const BenchSetting &setting);
void print_end_ceilings(const BenchSetting &setting, const Ceilings &end);
nlohmann::ordered_json bench_setting_json(const BenchSetting &setting, const Ceilings &end);

nlohmann::ordered_json bench_json(const BenchSetting &setting, const std::vector<BenchResult> &results, const Ceilings &end);

}  // namespace mlaverify::cli
