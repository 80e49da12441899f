#include "properties_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace mlaverify::cli {
namespace {

std::size_t count_met(const std::vector<PropertyResult> &results) {
  return static_cast<std::size_t>(
      std::count_if(results.begin(), results.end(), [](const PropertyResult &r) { return r.met(); }));
}

std::string with_unit(const std::string &number, const MeasureFacts &facts) {
  return *facts.unit == '\0' ? number : number + " " + facts.unit;
}

std::string value_text(const MeasureFacts &facts, double value) {
  if (std::isnan(value)) return "failed";
  return with_unit(fmt::format("{:.{}f}", value / facts.scale, facts.digits), facts);
}

std::string bound_text(const MeasureFacts &facts, double bound) {
  return (facts.at_least ? "at least " : "at most ") + with_unit(fmt::format("{:.4g}", bound / facts.scale), facts);
}

// "303.1, 288.2 us": of each shape, in order. Host times of the first call and later ones would say little: left out.
std::string times_text(const Property &p, const Measurements &m) {
  if (facts_of(p.measure).in_new_process) return "";
  std::string text;
  for (const std::string &s : p.shapes) {
    const double seconds = timing_of(p.measure, m.times.at(s)).median;
    text += fmt::format("{}{:.1f}", text.empty() ? "" : ", ", seconds * 1e6);
  }
  return "  (" + text + " us)";
}

nlohmann::ordered_json host_times_json(const std::optional<FirstCall> &call) {
  if (!call) return nullptr;
  return {{"first_seconds", call->first}, {"later_seconds", call->later}};
}

nlohmann::ordered_json shape_json(const Property &p, const std::string &shape, const Measurements &m) {
  nlohmann::ordered_json j = {{"shape", shape}};
  if (facts_of(p.measure).in_new_process) {
    const FirstCalls &calls = m.first_calls.at(shape);
    if (calls.warm) {
      j["kernel_nodes"] = calls.warm->kernel_nodes;
      j["other_nodes"] = calls.warm->other_nodes;
    }
    j["warm"] = host_times_json(calls.warm);
    j["cold"] = host_times_json(calls.cold);
    return j;
  }
  const BenchResult &r = m.times.at(shape);
  j["seconds"] = r.time.median;
  if (r.invariant) j["invariant_seconds"] = r.invariant->median;
  if (r.sustained) j["sustained_seconds"] = r.sustained->median;
  if (r.on_host) j["host_seconds"] = r.on_host->median;
  j["floor_seconds"] = r.floor;
  return j;
}

}  // namespace

std::string properties_head() { return fmt::format("{:<6}  {:>13}  {:>20}  property\n", "", "measured", "bound"); }

std::string property_row(const PropertyResult &r, const Measurements &m) {
  const Property &p = *r.property;
  const MeasureFacts &facts = facts_of(p.measure);
  return fmt::format("{:<6}  {:>13}  {:>20}  {}: {}{}\n", r.met() ? "ok" : "MISSED", value_text(facts, r.value),
                     bound_text(facts, p.bound), p.name, p.what, times_text(p, m));
}

std::string properties_tail(const std::vector<PropertyResult> &results) {
  return fmt::format("\n{} of {} bounds met\n", count_met(results), results.size());
}

nlohmann::ordered_json properties_json(const std::vector<PropertyResult> &results, const Measurements &m) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const PropertyResult &r : results) {
    const Property &p = *r.property;
    const MeasureFacts &facts = facts_of(p.measure);
    nlohmann::ordered_json shapes = nlohmann::ordered_json::array();
    for (const std::string &s : p.shapes) shapes.push_back(shape_json(p, s, m));
    list.push_back({{"property", p.name},
                    {"what", p.what},
                    {"measure", facts.name},
                    {"value", r.value},  // NaN is null
                    {"bound", p.bound},
                    {"bound_is", facts.at_least ? "at least" : "at most"},
                    {"met", r.met()},
                    {"shapes", shapes}});
  }
  return {{"properties", list}, {"met", count_met(results)}, {"missed", results.size() - count_met(results)}};
}

}  // namespace mlaverify::cli
