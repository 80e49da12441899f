// Instantiates the kernels that use instructions of Hopper alone (sm_90a), which no other architecture runs.
#include "cuda/kernels.h"
#include "cuda/verify_sm90.cuh"

namespace mlaverify::cuda {
namespace {

template <class T, int qk_dim, int v_dim>
TensorKernel tensor_kernel() {
  using C = Sm90Config<T, qk_dim, v_dim>;
  const DType type = std::is_same_v<T, F16> ? DType::f16 : DType::bf16;
  return {type,
          qk_dim,
          v_dim,
          {C::kRows, C::kKeys, C::kThreads, 1, C::kSharedBytes, reinterpret_cast<const void *>(verify_sm90_kernel<C>), true, true}};
}

}  // namespace

const std::vector<TensorKernel> &hopper_kernels() {
  static const std::vector<TensorKernel> list = {tensor_kernel<Bf16, 576, 512>(), tensor_kernel<Bf16, 512, 512>(),
                                                 tensor_kernel<F16, 576, 512>(), tensor_kernel<F16, 512, 512>()};
  return list;
}

}  // namespace mlaverify::cuda
