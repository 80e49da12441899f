// Times of other implementations at given shapes, recorded once on a GPU: bench/h200.json, compiled in.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "work.h"

namespace mlaverify::cli {

// Points that belong together, for means. docs/bench.md has the targets' meaning.
struct PeerGroup {
  const char *name;
  const char *meaning;
  double target;  // geometric mean of our time over the floor, at most
};

struct PeerRecord {
  std::string name;   // of the point: "B128_L2048", "thunder4"
  std::string shape;  // as shape_line() writes it
  Work work;
  double floor = 0;                       // seconds, by the ceilings of the record
  Ceilings ceilings;                      // of the card that the times come from
  std::map<std::string, double> seconds;  // by peer
  std::string best_peer;
  std::map<std::string, double> sustained;  // seconds after a second of replay, by peer; most records have none
  const PeerGroup *group = nullptr;         // null: in none

  double best() const { return seconds.at(best_peer); }
  const std::pair<const std::string, double> *best_sustained() const;  // null: none is recorded
  double triton() const;                                               // of the Triton kernel for the same operation
  // The best peer's time, scaled to other ceilings as the floor scales.
  double best_scaled(const Ceilings &to) const;
};

struct PeerRecords {
  std::string device, date;
  Ceilings ceilings;  // of the floors
  std::vector<PeerRecord> records;

  // Null if there is none for this shape.
  const PeerRecord *find(const std::string &shape) const;
};

const std::vector<PeerGroup> &peer_groups();
const PeerRecords &peer_records();

}  // namespace mlaverify::cli
