// The launch config table, in one place: for each architecture the tile shape by the number of query rows of a call.
#pragma once

#include "rules/hd.h"

namespace mlaverify::rules {

// Fields as in mlaverify_verify_config.
struct VerifyConfig {
  int32_t block_h = 0, block_n = 0, split_align = 0, min_split_len = 0, q_split = 0, num_warps = 0, num_stages = 0;
  int32_t s2_block_s = 0, s2_num_warps = 0;
  int32_t waves_per_eu = 0, matrix_instr_nonkdim = 0, kpack = 0;
};

enum class Arch : int32_t { cpu, gfx942 };
constexpr int32_t kNumArchs = 2;
MLAVERIFY_HD const char *arch_name(Arch a) { return a == Arch::cpu ? "cpu" : "gfx942"; }

// The CPU kernel takes its tile sizes from this row. block_h: a converted key tile serves that many rows, and their
// accumulators (64 x 512 f32) share a 512 KB L2 cache with it. split_align = min_split_len: keys of a chunk, the fixed cut of
// batch-invariant results: long enough that a merge costs about 1 %, short enough that one request keeps many threads busy.
MLAVERIFY_HD VerifyConfig cpu_config() {
  VerifyConfig c;
  c.block_h = 64;
  c.block_n = 64;
  c.split_align = 512;
  c.min_split_len = 512;
  return c;
}

// MI300X. Documented: up to 640 rows take 32-row tiles with more KV splits, to fill the GPU; more rows take 64-row tiles with Q
// split in two 256-wide halves. The other values are not published; these fit its 64 KB of LDS and 16-wide matrix instructions.
MLAVERIFY_HD VerifyConfig gfx942_config(int64_t rows) {
  const bool few = rows <= 640;
  VerifyConfig c;
  c.block_h = few ? 32 : 64;
  c.block_n = 32;
  c.split_align = 32;
  c.min_split_len = 64;
  c.q_split = few ? 0 : 1;
  c.num_warps = few ? 4 : 8;
  c.num_stages = few ? 1 : 2;
  c.s2_block_s = 8;
  c.s2_num_warps = 4;
  c.waves_per_eu = 1;
  c.matrix_instr_nonkdim = 16;
  c.kpack = 2;
  return c;
}

MLAVERIFY_HD VerifyConfig verify_config(Arch arch, int32_t batch, int32_t qlen, int32_t num_heads) {
  // Saturates instead of overflowing: only the comparison with a row count of the table matters.
  const int64_t rows = min<int64_t>(static_cast<int64_t>(batch) * qlen, int64_t{1} << 31) * num_heads;
  return arch == Arch::gfx942 ? gfx942_config(rows) : cpu_config();
}

static_assert(verify_config(Arch::gfx942, 10, 4, 16).block_h == 32 && verify_config(Arch::gfx942, 11, 4, 16).block_h == 64);
static_assert(cpu_config().split_align % cpu_config().block_n == 0, "a chunk is whole key tiles");

}  // namespace mlaverify::rules
