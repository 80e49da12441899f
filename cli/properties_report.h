// What `mlaverify bench --properties` found, as text and as JSON. docs/bench.md describes both.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "properties.h"

namespace mlaverify::cli {

struct PropertyResult {
  const Property *property;
  double value;
  bool met() const { return meets(*property, value); }
};

// Each ends in a newline. The row has the times behind the value, in microseconds.
std::string properties_head();
std::string property_row(const PropertyResult &result, const Measurements &measurements);
std::string properties_tail(const std::vector<PropertyResult> &results);

// {"properties": [...], "met": N, "missed": N}
nlohmann::ordered_json properties_json(const std::vector<PropertyResult> &results, const Measurements &measurements);

}  // namespace mlaverify::cli
