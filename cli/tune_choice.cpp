#include "tune_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

namespace mlaverify::cli {
namespace {

constexpr double kAsGood = 1.01;

using Group = std::vector<const TunedShape *>;

// How far a configuration is from another one: another kernel, then doublings of the shares.
std::pair<bool, double> distance(const Configuration &a, const Configuration &b) {
  return {a.kernel != b.kernel, std::abs(std::log2(static_cast<double>(a.shares) / b.shares))};
}

// Gains of a configuration at the shapes of a group.
struct Gains {
  double log_sum = 0, least = 0, most = 0;
  double spread = 0;  // mean over the shapes, of the less certain of both times
  int shapes = 0;

  double mean() const { return std::exp(log_sum / shapes); }
  void add(double gain) {
    log_sum += std::log(gain);
    least = shapes == 0 ? gain : std::min(least, gain);
    most = std::max(most, gain);
    ++shapes;
  }
};

// None where results are wrong or it loses.
std::optional<Gains> winning_gains(const Group &group, const Configuration &configuration) {
  Gains gains;
  for (const TunedShape *shape : group) {
    const TunedShape::Candidate *c = shape->find(configuration);
    if (c != nullptr && !c->wrong.empty()) return std::nullopt;
    gains.add(c != nullptr ? shape->gain(*c) : 1);
    if (c != nullptr) {
      gains.spread += std::max(shape->present_time.spread, c->time.spread) / static_cast<double>(group.size());
    }
  }
  if (gains.mean() <= 1 + std::max(kNoise, gains.spread) || gains.least < 1 - kNoise) return std::nullopt;
  return gains;
}

struct Winner {
  Configuration configuration;
  Gains gains;
};

std::optional<Winner> winner_of(const Group &group) {
  std::vector<Winner> winners;
  double best = 0;
  for (const Configuration &c : configurations_of(group[0]->key.arch)) {
    const std::optional<Gains> gains = winning_gains(group, c);
    if (!gains) continue;
    winners.push_back({c, *gains});
    best = std::max(best, gains->mean());
  }
  const Configuration &present = group[0]->present;
  std::optional<Winner> taken;
  for (const Winner &w : winners) {
    if (w.gains.mean() * kAsGood < best) continue;
    if (!taken || distance(w.configuration, present) < distance(taken->configuration, present)) taken = w;
  }
  return taken;
}

}  // namespace

std::string configuration_text(const Configuration &c) { return fmt::format("{} {}", rules::kernel_name(c.kernel), c.shares); }

std::vector<Configuration> configurations_of(rules::Arch arch) {
  std::vector<Configuration> all;
  for (int32_t k = 0; k < rules::kNumGpuKernels; ++k) {
    const auto kernel = static_cast<rules::GpuKernel>(k);
    if (!rules::has_kernel(arch, kernel)) continue;
    for (const int32_t shares : {4, 8, 16, 32, 64, 128}) all.push_back({kernel, shares});
  }
  return all;
}

const TunedShape::Candidate *TunedShape::find(const Configuration &c) const {
  const auto it = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate &x) { return x.configuration == c; });
  return it != candidates.end() ? &*it : nullptr;
}

std::vector<TunedRow> tuned_rows(const std::vector<TunedShape> &shapes) {
  std::map<std::tuple<rules::TypeClass, rules::PageClass, int64_t>, Group> groups;
  for (const TunedShape &s : shapes) groups[{s.key.types, s.key.pages, s.key.rows}].push_back(&s);

  std::vector<TunedRow> rows;
  Gains gains;        // of the last row
  bool open = false;  // the group before this one belongs to it
  for (const auto &[key, group] : groups) {
    const std::optional<Winner> winner = winner_of(group);
    if (!winner) {
      open = false;
      continue;
    }
    const rules::GpuRowKey &k = group[0]->key;
    const rules::GpuRow row = {
        k.arch, k.rows, k.rows, k.types, k.pages, winner->configuration.kernel, winner->configuration.shares};
    const bool goes_on = open && rows.back().row.types == k.types && rows.back().row.pages == k.pages &&
                         rows.back().row.kernel == row.kernel &&
                         rows.back().row.shares_squared_per_tile == row.shares_squared_per_tile;
    if (goes_on) {
      gains = {gains.log_sum + winner->gains.log_sum, std::min(gains.least, winner->gains.least),
               std::max(gains.most, winner->gains.most), 0, gains.shapes + winner->gains.shapes};
      rows.back().row.rows_to = k.rows;
    } else {
      gains = winner->gains;
      rows.push_back({row, 0, 0, 0, 0});
    }
    rows.back() = {rows.back().row, gains.mean(), gains.least, gains.most, gains.shapes};
    open = true;
  }
  return rows;
}

}  // namespace mlaverify::cli
