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

enum class Arch : int32_t { cpu, sm_80, sm_86, sm_90, sm_100, gfx942 };
constexpr int32_t kNumArchs = 6;
MLAVERIFY_HD const char *arch_name(Arch a) {
  switch (a) {
    case Arch::cpu: return "cpu";
    case Arch::sm_80: return "sm_80";
    case Arch::sm_86: return "sm_86";
    case Arch::sm_90: return "sm_90";
    case Arch::sm_100: return "sm_100";
    case Arch::gfx942: return "gfx942";
  }
  return "";
}

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

// CUDA GPUs: sm_90 is Hopper alone; the other rows go by the shared memory that a block may have (sm_86 also stands for sm_89 and
// sm_12x).
MLAVERIFY_HD Arch gpu_arch(int32_t compute_capability, int32_t shared_bytes) {
  if (compute_capability == 90) return Arch::sm_90;
  return shared_bytes >= 227 * 1024 ? Arch::sm_100 : shared_bytes >= 163 * 1024 ? Arch::sm_80 : Arch::sm_86;
}

// What the rows of all CUDA GPUs have in common: where requests are cut, and the merge.
MLAVERIFY_HD VerifyConfig gpu_config() {
  VerifyConfig c;
  c.split_align = 64;
  c.min_split_len = 256;
  c.s2_block_s = 256;  // 32 parts a warp at a time
  c.s2_num_warps = 8;
  return c;
}

// Up to so many rows a request is served by the small tile.
constexpr int64_t kFewRows = 16;

// Which of two kernels a Hopper GPU takes where both can do a call: its own, but the portable one, whose tile then has 16 rows, up to
// 16 rows of a request: those are faster there (docs/notes/2026-11-30-hopper-kernel.md). One kernel for all row counts where a
// row's bits must not depend on them.
MLAVERIFY_HD bool takes_hopper_kernel(int64_t request_rows, bool batch_invariant) {
  return batch_invariant || request_rows > kFewRows;
}

// The Hopper kernel has one tile.
MLAVERIFY_HD VerifyConfig hopper_config() {
  VerifyConfig c = gpu_config();
  c.block_h = 64;
  c.block_n = 64;
  c.num_warps = 12;
  c.num_stages = 2;
  return c;
}

// The portable tensor-core kernel, by the rows of one request (qlen * num_heads): up to 16 take a 16-row tile; more take 64 rows,
// so that a key tile is read once for all of them. Tiles have the same keys whatever the rows: a row's bits follow from
// them. As many stages as shared memory allows; warps: 8 for the values, and for the scores 2 for each 32 rows.
MLAVERIFY_HD VerifyConfig portable_config(Arch arch, int64_t request_rows) {
  const bool few = request_rows <= kFewRows || arch == Arch::sm_86;
  VerifyConfig c = gpu_config();
  c.block_h = few ? 16 : 64;
  c.block_n = 32;
  c.num_warps = few ? 10 : 12;
  c.num_stages = arch == Arch::sm_90 || arch == Arch::sm_100 ? (few ? 5 : 4) : arch == Arch::sm_80 && few ? 3 : 2;
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
  switch (arch) {
    case Arch::cpu: return cpu_config();
    case Arch::sm_80:
    case Arch::sm_86:
    case Arch::sm_100: return portable_config(arch, static_cast<int64_t>(qlen) * num_heads);
    case Arch::sm_90: {
      const int64_t request_rows = static_cast<int64_t>(qlen) * num_heads;
      return takes_hopper_kernel(request_rows, false) ? hopper_config() : portable_config(arch, request_rows);
    }
    case Arch::gfx942: return gfx942_config(rows);
  }
  return {};
}

static_assert(verify_config(Arch::gfx942, 10, 4, 16).block_h == 32 && verify_config(Arch::gfx942, 11, 4, 16).block_h == 64);
static_assert(cpu_config().split_align % cpu_config().block_n == 0, "a chunk is whole key tiles");

}  // namespace mlaverify::rules
