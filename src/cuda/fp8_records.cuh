// What records (rules/row.h) are to verify_fp8.cuh: the scales of the two keys that a lane has scores of. A group's numbers are multiplied
// without their scale; their sum, and the weights of the group's columns, are multiplied with it.
#pragma once

#include <cuda_fp8.h>

#include "cuda/fp8_queries.cuh"
#include "cuda/ptx.cuh"
#include "rules/row.h"

namespace mlaverify::cuda {

template <class C>
class RecordScales {
 public:
  // `first`: the record, in shared memory, of the first of the two keys; the other one lies eight further on.
  __device__ __forceinline__ void read(const char *first) {
#pragma unroll
    for (int key = 0; key < 2; ++key) {
      const float4 x = *reinterpret_cast<const float4 *>(first + key * kNext + rules::kRecordScalesAt);
      of_[key][0] = x.x, of_[key][1] = x.y, of_[key][2] = x.z, of_[key][3] = x.w;
      float largest = 0x1p-60f;  // smaller ones are as if they were this large
#pragma unroll
      for (int group = 0; group < rules::kRecordGroups; ++group) largest = fmaxf(largest, finite_size(of_[key][group]));
      above_[key] = static_cast<float>(static_cast<int32_t>(__float_as_uint(largest) >> 23) - 126);
    }
  }

  __device__ __forceinline__ float of(int key, int group) const { return of_[key][group]; }
  // Of sums of products; 0 where numbers have to be multiplied one by one.
  __device__ __forceinline__ float of_sum(int key, int group) const {
    return is_usual(of_[key][group]) ? of_[key][group] : 0.0f;
  }
  // A power of two that is larger than a key's finite scales; its logarithm.
  __device__ __forceinline__ float above(int key) const { return above_[key]; }

  // Adds to scores the products of numbers whose scale is beyond rules::kRecordMostScale, infinite or NaN: as plain arithmetic has it.
  template <int n>
  __device__ __forceinline__ void add_unusual(const char *queries, const char *first, float (&s)[n]) const {
    bool usual = true;
#pragma unroll
    for (int group = 0; group < rules::kRecordGroups; ++group)
      usual = usual && is_usual(of_[0][group]) && is_usual(of_[1][group]);
    if (__all_sync(~0u, usual)) return;
#pragma unroll 1
    for (int i = 0; i < 2 * rules::kRecordGroups; ++i) {
      const int key = i / rules::kRecordGroups, column = i % rules::kRecordGroups * rules::kRecordGroup;
      const char *record = first + key * kNext;
      const float scale = rules::record_scales(record)[i % rules::kRecordGroups];
      if (is_usual(scale)) continue;
      const auto *numbers = reinterpret_cast<const __nv_fp8_storage_t *>(record) + column;
#pragma unroll
      for (int r = 0; r < n / 2; ++r) {
        const int row = r / 2 * 8 + ptx::lane() % 4 * 2 + r % 2;
        float sum = 0.0f;
#pragma unroll 1
        for (int d = 0; d < rules::kRecordGroup; ++d) {
          const float number = __half2float(__half(__nv_cvt_fp8_to_halfraw(numbers[d], __NV_E4M3)));
          sum += Fp8Queries<C>::number(queries, row, column + d) * (number * scale);
        }
        s[r / 2 * 4 + r % 2] += key == 0 ? sum : 0.0f;
        s[r / 2 * 4 + r % 2 + 2] += key == 1 ? sum : 0.0f;
      }
    }
    __syncwarp();
  }

 private:
  static constexpr int kNext = 8 * C::kPitch;
  static __device__ __forceinline__ bool is_usual(float scale) { return fabsf(scale) <= rules::kRecordMostScale; }

  float of_[2][rules::kRecordGroups], above_[2];
};

}  // namespace mlaverify::cuda
