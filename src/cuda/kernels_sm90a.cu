// Instantiates the kernels that use instructions of Hopper alone (sm_90a), which no other architecture runs.
#include "cuda/kernels.h"
#include "cuda/verify_fp8.cuh"
#include "cuda/verify_sm90.cuh"

namespace mlaverify::cuda {
namespace {

template <class T, int qk_dim, int v_dim>
TensorKernel tensor_kernel() {
  using C = Sm90Config<T, qk_dim, v_dim>;
  const DType type = std::is_same_v<T, F16> ? DType::f16 : DType::bf16;
  const void *function = reinterpret_cast<const void *>(verify_sm90_kernel<C>);
  return {type, qk_dim, v_dim, {C::kRows, C::kKeys, C::kThreads, 1, C::kSharedBytes, function, true, true}};
}

// Queries of both types go to the same code.
template <DType cache, int qk_dim, int v_dim, rules::GpuKernel kernel>
void add_fp8(std::vector<TensorKernel> *list) {
  using C = Fp8Config<qk_dim, v_dim, cache, kernel>;
  const void *function = reinterpret_cast<const void *>(verify_fp8_kernel<C>);
  for (const DType type : {DType::bf16, DType::f16})
    list->push_back(
        {type, qk_dim, v_dim, {C::kRows, C::kKeys, C::kThreads, 1, C::kSharedBytes, function, false, true}, C::kRecords});
}

template <DType cache, rules::GpuKernel kernel>
void add_fp8_widths(std::vector<TensorKernel> *list) {
  add_fp8<cache, 576, 512, kernel>(list);
  add_fp8<cache, 512, 512, kernel>(list);
}

template <DType cache>
std::vector<TensorKernel> over_fp8() {
  std::vector<TensorKernel> list;
  add_fp8_widths<cache, rules::GpuKernel::hopper_fp8_64>(&list);
  add_fp8_widths<cache, rules::GpuKernel::hopper_fp8_32>(&list);
  add_fp8_widths<cache, rules::GpuKernel::hopper_fp8_16>(&list);
  return list;
}

std::vector<TensorKernel> over_records() {
  constexpr int kQk = rules::kRecordWidth, kV = rules::kRecordScaled;
  std::vector<TensorKernel> list;
  add_fp8<DType::f8_ds_mla, kQk, kV, rules::GpuKernel::hopper_fp8_32>(&list);
  add_fp8<DType::f8_ds_mla, kQk, kV, rules::GpuKernel::hopper_fp8_16>(&list);
  return list;
}

}  // namespace

const std::vector<TensorKernel> &hopper_kernels() {
  static const std::vector<TensorKernel> list = {tensor_kernel<Bf16, 576, 512>(), tensor_kernel<Bf16, 512, 512>(),
                                                 tensor_kernel<F16, 576, 512>(), tensor_kernel<F16, 512, 512>()};
  return list;
}

const std::vector<TensorKernel> &hopper_fp8_kernels(DType cache) {
  static const std::vector<TensorKernel> e4m3 = over_fp8<DType::f8_e4m3>(), e5m2 = over_fp8<DType::f8_e5m2>(),
                                         records = over_records();
  return rules::is_record(cache) ? records : cache == DType::f8_e4m3 ? e4m3 : e5m2;
}

}  // namespace mlaverify::cuda
