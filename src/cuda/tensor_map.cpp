#include "cuda/tensor_map.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

namespace mlaverify::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Asked of the driver that is there, so that nothing links to one.
Encode encode_function() {
  static const Encode function = [] {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(found) : nullptr;
  }();
  return function;
}

}  // namespace

bool make_kv_map(const Problem &p, int32_t box_keys, TensorMap *map) {
  static_assert(sizeof(CUtensorMap) == sizeof(map->bytes) && alignof(CUtensorMap) <= alignof(TensorMap));
  const Encode encode = encode_function();
  if (encode == nullptr || p.num_pages < 1) return false;
  const auto size = [](int64_t x) { return static_cast<cuuint64_t>(x); };
  const cuuint64_t sizes[] = {size(p.qk_dim), size(p.page_size), size(p.num_pages)};
  const cuuint64_t strides[] = {size(p.kv_slot_stride) * 2, size(p.kv_page_stride) * 2};  // bytes
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_keys), 1}, steps[] = {1, 1, 1};
  const CUtensorMapDataType type =
      p.kv_dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  CUtensorMap made;
  if (encode(&made, type, 3, const_cast<void *>(p.kv), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS) {
    return false;
  }
  std::memcpy(map->bytes, &made, sizeof(made));
  return true;
}

}  // namespace mlaverify::cuda
