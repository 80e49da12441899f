// What several verbs tell of a GPU, as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "gpu.h"
#include "rules/config_table.h"

namespace mlaverify::cli {

nlohmann::ordered_json gpu_json(const GpuInfo &gpu);

// A row of the config table, without its architecture.
nlohmann::ordered_json row_json(const rules::GpuRow &row);

}  // namespace mlaverify::cli
