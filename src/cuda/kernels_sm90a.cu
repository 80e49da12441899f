// Instantiates the kernels that use instructions of Hopper alone (sm_90a), which no other architecture runs.
#include "cuda/kernels.h"
#include "cuda/verify_sm90.cuh"

namespace mlaverify::cuda {
namespace {

template <class T, int qk_dim, int v_dim, DType cache>
TensorKernel tensor_kernel() {
  using C = Sm90Config<T, qk_dim, v_dim, cache>;
  const DType type = std::is_same_v<T, F16> ? DType::f16 : DType::bf16;
  return {type,
          qk_dim,
          v_dim,
          {C::kRows, C::kKeys, C::kThreads, 1, C::kSharedBytes, reinterpret_cast<const void *>(verify_sm90_kernel<C>),
           !C::kWidens, true}};
}

template <DType cache>
std::vector<TensorKernel> over_fp8() {
  return {tensor_kernel<Bf16, 576, 512, cache>(), tensor_kernel<Bf16, 512, 512, cache>(), tensor_kernel<F16, 576, 512, cache>(),
          tensor_kernel<F16, 512, 512, cache>()};
}

}  // namespace

const std::vector<TensorKernel> &hopper_kernels(DType cache) {
  static const std::vector<TensorKernel> same = {
      tensor_kernel<Bf16, 576, 512, DType::bf16>(), tensor_kernel<Bf16, 512, 512, DType::bf16>(),
      tensor_kernel<F16, 576, 512, DType::f16>(), tensor_kernel<F16, 512, 512, DType::f16>()};
  static const std::vector<TensorKernel> e4m3 = over_fp8<DType::f8_e4m3>(), e5m2 = over_fp8<DType::f8_e5m2>();
  return cache == DType::f8_e4m3 ? e4m3 : cache == DType::f8_e5m2 ? e5m2 : same;
}

}  // namespace mlaverify::cuda
