#include "gpu_report.h"

namespace mlaverify::cli {

nlohmann::ordered_json gpu_json(const GpuInfo &gpu) {
  return {{"name", gpu.name},
          {"compute_capability", gpu.compute_capability},
          {"multiprocessors", gpu.sms},
          {"driver", gpu.driver},
          {"clocks", gpu.clocks}};
}

nlohmann::ordered_json row_json(const rules::GpuRow &row) {
  return {{"rows", {row.rows_from, row.rows_to}},
          {"types", rules::type_class_name(row.types)},
          {"pages", rules::page_class_name(row.pages)},
          {"kernel", rules::kernel_name(row.kernel)},
          {"shares", row.shares_squared_per_tile}};
}

}  // namespace mlaverify::cli
