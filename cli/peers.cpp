#include "peers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "grid.h"
#include "peers_json.h"

namespace mlaverify::cli {
namespace {

constexpr const char *kTriton = "Triton verify";

// By the floor of the record, so that a point stays in its group whatever today's ceilings are.
const PeerGroup *group_of(const PeerRecord &record, const std::string &grid) {
  const std::vector<PeerGroup> &groups = peer_groups();
  const Shape shape = parse_grid(record.shape, "bench/h200.json").front();
  if (shape.kv_dtype != DType::bf16) return nullptr;
  if (grid == "h200-users") return record.floor > 20e-6 ? &groups[4] : nullptr;
  if (record.floor >= 100e-6) return &groups[0];
  if (record.floor < 20e-6) return &groups[3];
  return shape.seq_lens.size() >= 32 ? &groups[1] : &groups[2];
}

PeerRecords parse() {
  const auto json = nlohmann::json::parse(peers_json());
  PeerRecords all;
  all.device = json.at("device");
  all.date = json.at("date");
  all.ceilings = {json.at("read_gbs").get<double>() * 1e9, json.at("bf16_tflops").get<double>() * 1e12};
  for (const auto &[grid, points] : json.at("grids").items()) {
    for (const auto &point : points) {
      PeerRecord r;
      r.name = point.at("name");
      r.shape = point.at("shape");
      r.work.bytes = point.at("bytes");
      r.work.flops = point.at("flops");
      r.floor = point.at("floor_us").get<double>() * 1e-6;
      r.ceilings = {point.at("card_read_gbs").get<double>() * 1e9, all.ceilings.flops_per_second};
      for (const auto &[peer, us] : point.at("us").items()) {
        r.seconds[peer] = us.get<double>() * 1e-6;
        if (r.best_peer.empty() || r.seconds[peer] < r.best()) r.best_peer = peer;
      }
      if (const auto sustained = point.find("sustained_us"); sustained != point.end()) {
        for (const auto &[peer, us] : sustained->items()) r.sustained[peer] = us.get<double>() * 1e-6;
      }
      r.group = group_of(r, grid);
      all.records.push_back(std::move(r));
    }
  }
  return all;
}

}  // namespace

double PeerRecord::triton() const { return seconds.at(kTriton); }

const std::pair<const std::string, double> *PeerRecord::best_sustained() const {
  const auto best =
      std::min_element(sustained.begin(), sustained.end(), [](const auto &a, const auto &b) { return a.second < b.second; });
  return best == sustained.end() ? nullptr : &*best;
}

double PeerRecord::best_scaled(const Ceilings &to) const {
  return best() * floor_seconds(work, to) / floor_seconds(work, ceilings);
}

const PeerRecord *PeerRecords::find(const std::string &shape) const {
  const auto it = std::find_if(records.begin(), records.end(), [&](const PeerRecord &r) { return r.shape == shape; });
  return it == records.end() ? nullptr : &*it;
}

const std::vector<PeerGroup> &peer_groups() {
  static const std::vector<PeerGroup> groups = {{"A", "floor of 100 us and more", 1.08},
                                                {"B", "20 to 100 us, 32 requests and more", 1.15},
                                                {"C", "20 to 100 us, fewer requests", 1.30},
                                                {"D", "less than 20 us", 2.6},
                                                {"users", "users' shapes of more than 20 us", 1.15}};
  return groups;
}

const PeerRecords &peer_records() {
  static const PeerRecords records = parse();
  return records;
}

}  // namespace mlaverify::cli
