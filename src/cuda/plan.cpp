#include "cuda/plan.h"

#include <algorithm>

#include "mlaverify/mlaverify.h"
#include "rules/number.h"
#include "rules/pack.h"
#include "rules/paging.h"
#include "rules/row.h"
#include "rules/split.h"

namespace mlaverify::cuda {
namespace {

bool aligned(const void *p, std::size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

// Whether rows can be copied 16 bytes at a time and outputs written two elements at a time.
bool vector_access(const Problem &p) {
  const int64_t kv_step = 16 / rules::dtype_bytes(p.kv_dtype);
  const int64_t kv_vector = rules::is_fp8(p.kv_dtype) ? 8 : kv_step;  // FP8 rows are read 8 bytes at a time
  return aligned(p.q, 16) && p.q_row_stride % 8 == 0 && p.q_head_stride % 8 == 0 && aligned(p.kv, 16) &&
         p.kv_page_stride % kv_vector == 0 && p.kv_slot_stride % kv_vector == 0 && aligned(p.out, 4) &&
         p.out_row_stride % 2 == 0 && p.out_head_stride % 2 == 0;
}

bool has_shape(const TensorKernel &k, const Problem &p) {
  return k.type == p.q_dtype && k.qk_dim == p.qk_dim && k.v_dim == p.v_dim && k.records == rules::is_record(p.kv_dtype);
}

// Why no tensor-core kernel can do a call; null: one can, the portable one with 16-row tiles at least.
const char *generic_only(const Target &target, const Problem &p) {
  if (p.q_dtype == DType::f32) return "f32 queries need f32 products";
  if (rules::type_class(p.q_dtype, p.kv_dtype) == rules::TypeClass::other) return "queries and cache are of different types";
  if (!vector_access(p)) return "addresses or strides do not allow 16-byte copies";
  const auto &list = target.kernels->tensor;
  const bool widths = std::any_of(list.begin(), list.end(), [&p](const TensorKernel &k) { return has_shape(k, p); });
  return widths ? nullptr : "no tensor-core kernel has these widths";
}

// The compiled tensor-core kernel of that name for a call that one of them can do; null: the GPU has none of it with these types and
// widths.
const VerifyKernel *tensor_kernel(const Target &target, const Problem &p, rules::GpuKernel kernel) {
  if (!rules::has_kernel(target.arch, kernel)) return nullptr;
  const auto find = [&p](const std::vector<TensorKernel> &list, int32_t rows) {
    const auto found =
        std::find_if(list.begin(), list.end(), [&](const TensorKernel &k) { return has_shape(k, p) && k.kernel.rows == rows; });
    return found != list.end() ? &found->kernel : nullptr;
  };
  if (rules::is_hopper_fp8(kernel)) {
    // Their copies have addresses that are multiples of 16.
    const bool records = rules::is_record(p.kv_dtype);
    if ((!rules::is_fp8(p.kv_dtype) && !records) || p.kv_page_stride % 16 != 0 || p.kv_slot_stride % 16 != 0) return nullptr;
    return find(hopper_fp8_kernels(p.kv_dtype), rules::hopper_fp8_config(kernel, records).block_h);
  }
  if (kernel == rules::GpuKernel::hopper)
    return rules::is_fp8(p.kv_dtype) ? nullptr : find(hopper_kernels(), rules::hopper_config().block_h);
  return find(target.kernels->tensor, rules::portable_config(target.arch, kernel).block_h);
}

// Blocks of the combine kernel, if there are as many pieces of rows (combine.cuh); 0: it is not launched.
int64_t combine_blocks(const Target &target, const Plan &plan) {
  const Launch &l = plan.launch;
  const int64_t jobs = l.splits == 1 ? 0 : l.splits == 0 ? l.blocks / l.row_group - 1 : plan.row_tiles_of_all;
  const int64_t rows =
      std::min<int64_t>(int64_t{plan.choice.kernel.rows} * (l.splits == 0 ? l.row_group : 1), rules::request_rows(l.p, 0));
  return std::min<int64_t>(jobs * rows * rules::ceil_div(l.p.v_dim, 32 * l.part.numbers),
                           int64_t{combine_blocks_per_sm(l.part.numbers == 8)} * target.sms);
}

}  // namespace

// Small tiles where blocks have little shared memory, whatever the compute capability: code for 8.6 and 8.9, and PTX for what is newer.
const KernelSet *kernels_for(rules::Arch arch, int compute_capability) {
  if (compute_capability < 80) return nullptr;
  if (arch == rules::Arch::sm_86) return &kernel_set<86>();
  return compute_capability >= 90 ? &kernel_set<90>() : &kernel_set<80>();
}

std::string size_refusal(const Problem &p) {
  if (p.batch > INT32_MAX - 1024) return "batch is more than 2^31 - 1025";
  if (static_cast<double>(p.batch) * p.qlen * p.num_heads > 0x1p33) return "more than 2^33 rows times heads";
  if (rules::request_rows(p, 0) > INT32_MAX - 1024) return "qlen times num_heads is more than 2^31 - 1025";
  return "";
}

Choice choose_kernel(const Target &target, const Problem &p) {
  const char *generic_why = generic_only(target, p);
  const rules::GpuRowKey key = rules::gpu_row_key(target.arch, p);
  const bool invariant = (p.flags & MLAVERIFY_FLAG_BATCH_INVARIANT) != 0;
  Choice choice = {};
  for (const rules::GpuRows &rows : {invariant ? rules::invariant_gpu_rows() : target.tuned, rules::gpu_rows()}) {
    for (const rules::GpuRow &row : rows) {
      if (!rules::fits(row, key)) continue;
      const bool generic = row.kernel == rules::GpuKernel::generic;
      if (generic != (generic_why != nullptr)) continue;
      choice.row = row;
      if (generic) {
        choice.kernel = target.kernels->generic;
        choice.kernel.shared_bytes = generic_shared_bytes(p.qk_dim);
        choice.why = generic_why;
        return choice;
      }
      const VerifyKernel *kernel = tensor_kernel(target, p, row.kernel);
      if (kernel == nullptr) continue;
      choice.kernel = *kernel;
      choice.why = row.kernel == rules::GpuKernel::hopper ? "types, widths and strides fit the Hopper kernel"
                   : rules::is_hopper_fp8(row.kernel)
                       ? "types, widths and strides fit the Hopper kernel for FP8 caches and records"
                       : "types, widths and strides fit";
      return choice;
    }
  }
  return choice;  // not reached: the table has a row for every call
}

Plan make_plan(const Target &target, const Problem &p) {
  Plan plan = {};
  plan.choice = choose_kernel(target, p);
  const VerifyKernel &kernel = plan.choice.kernel;
  const rules::VerifyConfig config = rules::gpu_config();
  Launch &l = plan.launch;
  l.p = p;
  l.row_tiles = static_cast<int32_t>(rules::num_row_tiles(rules::request_rows(p, 0), kernel.rows));
  l.row_group = rules::row_group(l.row_tiles);
  l.row_groups = rules::ceil_div(l.row_tiles, l.row_group);
  l.blocks = std::clamp(target.sms * kernel.blocks_per_sm / l.row_group, 1, kMaxShares) * l.row_group;
  l.blocks_per_sm = kernel.blocks_per_sm;
  const int32_t max_shares = l.blocks / l.row_group;
  const int64_t row_groups = std::max<int64_t>(1, int64_t{p.batch} * l.row_groups);
  const auto jobs = static_cast<int32_t>(std::min<int64_t>(row_groups, INT32_MAX));
  l.share_choice = {max_shares, rules::whole_shares(max_shares, jobs),
                    rules::shares_squared_per_tile(plan.choice.row.shares_squared_per_tile, l.row_group), jobs};
  l.box_keys = kernel.copies_boxes ? rules::box_keys(p.page_size, kernel.keys) : 0;
  l.pair = l.box_keys > 0 && l.row_group % 2 == 0 ? 2 : 1;
  l.out_16_bytes = aligned(p.out, 16) && p.out_row_stride % 8 == 0 && p.out_head_stride % 8 == 0;
  l.split_align = config.split_align;
  l.min_split_len = config.min_split_len;
  l.cut_log2 = rules::line_tile_log2(__builtin_ctz(static_cast<unsigned>(kernel.keys)), row_groups, rules::table_keys(p));
  // More splits than the shortest ones that the block table can hold are empty for every length, and cut nothing differently.
  const auto useful =
      rules::num_chunks(rules::table_keys(p), static_cast<int32_t>(rules::split_len(0, 1, l.min_split_len, l.split_align)));
  l.splits = static_cast<int32_t>(std::min<int64_t>(p.num_kv_splits, std::max<int64_t>(1, useful)));
  if ((p.flags & MLAVERIFY_FLAG_BATCH_INVARIANT) != 0) {
    l.splits = 0;
    l.cut_log2 = rules::kInvariantLog2;
    // (Chunks in the line need no bound of their own: each has a slot in the workspace.)
    l.chunks = static_cast<int32_t>(std::max<int64_t>(1, rules::num_chunks(rules::table_keys(p), rules::kInvariantKeys)));
    l.share_choice.squared_per_tile = max_shares;  // chunks are long: as many shares as there are
  }
  l.max_cuts = static_cast<int32_t>(rules::num_chunks(std::min<int64_t>(rules::table_keys(p), INT32_MAX), 1 << l.cut_log2));
  plan.row_tiles_of_all = static_cast<int64_t>(p.batch) * l.row_tiles;
  l.part = rules::gpu_part_layout(kernel.rows, p.v_dim,
                                  l.chunks > 0   ? l.chunks
                                  : l.splits > 0 ? l.splits
                                                 : max_shares,
                                  kernel.f16_parts && l.chunks == 0);
  plan.combine = l.chunks > 0          ? target.kernels->combine_chunks
                 : l.part.numbers == 8 ? target.kernels->combine_f16
                                       : target.kernels->combine;
  plan.combine_blocks = combine_blocks(target, plan);
  if (plan.row_tiles_of_all > 0 && l.splits != 1) {
    plan.series = l.chunks > 0 || l.splits > 0 ? row_groups * l.row_group : 2 * l.row_group;
    int64_t places = 0, bytes = 0;  // shapes of a size query need not fit any memory
    const bool fits = !__builtin_mul_overflow(plan.series, l.part.pieces, &places) &&
                      !__builtin_mul_overflow(
                          places, l.part.acc_size * int64_t{16} + l.part.rows * int64_t{sizeof(rules::PartState)}, &bytes) &&
                      bytes <= INT64_MAX - rules::kWorkspaceAlignment;
    plan.workspace_bytes = fits ? static_cast<std::size_t>(rules::gpu_states_bytes(l.part, plan.series) +
                                                           rules::gpu_accs_bytes(l.part, plan.series))
                                : SIZE_MAX;
  }
  return plan;
}

}  // namespace mlaverify::cuda
