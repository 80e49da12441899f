// Calls on the cuda backend with a row of one's own before those of the config table: what `mlaverify tune` compares. Calls are such that
// choose_backend() has given to that backend. In builds without CUDA both functions return UNSUPPORTED.
#pragma once

#include <cstddef>

#include "api/status.h"
#include "api/validate.h"
#include "rules/config_table.h"

namespace mlaverify {

struct RowFacts {
  rules::GpuRow row;  // that decides: `row`, or, where its kernel cannot do the call, another one
  std::size_t workspace_bytes;
};

// `row` null: as the library does it.
Status row_facts(const Call &call, const rules::GpuRow *row, RowFacts *facts);

// With a workspace of as many bytes at least.
Status run_with_row(const Call &call, const rules::GpuRow &row);

}  // namespace mlaverify
