#include "bench_properties.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "bench_measure.h"
#include "error.h"
#include "first_call.h"
#include "grid.h"
#include "properties.h"
#include "properties_report.h"

namespace mlaverify::cli {
namespace {

Shape parsed(const std::string &shape) { return parse_grid(shape, "properties").front(); }

std::optional<FirstCall> first_call_if_it_succeeds(const Shape &shape, bool warm) {
  try {
    return first_call_of_new_process(shape, warm);
  } catch (const Failure &) {  // the process has said why
    return std::nullopt;
  }
}

// What is not there yet.
void measure(const Property &p, const CallOptions &call, BenchSetting setting, Measurements *m) {
  for (const std::string &s : p.shapes) {
    const Shape shape = parsed(s);
    if (facts_of(p.measure).in_new_process) {
      if (m->first_calls.count(s) > 0) continue;
      m->first_calls[s] = {first_call_if_it_succeeds(shape, true), first_call_if_it_succeeds(shape, false)};
    } else if (m->times.count(s) == 0) {
      const Modes modes = modes_of(s);
      setting.invariant = modes.invariant;
      setting.sustained = modes.sustained;
      setting.host_overhead = modes.host_overhead;
      m->times[s] = measure_shape(shape, call, setting);
    }
  }
}

void print(const std::string &text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);  // all of them take minutes
}

}  // namespace

bool bench_properties(const mlaverify_backend_info &backend, const CallOptions &call, bool json) {
  std::vector<Shape> shapes;
  for (const Property &p : properties()) std::transform(p.shapes.begin(), p.shapes.end(), std::back_inserter(shapes), parsed);
  demand_memory(shapes, call.backend);
  const BenchSetting setting = bench_setting(backend, call);
  if (!json) {
    print_bench_setting(setting);
    print("\n" + properties_head());
  }
  Measurements measurements;
  std::vector<PropertyResult> results;
  for (const Property &p : properties()) {
    measure(p, call, setting, &measurements);
    results.push_back({&p, value_of(p, measurements)});
    if (!json) print(property_row(results.back(), measurements));
  }
  const Ceilings end = measure_ceilings(call).ceilings;
  if (json) {
    nlohmann::ordered_json j = bench_setting_json(setting, end);
    j.update(properties_json(results, measurements));
    print(j.dump(2) + "\n");
  } else {
    print(properties_tail(results));
    print_end_ceilings(setting, end);
  }
  return std::all_of(results.begin(), results.end(), [](const PropertyResult &r) { return r.met(); });
}

}  // namespace mlaverify::cli
