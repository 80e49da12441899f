// What a launch of any of the kernels gets: one plain struct.
#pragma once

#include "rules/problem.h"
#include "rules/schedule.h"

namespace mlaverify::cuda {

struct Launch {
  Problem p;
  int32_t row_tiles;  // of a request
  int32_t blocks;     // of the verify kernel
  int32_t min_tiles;  // of a share
  // 0: balanced shares. Else every request is cut in `splits` pieces, of `split_len` keys each, or by the split rule where that
  // is 0.
  int32_t splits;
  int32_t split_len;
  int32_t split_align, min_split_len;
  // Workspace (rules/workspace.h).
  rules::TilePosition *starts;  // [blocks]: where each share begins
  float *parts;                 // partial results
};

}  // namespace mlaverify::cuda
