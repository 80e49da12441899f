// The launch config table, in one place: for each architecture the tile shape by the number of query rows of a call. For CUDA GPUs it has
// rows that say which kernel takes a request; the same rows can be put before them (cuda/tune_file.h).
#pragma once

#include "rules/hd.h"
#include "rules/number.h"
#include "rules/pack.h"
#include "rules/row.h"
#include "rules/schedule.h"

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

// The kernels of CUDA GPUs by name: Hopper's own, those of Hopper for FP8 caches with tiles of 64, 32 or 16 rows, the portable one with
// tiles of 64 or 16 rows, and the plain one for the types and widths that those have not.
enum class GpuKernel : int32_t { hopper, hopper_fp8_64, hopper_fp8_32, hopper_fp8_16, portable_64, portable_16, generic };
constexpr int32_t kNumGpuKernels = 7;
MLAVERIFY_HD const char *kernel_name(GpuKernel k) {
  switch (k) {
    case GpuKernel::hopper: return "hopper";
    case GpuKernel::hopper_fp8_64: return "hopper_fp8_64";
    case GpuKernel::hopper_fp8_32: return "hopper_fp8_32";
    case GpuKernel::hopper_fp8_16: return "hopper_fp8_16";
    case GpuKernel::portable_64: return "portable_64";
    case GpuKernel::portable_16: return "portable_16";
    case GpuKernel::generic: return "generic";
  }
  return "";
}

MLAVERIFY_HD bool is_hopper_fp8(GpuKernel k) {
  return k == GpuKernel::hopper_fp8_64 || k == GpuKernel::hopper_fp8_32 || k == GpuKernel::hopper_fp8_16;
}

// Whether code of the kernel is compiled for the architecture: it may still not have a call's types or widths.
MLAVERIFY_HD bool has_kernel(Arch arch, GpuKernel k) {
  if (k == GpuKernel::hopper || is_hopper_fp8(k)) return arch == Arch::sm_90;
  return k != GpuKernel::portable_64 || arch != Arch::sm_86;
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

// Hopper's kernels for FP8 caches: as many stages, of 32 keys, as shared memory has room for beside the rows. (Over records there is none
// with 64 rows: no registers.)
MLAVERIFY_HD VerifyConfig hopper_fp8_config(GpuKernel kernel, bool records = false) {
  VerifyConfig c = hopper_config();
  c.block_h = kernel == GpuKernel::hopper_fp8_64 ? 64 : kernel == GpuKernel::hopper_fp8_32 ? 32 : 16;
  c.block_n = 128;
  c.num_stages = (kernel == GpuKernel::hopper_fp8_64 ? 7 : kernel == GpuKernel::hopper_fp8_32 ? 9 : 10) - (records ? 2 : 0);
  return c;
}

// The one of them for the batch-invariant mode.
MLAVERIFY_HD GpuKernel invariant_fp8_kernel() { return GpuKernel::hopper_fp8_32; }

// The portable tensor-core kernel with tiles of 16 or 64 rows. Tiles have the same keys whatever the rows: a row's bits follow from
// them. As many stages as shared memory allows (over records one less where there is most: there the records of the next tile lie, too);
// warps: 8 for the values, and for the scores 2 for each 32 rows.
MLAVERIFY_HD VerifyConfig portable_config(Arch arch, GpuKernel kernel, bool records = false) {
  const bool few = kernel == GpuKernel::portable_16;
  VerifyConfig c = gpu_config();
  c.block_h = few ? 16 : 64;
  c.block_n = 32;
  c.num_warps = few ? 10 : 12;
  c.num_stages = arch == Arch::sm_90 || arch == Arch::sm_100 ? (few ? 5 : 4) - (records ? 1 : 0)
                 : arch == Arch::sm_80 && few                ? 3
                                                             : 2;
  return c;
}

// Types of queries and cache, as kernels tell them apart: the same 16-bit type; 16-bit queries over an FP8 cache, over one of records; all
// else.
enum class TypeClass : int32_t { any, same_16_bit, fp8_cache, record_cache, other };
constexpr int32_t kNumTypeClasses = 5;
MLAVERIFY_HD const char *type_class_name(TypeClass t) {
  switch (t) {
    case TypeClass::any: return "any";
    case TypeClass::same_16_bit: return "same_16_bit";
    case TypeClass::fp8_cache: return "fp8_cache";
    case TypeClass::record_cache: return "record_cache";
    case TypeClass::other: return "other";
  }
  return "";
}
MLAVERIFY_HD TypeClass type_class(DType q, DType kv) {
  if (q == DType::f32) return TypeClass::other;
  if (is_record(kv)) return TypeClass::record_cache;
  return q == kv ? TypeClass::same_16_bit : is_fp8(kv) ? TypeClass::fp8_cache : TypeClass::other;
}

// Whether pages fit the boxes of the copy engine (box_keys()) with the Hopper kernel's tiles; else keys are gathered there.
enum class PageClass : int32_t { any, boxes, gathered };
constexpr int32_t kNumPageClasses = 3;
MLAVERIFY_HD const char *page_class_name(PageClass c) {
  switch (c) {
    case PageClass::any: return "any";
    case PageClass::boxes: return "boxes";
    case PageClass::gathered: return "gathered";
  }
  return "";
}
MLAVERIFY_HD PageClass page_class(int32_t page_size) {
  return box_keys(page_size, hopper_config().block_n) > 0 ? PageClass::boxes : PageClass::gathered;
}

// A row of the table: which kernel takes requests of so many rows (qlen * num_heads) on an architecture, and the number that decides in
// how many shares little work is cut. The first row that fits a call, and whose kernel can do it (cuda/plan.cpp), decides.
struct GpuRow {
  Arch arch;
  int64_t rows_from, rows_to;  // of a request, both included
  TypeClass types;
  PageClass pages;
  GpuKernel kernel;
  int32_t shares_squared_per_tile;  // schedule.h; kLeastShares to kMostShares
};
constexpr int64_t kMostRows = INT32_MAX;
constexpr int32_t kLeastShares = 4, kMostShares = 4096;  // (row groups divide it by up to 4)

constexpr bool operator==(const GpuRow &a, const GpuRow &b) {
  return a.arch == b.arch && a.rows_from == b.rows_from && a.rows_to == b.rows_to && a.types == b.types && a.pages == b.pages &&
         a.kernel == b.kernel && a.shares_squared_per_tile == b.shares_squared_per_tile;
}

// What of a call rows are chosen by.
struct GpuRowKey {
  Arch arch;
  int64_t rows;  // of a request, kMostRows at most
  TypeClass types;
  PageClass pages;
};
constexpr GpuRowKey gpu_row_key(Arch arch, const Problem &p) {
  return {arch, min(request_rows(p, 0), kMostRows), type_class(p.q_dtype, p.kv_dtype), page_class(p.page_size)};
}
constexpr bool fits(const GpuRow &row, const GpuRowKey &key) {
  return row.arch == key.arch && row.rows_from <= key.rows && key.rows <= row.rows_to &&
         (row.types == TypeClass::any || row.types == key.types) && (row.pages == PageClass::any || row.pages == key.pages);
}

// Some rows, in order of preference.
struct GpuRows {
  const GpuRow *rows = nullptr;
  std::size_t count = 0;
  constexpr const GpuRow *begin() const { return rows; }
  constexpr const GpuRow *end() const { return rows + count; }
};

// The rows of the library. Up to 16 rows of a request take 16-row tiles; more take 64 rows, so that a key tile is read once for all of
// them. On Hopper up to 16 rows are faster with the portable kernel (docs/notes/2026-11-30-hopper-kernel.md), but over FP8 caches and
// records, whose kernels have tiles of 16 rows too. Every call has a row.
constexpr int64_t kFewRows = 16;
constexpr TypeClass kAnyTypes = TypeClass::any;
constexpr PageClass kAnyPages = PageClass::any;
constexpr GpuRow kGpuRows[] = {
    {Arch::sm_80, 0, kFewRows, kAnyTypes, kAnyPages, GpuKernel::portable_16, 16},
    {Arch::sm_80, kFewRows + 1, kMostRows, kAnyTypes, kAnyPages, GpuKernel::portable_64, 32},
    {Arch::sm_80, 0, kMostRows, kAnyTypes, kAnyPages, GpuKernel::generic, 16},
    {Arch::sm_86, 0, kMostRows, kAnyTypes, kAnyPages, GpuKernel::portable_16, 16},
    {Arch::sm_86, 0, kMostRows, kAnyTypes, kAnyPages, GpuKernel::generic, 16},
    {Arch::sm_90, 0, kFewRows, TypeClass::fp8_cache, kAnyPages, GpuKernel::hopper_fp8_16, 64},
    {Arch::sm_90, kFewRows + 1, 2 * kFewRows, TypeClass::fp8_cache, kAnyPages, GpuKernel::hopper_fp8_32, 64},
    {Arch::sm_90, 2 * kFewRows + 1, kMostRows, TypeClass::fp8_cache, kAnyPages, GpuKernel::hopper_fp8_64, 64},
    {Arch::sm_90, 0, kFewRows, TypeClass::record_cache, kAnyPages, GpuKernel::hopper_fp8_16, 64},
    {Arch::sm_90, kFewRows + 1, kMostRows, TypeClass::record_cache, kAnyPages, GpuKernel::hopper_fp8_32, 64},
    {Arch::sm_90, 0, kFewRows, kAnyTypes, kAnyPages, GpuKernel::portable_16, 16},
    {Arch::sm_90, kFewRows + 1, kMostRows, kAnyTypes, kAnyPages, GpuKernel::hopper, 32},
    {Arch::sm_90, kFewRows + 1, kMostRows, kAnyTypes, kAnyPages, GpuKernel::portable_64, 32},
    {Arch::sm_90, 0, kMostRows, kAnyTypes, kAnyPages, GpuKernel::generic, 16},
    {Arch::sm_100, 0, kFewRows, kAnyTypes, kAnyPages, GpuKernel::portable_16, 16},
    {Arch::sm_100, kFewRows + 1, kMostRows, kAnyTypes, kAnyPages, GpuKernel::portable_64, 32},
    {Arch::sm_100, 0, kMostRows, kAnyTypes, kAnyPages, GpuKernel::generic, 16},
};
constexpr GpuRows gpu_rows() { return {kGpuRows, sizeof(kGpuRows) / sizeof(kGpuRows[0])}; }

// What stands before them in the batch-invariant mode, instead of any other rows: one kernel for all row counts, since a row's bits must
// not depend on them. (The portable kernel's bits are those of its key tiles, whatever the rows.) Rows decide the kernel only: that mode
// has as many shares as there can be (cuda/plan.cpp).
constexpr GpuRow kInvariantRows[] = {
    {Arch::sm_90, 0, kMostRows, TypeClass::fp8_cache, kAnyPages, invariant_fp8_kernel(), 64},
    {Arch::sm_90, 0, kMostRows, TypeClass::record_cache, kAnyPages, invariant_fp8_kernel(), 64},
    {Arch::sm_90, 0, kMostRows, kAnyTypes, kAnyPages, GpuKernel::hopper, 32},
};
constexpr GpuRows invariant_gpu_rows() { return {kInvariantRows, sizeof(kInvariantRows) / sizeof(kInvariantRows[0])}; }

// For a CUDA GPU, where types, widths and strides fit.
constexpr VerifyConfig gpu_verify_config(Arch arch, int64_t request_rows) {
  const GpuRowKey key = {arch, min(request_rows, kMostRows), TypeClass::same_16_bit, PageClass::boxes};
  for (const GpuRow &row : gpu_rows()) {
    if (fits(row, key)) return row.kernel == GpuKernel::hopper ? hopper_config() : portable_config(arch, row.kernel);
  }
  return {};
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

constexpr VerifyConfig verify_config(Arch arch, int32_t batch, int32_t qlen, int32_t num_heads) {
  // Saturates instead of overflowing: only the comparison with a row count of the table matters.
  const int64_t rows = min<int64_t>(static_cast<int64_t>(batch) * qlen, int64_t{1} << 31) * num_heads;
  switch (arch) {
    case Arch::cpu: return cpu_config();
    case Arch::sm_80:
    case Arch::sm_86:
    case Arch::sm_90:
    case Arch::sm_100: return gpu_verify_config(arch, static_cast<int64_t>(qlen) * num_heads);
    case Arch::gfx942: return gfx942_config(rows);
  }
  return {};
}

static_assert(verify_config(Arch::gfx942, 10, 4, 16).block_h == 32 && verify_config(Arch::gfx942, 11, 4, 16).block_h == 64);
static_assert(cpu_config().split_align % cpu_config().block_n == 0, "a chunk is whole key tiles");
static_assert(gpu_config().split_align % hopper_config().block_n == 0 &&
                  gpu_config().split_align % portable_config(Arch::sm_90, GpuKernel::portable_64).block_n == 0,
              "a forced piece is whole key tiles where kernels do not mask its end (verify_fp8.cuh does)");

}  // namespace mlaverify::rules
