// Instantiates the kernels of one architecture, MLAVERIFY_SM: exactly the tiles that rules/config_table.h has rows for there.
#include "cuda/combine.cuh"
#include "cuda/kernels.h"
#include "cuda/verify_generic.cuh"
#include "cuda/verify_sm80.cuh"
#include "rules/config_table.h"

namespace mlaverify::cuda {
namespace {

constexpr int kArch = MLAVERIFY_SM;
constexpr rules::Arch kTable = kArch == 90 ? rules::Arch::sm_90 : kArch == 80 ? rules::Arch::sm_80 : rules::Arch::sm_86;

template <class T, int qk_dim, int v_dim, bool records, int rows, int keys, int warps, int stages>
TensorKernel tensor_kernel() {
  using C = Sm80Config<kArch, T, qk_dim, v_dim, rows, keys, stages, warps, records>;
  const DType type = std::is_same_v<T, F16> ? DType::f16 : DType::bf16;
  const void *function = reinterpret_cast<const void *>(verify_sm80_kernel<C>);
  return {type, qk_dim, v_dim, {C::kRows, C::kKeys, C::kThreads, C::kResident, C::kSharedBytes, function}, records};
}

template <class T, int qk_dim, int v_dim, bool records = false>
void add(std::vector<TensorKernel> *list) {
  constexpr rules::VerifyConfig few = rules::portable_config(kTable, rules::GpuKernel::portable_16, records),
                                many = rules::portable_config(kTable, rules::GpuKernel::portable_64, records);
  list->push_back(tensor_kernel<T, qk_dim, v_dim, records, few.block_h, few.block_n, few.num_warps, few.num_stages>());
  if constexpr (rules::has_kernel(kTable, rules::GpuKernel::portable_64)) {
    list->push_back(tensor_kernel<T, qk_dim, v_dim, records, many.block_h, many.block_n, many.num_warps, many.num_stages>());
  }
}

template <class T>
void add_widths(std::vector<TensorKernel> *list) {
  add<T, 576, 512>(list);
  add<T, 512, 512>(list);
  add<T, 320, 256>(list);
  add<T, 288, 256>(list);
  add<T, rules::kRecordWidth, rules::kRecordScaled, true>(list);
}

// Only Hopper's kernels write partial results in f16.
template <int arch>
const void *combine_f16() {
  if constexpr (arch == 90) return reinterpret_cast<const void *>(combine_kernel<arch, 8, false>);
  return nullptr;
}

KernelSet make_set() {
  KernelSet set = {};
  add_widths<Bf16>(&set.tensor);
  add_widths<F16>(&set.tensor);
  using G = GenericConfig;
  set.generic = {G::kRows, G::kKeys, G::kThreads, 2, 0, reinterpret_cast<const void *>(verify_generic_kernel<kArch>)};
  set.combine = reinterpret_cast<const void *>(combine_kernel<kArch, 4, false>);
  set.combine_f16 = combine_f16<kArch>();
  set.combine_chunks = reinterpret_cast<const void *>(combine_kernel<kArch, 4, true>);
  return set;
}

}  // namespace

template <>
const KernelSet &kernel_set<kArch>() {
  static const KernelSet set = make_set();
  return set;
}

}  // namespace mlaverify::cuda
