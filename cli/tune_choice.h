// What `mlaverify tune` makes of its measurements: which rows of the config table they speak for.
#pragma once

#include <string>
#include <vector>

#include "rules/config_table.h"
#include "timer.h"
#include "work.h"

namespace mlaverify::cli {

// What a row chooses, and tune compares.
struct Configuration {
  rules::GpuKernel kernel;
  int32_t shares;  // shares_squared_per_tile

  bool operator==(const Configuration &other) const { return kernel == other.kernel && shares == other.shares; }
};
std::string configuration_text(const Configuration &c);  // "hopper 64"

// Every kernel of the architecture with each number of shares.
std::vector<Configuration> configurations_of(rules::Arch arch);

// Faster or slower by less is noise.
constexpr double kNoise = 0.02;

// Measurements at one shape.
struct TunedShape {
  struct Candidate {
    Configuration configuration;
    Timing time;
    std::string wrong;  // how its results differ from the present ones by more than the tolerance; empty: they don't
  };

  Shape shape;
  rules::GpuRowKey key;
  Configuration present;
  Timing present_time;
  std::vector<Candidate> candidates;  // that can do the shape, but for the present one

  // How many times as fast as the present configuration; 1 where the library would fall back on that.
  double gain(const Candidate &c) const { return present_time.median / c.time.median; }
  // The candidate of that configuration; null: it is the present one, or it cannot do the shape.
  const Candidate *find(const Configuration &c) const;
};

struct TunedRow {
  rules::GpuRow row;
  double gain;         // geometric mean over its shapes
  double least, most;  // of them
  int shapes;
};

// The rows that win. Shapes that one row of the table would serve, with as many rows of a request and the same classes of types and
// pages, are judged together. A configuration wins if its results are right, the mean of its gains is above the noise, and it is slower at
// none of the shapes by more than that. Of winners within 1 % of the best, the one closest to the present configuration is taken: where
// the number of shares decides nothing, it stays. Row counts with the same winner, with no other measured between them, make one row.
std::vector<TunedRow> tuned_rows(const std::vector<TunedShape> &shapes);

}  // namespace mlaverify::cli
