// What a call launches on GPUs that are not here: kernel, tile and shares by the rows of the config table. Needs no GPU.
#include "cuda/plan.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "mlaverify/mlaverify.h"

namespace mlaverify::cuda {
namespace {

using rules::Arch;
using rules::GpuKernel;
using rules::GpuRow;
using rules::PageClass;
using rules::TypeClass;

Target target(Arch arch, int compute_capability) { return {arch, 132, kernels_for(arch, compute_capability), {}}; }

Problem problem(int32_t qlen, int32_t heads, DType q = DType::bf16, DType kv = DType::bf16) {
  Problem p = {};
  p.batch = 4;
  p.qlen = qlen;
  p.num_heads = heads;
  p.qk_dim = 576;
  p.v_dim = 512;
  p.page_size = 64;
  p.num_pages = 64;
  p.table_width = 16;
  p.q_dtype = q;
  p.kv_dtype = kv;
  p.q_head_stride = 576;
  p.kv_slot_stride = rules::row_elements(kv, 576);
  p.q_row_stride = int64_t{576} * heads;
  p.kv_page_stride = p.kv_slot_stride * 64;
  p.out_head_stride = 512;
  p.out_row_stride = int64_t{512} * heads;
  return p;
}

// The rule in words, with nothing of the table.
GpuKernel expected(Arch arch, const Problem &p, bool invariant) {
  const int64_t rows = int64_t{p.qlen} * p.num_heads;
  const bool records = p.kv_dtype == DType::f8_ds_mla;
  if (p.q_dtype == DType::f32 || (p.kv_dtype != p.q_dtype && !rules::is_fp8(p.kv_dtype) && !records)) return GpuKernel::generic;
  const bool widths_of_all = p.v_dim == 512 && (p.qk_dim == 576 || p.qk_dim == 512);
  if (!widths_of_all && !(p.v_dim == 256 && (p.qk_dim == 320 || p.qk_dim == 288))) return GpuKernel::generic;
  if (arch == Arch::sm_90 && widths_of_all && (rules::is_fp8(p.kv_dtype) || records)) {
    if (invariant) return GpuKernel::hopper_fp8_32;
    return rows <= 16 ? GpuKernel::hopper_fp8_16 : rows <= 32 || records ? GpuKernel::hopper_fp8_32 : GpuKernel::hopper_fp8_64;
  }
  if (arch == Arch::sm_90 && widths_of_all && (rows > 16 || invariant)) return GpuKernel::hopper;
  return rows <= 16 || arch == Arch::sm_86 ? GpuKernel::portable_16 : GpuKernel::portable_64;
}

TEST(Plan, BuiltInRows) {
  for (const auto &[arch, capability] :
       {std::pair{Arch::sm_80, 80}, {Arch::sm_86, 86}, {Arch::sm_86, 89}, {Arch::sm_90, 90}, {Arch::sm_100, 100}}) {
    for (const auto &[q, kv] : {std::pair{DType::bf16, DType::bf16},
                                {DType::f16, DType::f16},
                                {DType::f16, DType::f8_e4m3},
                                {DType::bf16, DType::f8_ds_mla},
                                {DType::f16, DType::f8_ds_mla},
                                {DType::f32, DType::f8_ds_mla},
                                {DType::bf16, DType::f16},
                                {DType::f32, DType::f32}}) {
      for (const auto &[lk, lv] : {std::pair{576, 512}, {512, 512}, {320, 256}, {288, 256}, {256, 128}}) {
        if (rules::is_record(kv) && lk != rules::kRecordWidth) continue;  // refused
        for (const int32_t heads : {1, 16, 17, 32, 33, 64, 128, 300}) {
          for (const bool invariant : {false, true}) {
            Problem p = problem(1, heads, q, kv);
            p.qk_dim = lk;
            p.v_dim = lv;
            p.flags = invariant ? MLAVERIFY_FLAG_BATCH_INVARIANT : 0;
            const Plan plan = make_plan(target(arch, capability), p);
            const GpuKernel kernel = expected(arch, p, invariant);
            SCOPED_TRACE(std::string(rules::arch_name(arch)) + " " + rules::kernel_name(kernel) + ", " + std::to_string(heads) +
                         " heads");
            EXPECT_EQ(plan.choice.row.kernel, kernel);
            EXPECT_EQ(plan.choice.tensor_core(), kernel != GpuKernel::generic);
            const bool few = kernel == GpuKernel::portable_16 || kernel == GpuKernel::hopper_fp8_16;
            EXPECT_EQ(plan.choice.kernel.rows, kernel == GpuKernel::generic         ? kGenericRows
                                               : few                                ? 16
                                               : kernel == GpuKernel::hopper_fp8_32 ? 32
                                                                                    : 64);
            EXPECT_EQ(plan.choice.kernel.keys, kernel == GpuKernel::generic   ? kGenericKeys
                                               : kernel == GpuKernel::hopper  ? 64
                                               : rules::is_hopper_fp8(kernel) ? 128
                                                                              : 32);
            const int32_t shares = invariant                      ? plan.launch.blocks  // as many as there are
                                   : rules::is_hopper_fp8(kernel) ? 64
                                   : plan.choice.kernel.rows > 16 ? 32
                                                                  : 16;
            EXPECT_EQ(plan.launch.share_choice.squared_per_tile, shares / plan.launch.row_group);
          }
        }
      }
    }
  }
}

// Blocks fit the shared memory that a block may have on the cards that a row of the table stands for (CUDA programming guide, "Compute
// capabilities"): 99 KB on 8.6, 8.9 and 12.x, 163 KB on 8.0 and 8.7, 227 KB on 9.0 and 10.x.
TEST(Plan, BlocksFitTheCard) {
  struct Card {
    Arch arch;
    int compute_capability, shared_kb;
  };
  for (const Card card : {Card{Arch::sm_80, 80, 163},
                          {Arch::sm_80, 87, 163},
                          {Arch::sm_86, 86, 99},
                          {Arch::sm_86, 89, 99},
                          {Arch::sm_86, 120, 99},
                          {Arch::sm_90, 90, 227},
                          {Arch::sm_100, 100, 227}}) {
    for (const DType kv : {DType::bf16, DType::f16, DType::f32, DType::f8_e4m3, DType::f8_ds_mla}) {
      for (const auto &[lk, lv] : {std::pair{576, 512}, {512, 512}, {320, 256}, {288, 256}, {1024, 1024}}) {
        if (kv == DType::f8_ds_mla && lk != 576) continue;  // refused
        for (const int32_t heads : {1, 16, 17, 32, 128}) {
          for (const bool invariant : {false, true}) {
            Problem p = problem(1, heads, rules::is_fp8(kv) || kv == DType::f8_ds_mla ? DType::bf16 : kv, kv);
            p.qk_dim = lk;
            p.v_dim = lv;
            p.flags = invariant ? MLAVERIFY_FLAG_BATCH_INVARIANT : 0;
            const Choice choice = choose_kernel(target(card.arch, card.compute_capability), p);
            EXPECT_LE(choice.kernel.shared_bytes, card.shared_kb * 1024)
                << card.compute_capability << ": " << rules::kernel_name(choice.row.kernel) << ", " << lk << "/" << lv;
          }
        }
      }
    }
  }
}

Choice choice_with(const std::vector<GpuRow> &tuned, Target on, const Problem &p) {
  on.tuned = {tuned.data(), tuned.size()};
  return choose_kernel(on, p);
}

TEST(Plan, TunedRowsGoFirstAndTheFirstOneThatFitsDecides) {
  const Target h200 = target(Arch::sm_90, 90);
  const std::vector<GpuRow> tuned = {
      {Arch::sm_100, 1, 1000, TypeClass::any, PageClass::any, GpuKernel::portable_16, 4},
      {Arch::sm_90, 32, 64, TypeClass::same_16_bit, PageClass::boxes, GpuKernel::portable_64, 128},
      {Arch::sm_90, 1, 64, TypeClass::same_16_bit, PageClass::any, GpuKernel::hopper, 64},
  };
  const auto row = [&](const Problem &p) { return choice_with(tuned, h200, p).row; };
  EXPECT_TRUE(row(problem(4, 16)) == tuned[1]);
  EXPECT_TRUE(row(problem(1, 16)) == tuned[2]);
  Problem gathered = problem(4, 16);
  gathered.page_size = 48;
  EXPECT_TRUE(row(gathered) == tuned[2]);
  EXPECT_EQ(row(problem(5, 16)).shares_squared_per_tile, 32);  // more rows: as built in
  EXPECT_EQ(row(problem(1, 16, DType::bf16, DType::f8_e4m3)).kernel, GpuKernel::hopper_fp8_16);

  Target with = h200;
  with.tuned = {tuned.data(), tuned.size()};
  const Plan plan = make_plan(with, problem(4, 16));
  EXPECT_EQ(plan.choice.kernel.rows, 64);
  EXPECT_EQ(plan.choice.kernel.keys, 32);
  EXPECT_EQ(plan.launch.share_choice.squared_per_tile, 128);
}

// What merges follows from what writes: with the number of query tokens the verify kernel changes, and with it the merge.
TEST(Plan, TheMergeReadsWhatTheKernelWrites) {
  const Target h200 = target(Arch::sm_90, 90);
  const KernelSet &kernels = *h200.kernels;
  EXPECT_EQ(make_plan(h200, problem(1, 16)).combine, kernels.combine);
  EXPECT_EQ(make_plan(h200, problem(4, 16)).combine, kernels.combine_f16);
  for (const int32_t qlen : {1, 2, 4})
    EXPECT_EQ(make_plan(h200, problem(qlen, 16, DType::bf16, DType::f8_e4m3)).combine, kernels.combine_f16);
  EXPECT_EQ(make_plan(h200, problem(4, 16, DType::f32, DType::f32)).combine, kernels.combine);
  EXPECT_EQ(make_plan(target(Arch::sm_80, 80), problem(4, 16)).combine, kernels_for(Arch::sm_80, 80)->combine);
  Problem invariant = problem(4, 16);
  invariant.flags = MLAVERIFY_FLAG_BATCH_INVARIANT;
  EXPECT_EQ(make_plan(h200, invariant).combine, kernels.combine_chunks);
  for (const void *merge : {kernels.combine, kernels.combine_f16, kernels.combine_chunks}) EXPECT_NE(merge, nullptr);
}

// A row may ask for a kernel that a call or a GPU cannot have: the next one decides.
TEST(Plan, ARowWhoseKernelCannotDoTheCallIsPassedOver) {
  const auto all = [](Arch arch, GpuKernel kernel) {
    return GpuRow{arch, 0, rules::kMostRows, TypeClass::any, PageClass::any, kernel, 8};
  };
  const auto kernel = [&](GpuKernel wish, Arch arch, int capability, const Problem &p) {
    return choice_with({all(arch, wish)}, target(arch, capability), p).row.kernel;
  };
  Problem narrow = problem(4, 16);
  narrow.qk_dim = 320;
  narrow.v_dim = 256;
  EXPECT_EQ(kernel(GpuKernel::hopper, Arch::sm_90, 90, narrow), GpuKernel::portable_64);
  Problem fp8 = problem(4, 16, DType::bf16, DType::f8_e4m3);
  EXPECT_EQ(kernel(GpuKernel::hopper, Arch::sm_90, 90, fp8), GpuKernel::hopper_fp8_64);
  EXPECT_EQ(kernel(GpuKernel::hopper_fp8_16, Arch::sm_90, 90, fp8), GpuKernel::hopper_fp8_16);
  EXPECT_EQ(kernel(GpuKernel::hopper_fp8_64, Arch::sm_90, 90, problem(4, 16)), GpuKernel::hopper);
  EXPECT_EQ(kernel(GpuKernel::hopper_fp8_64, Arch::sm_80, 80, fp8), GpuKernel::portable_64);
  fp8.kv_slot_stride = 584;  // whose rows are not copied by 16 bytes
  EXPECT_EQ(kernel(GpuKernel::hopper_fp8_64, Arch::sm_90, 90, fp8), GpuKernel::portable_64);
  EXPECT_EQ(kernel(GpuKernel::hopper, Arch::sm_90, 90, problem(4, 16, DType::f32, DType::f32)), GpuKernel::generic);
  EXPECT_EQ(kernel(GpuKernel::hopper, Arch::sm_80, 80, problem(4, 16)), GpuKernel::portable_64);
  EXPECT_EQ(kernel(GpuKernel::hopper, Arch::sm_100, 100, problem(4, 16)), GpuKernel::portable_64);
  for (const int capability : {86, 89}) {  // the code that 86 runs has a 64-row tile, but its shared memory has not the room
    EXPECT_EQ(kernel(GpuKernel::portable_64, Arch::sm_86, capability, problem(4, 16)), GpuKernel::portable_16);
  }
  Problem unaligned = problem(4, 16);
  unaligned.q_head_stride = 577;
  EXPECT_EQ(kernel(GpuKernel::portable_64, Arch::sm_90, 90, unaligned), GpuKernel::generic);

  // The generic kernel is for what no other can do.
  EXPECT_EQ(kernel(GpuKernel::generic, Arch::sm_90, 90, problem(4, 16)), GpuKernel::hopper);
  EXPECT_EQ(choice_with({all(Arch::sm_90, GpuKernel::generic)}, target(Arch::sm_90, 90), unaligned).row.shares_squared_per_tile,
            8);
}

TEST(Plan, TunedRowsDoNotReachTheBatchInvariantMode) {
  const std::vector<GpuRow> tuned = {
      {Arch::sm_90, 0, rules::kMostRows, TypeClass::any, PageClass::any, GpuKernel::portable_16, 128}};
  for (const int32_t heads : {1, 16, 128}) {
    Problem p = problem(1, heads);
    p.flags = MLAVERIFY_FLAG_BATCH_INVARIANT;
    Target with = target(Arch::sm_90, 90);
    const Plan before = make_plan(with, p);
    with.tuned = {tuned.data(), tuned.size()};
    const Plan after = make_plan(with, p);
    EXPECT_EQ(after.choice.row.kernel, GpuKernel::hopper);
    EXPECT_TRUE(after.choice.row == before.choice.row);
    EXPECT_EQ(after.workspace_bytes, before.workspace_bytes);
    EXPECT_EQ(after.launch.share_choice.squared_per_tile, before.launch.share_choice.squared_per_tile);
  }
}

// Records have kernels of their own, which serve nothing else; rows that 16 bytes do not divide are read by the plain one.
TEST(Plan, Records) {
  for (const auto &[arch, capability] :
       {std::pair{Arch::sm_80, 80}, {Arch::sm_86, 89}, {Arch::sm_90, 90}, {Arch::sm_100, 100}}) {
    for (const int32_t heads : {16, 128}) {
      const Target on = target(arch, capability);
      Problem records = problem(1, heads, DType::bf16, DType::f8_ds_mla);
      const auto of = [&](DType kv) { return choice_with({}, on, problem(1, heads, DType::bf16, kv)).kernel.function; };
      const void *const function = choose_kernel(on, records).kernel.function;
      EXPECT_NE(function, of(DType::bf16));
      EXPECT_NE(function, of(DType::f8_e4m3));
      records.kv_slot_stride = 660;
      EXPECT_EQ(choose_kernel(on, records).row.kernel, GpuKernel::generic);
      EXPECT_STREQ(choose_kernel(on, records).why, "addresses or strides do not allow 16-byte copies");
    }
  }
  const Plan invariant = [] {
    Problem p = problem(4, 16, DType::bf16, DType::f8_ds_mla);
    p.flags = MLAVERIFY_FLAG_BATCH_INVARIANT;
    return make_plan(target(Arch::sm_90, 90), p);
  }();
  EXPECT_EQ(invariant.combine, kernels_for(Arch::sm_90, 90)->combine_chunks);
}

// More rows than the table counts, as a size query may have.
TEST(Plan, MoreRowsThanTheTableCounts) {
  EXPECT_EQ(choose_kernel(target(Arch::sm_90, 90), problem(65536, 65536)).row.kernel, GpuKernel::hopper);
}

}  // namespace
}  // namespace mlaverify::cuda
