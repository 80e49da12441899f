// Row packing, in one place. A *row* is one (token, head) of a request; rows of a request are numbered token-major, so that
// rows next to each other see the same keys, and are cut in tiles. Every address of a row goes through row_index(): requests
// with query counts of their own need a change here, not in kernels.
#pragma once

#include "rules/hd.h"
#include "rules/problem.h"

namespace mlaverify::rules {

// Query tokens of a request.
MLAVERIFY_HD int32_t query_count(const Problem &p, int32_t /*request*/) { return p.qlen; }

// First-dimension index in q, out and lse of query token `token` of a request.
MLAVERIFY_HD int64_t row_index(const Problem &p, int32_t request, int32_t token) {
  return static_cast<int64_t>(request) * p.qlen + token;
}

// Rows of a request.
MLAVERIFY_HD int64_t request_rows(const Problem &p, int32_t request) {
  return static_cast<int64_t>(query_count(p, request)) * p.num_heads;
}

struct Row {
  int32_t token;
  int32_t head;
};

MLAVERIFY_HD Row unpack_row(int64_t row, int32_t num_heads) {
  return {static_cast<int32_t>(row / num_heads), static_cast<int32_t>(row % num_heads)};
}
// The same in 32 bits, which GPUs divide several times faster.
MLAVERIFY_HD Row unpack_row(int32_t row, int32_t num_heads) {
  const auto r = static_cast<uint32_t>(row), heads = static_cast<uint32_t>(num_heads);
  return {static_cast<int32_t>(r / heads), static_cast<int32_t>(r % heads)};
}

MLAVERIFY_HD int64_t pack_row(Row row, int32_t num_heads) { return static_cast<int64_t>(row.token) * num_heads + row.head; }

// Row tiles of a request, of `tile_rows` rows at most; the last may be smaller.
MLAVERIFY_HD int64_t num_row_tiles(int64_t rows, int32_t tile_rows) { return ceil_div<int64_t>(rows, tile_rows); }

// Offsets in elements.
MLAVERIFY_HD int64_t q_offset(const Problem &p, int32_t request, Row r) {
  return row_index(p, request, r.token) * p.q_row_stride + r.head * p.q_head_stride;
}
MLAVERIFY_HD int64_t out_offset(const Problem &p, int32_t request, Row r) {
  return row_index(p, request, r.token) * p.out_row_stride + r.head * p.out_head_stride;
}
MLAVERIFY_HD int64_t lse_offset(const Problem &p, int32_t request, Row r) {
  return row_index(p, request, r.token) * p.lse_row_stride + r.head * p.lse_head_stride;
}

static_assert(pack_row(unpack_row(37, 16), 16) == 37 && unpack_row(37, 16).token == 2 && unpack_row(37, 16).head == 5);

}  // namespace mlaverify::rules
