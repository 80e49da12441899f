// What a launch of any of the kernels gets: one plain struct.
#pragma once

#include "rules/problem.h"
#include "rules/schedule.h"
#include "rules/workspace.h"

namespace mlaverify::cuda {

struct TensorMap {
  alignas(128) unsigned char bytes[128];
};

struct Launch {
  Problem p;
  int32_t row_tiles;   // of a request
  int32_t row_group;   // row tiles that as many neighbouring blocks take at the same time, over the same keys
  int32_t row_groups;  // of a request
  int32_t blocks;      // of the verify kernel; a multiple of row_group
  int32_t blocks_per_sm;
  rules::ShareChoice share_choice;
  bool out_16_bytes;  // rows of `out` may be written 16 bytes at a time
  // 0: balanced shares. Else every request is cut in `splits` pieces by the split rule.
  int32_t splits;
  int32_t split_align, min_split_len;
  // Balanced shares begin at multiples of 2^cut_log2 keys of a request, of which the block table holds `max_cuts`.
  int32_t cut_log2, max_cuts;
  // Batch-invariant mode: these are chunks, of which a request has `chunks` at most. 0: not that mode.
  int32_t chunks;
  // The cache as a tensor of [pages, keys of a page, Lk] that the copy engine of Hopper reads by boxes of `box_keys` keys x 64 numbers (a
  // CUtensorMap); 0: not to be used, keys are gathered.
  int32_t box_keys;
  // Neighbouring blocks of a row group that share what they copy, as a cluster: 1 or 2. They take the same items, each with its row tile,
  // in step.
  int32_t pair;
  TensorMap kv_map;
  // Workspace (rules/workspace.h).
  rules::GpuPartLayout part;
  rules::PartState *states;
  void *accs;
};

}  // namespace mlaverify::cuda
