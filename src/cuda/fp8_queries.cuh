// Queries of verify_fp8.cuh on their way to shared memory.
#pragma once

#include "cuda/fp8_copies.cuh"
#include "cuda/mma.cuh"
#include "cuda/part.cuh"
#include "cuda/schedule.cuh"

namespace mlaverify::cuda {

// What an FP8 cache is multiplied with.
__device__ __forceinline__ float fp8_scale(const Problem &p) { return p.k_scale != nullptr ? *p.k_scale : 1.0f; }

template <class C>
class Fp8Queries {
 public:
  __device__ __forceinline__ Fp8Queries(const Problem &p, char *shared) : p_(p), shared_(shared) {}

  // Of an item, by eight warps, of which this is number `warp`; and what the scores of each row are to be multiplied with.
  __device__ __forceinline__ void copy(const volatile Item &item, int warp) const {
    if (p_.q_dtype == DType::bf16) {
      copy(item, warp, [](uint32_t two) { return float2{__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u)}; });
    } else {
      copy(item, warp, [](uint32_t two) { return __half22float2(*reinterpret_cast<const __half2 *>(&two)); });
    }
  }

  // A number of a row in shared memory, of columns of FP8 numbers.
  static __device__ __forceinline__ float number(const char *queries, int row, int column) {
    const int four = column % 16 / 4, half = column % 4 / 2, in_block = column % 64 / 16 * 2 + half;
    const char *at =
        queries + column / 64 * C::kBlockBytes + row * 128 + ((in_block ^ row % 8) << 4) + (four * 2 + column % 2) * 2;
    return __half2float(*reinterpret_cast<const __half *>(at));
  }

 private:
  // Rows of this warp, four at a time (eight take longer): scaled by a power of two so that the largest number is 2^14 or more, as f16, in
  // the order of the products. unpack(two): as floats.
  template <class Unpack>
  __device__ __forceinline__ void copy(const volatile Item &item, int warp, Unpack unpack) const {
    constexpr int kWarpRows = C::kRows / 8, kAtOnce = rules::min(kWarpRows, 4), kChunks = C::kQk / 8,
                  kReads = (kChunks + 31) / 32;
    const int lane = ptx::lane();
    const float scale_log2 = p_.sm_scale * fp8_scale(p_) * 1.4426950408889634f;
    // Queries have the sign of the scale, or its 0 or NaN: what scores are multiplied with is positive, so that -inf stays what it is.
    const float sign = scale_log2 > 0.0f ? 1.0f : scale_log2 < 0.0f ? -1.0f : scale_log2;
#pragma unroll 1
    for (int first = warp * kWarpRows; first < (warp + 1) * kWarpRows; first += kAtOnce) {
      uint4 x[kAtOnce][kReads];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        const int32_t row = item.row_tile * C::kRows + first + r;
        const bool inside = row < rows_of(p_, item.request);
        const int64_t at = inside ? rules::q_offset(p_, item.request, rules::unpack_row(row, p_.num_heads)) : 0;
        const auto *from = reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(p_.q) + at);
#pragma unroll
        for (int i = 0; i < kReads; ++i) x[r][i] = inside && lane + 32 * i < kChunks ? from[lane + 32 * i] : uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < kReads; ++i) {
          const uint32_t words[4] = {x[r][i].x, x[r][i].y, x[r][i].z, x[r][i].w};
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            const float2 two = unpack(words[w]);
            largest = fmaxf(largest, fmaxf(finite_size(two.x), finite_size(two.y)));
          }
        }
        const F16Scale scale = f16_scale(__uint_as_float(__reduce_max_sync(~0u, __float_as_uint(largest))));
        const float factor = sign * scale.factor;
        if (lane == 0)
          reinterpret_cast<float2 *>(shared_ + C::kOffsetScale)[first + r].x =
              fmaxf(fabsf(scale_log2) * scale.back, 1.17549435e-38f);
#pragma unroll
        for (int i = 0; i < kReads; ++i) {
          const int chunk = lane + 32 * i;
          if (chunk >= kChunks) continue;
          const uint32_t words[4] = {x[r][i].x, x[r][i].y, x[r][i].z, x[r][i].w};
          uint32_t to[4];
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            const float2 two = unpack(words[w]);
            to[w] = F16::pack(two.x * factor, two.y * factor);
          }
          if (C::kRecords && chunk >= rules::kRecordScaled / 8) {
            store_tail(first + r, chunk - rules::kRecordScaled / 8, words, unpack, factor);
            continue;
          }
          store_query(first + r, chunk, 0, {to[0], to[2]});
          store_query(first + r, chunk, 1, {to[1], to[3]});
        }
      }
    }
  }

  // Of eight columns `chunk` of a row those that come first (half 0) or second of each four.
  __device__ __forceinline__ void store_query(int row, int chunk, int half, uint2 two) const {
    const int in_block = chunk % 8 / 2 * 2 + half;
    char *to = shared_ + chunk / 8 * C::kBlockBytes + row * 128 + ((in_block ^ row % 8) << 4) + chunk % 2 * 8;
    *reinterpret_cast<uint2 *>(to) = two;
  }

  // Eight of the columns of a record that are bf16, in their order: rounded to bf16, and in a block behind that what rounding has taken
  // from f16 numbers. (bf16 numbers may be too large for f16.)
  template <class Unpack>
  __device__ __forceinline__ void store_tail(int row, int chunk, const uint32_t (&words)[4], Unpack unpack,
                                             float factor) const {
    uint32_t rounded[4], rest[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 two = unpack(words[w]);
      const float2 x = {two.x * factor, two.y * factor};
      rounded[w] = Bf16::pack(x.x, x.y);
      const float2 r = Bf16::unpack(rounded[w]);
      rest[w] = Bf16::pack(finite_size(x.x) > 0.0f ? x.x - r.x : 0.0f, finite_size(x.y) > 0.0f ? x.y - r.y : 0.0f);
    }
    char *to = shared_ + rules::kRecordScaled / 64 * C::kBlockBytes + row * 128 + ((chunk ^ row % 8) << 4);
    *reinterpret_cast<uint4 *>(to) = {rounded[0], rounded[1], rounded[2], rounded[3]};
    *reinterpret_cast<uint4 *>(to + C::kBlockBytes) = {rest[0], rest[1], rest[2], rest[3]};
  }

  const Problem &p_;
  char *const shared_;
};

}  // namespace mlaverify::cuda
