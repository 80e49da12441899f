// The portable tensor-core kernel: mma.sync m16n8k16 fed by cp.async, for every GPU from sm_80 on.
//
// A block of kWarps warps takes one row tile (kRows packed rows of a request) over one range of keys at a time (schedule.cuh):
//
//   per key tile t (kKeys keys, stage t % kStages)                             who
//   [1] wait for the tile's copies; barrier A                                  all
//   [2] issue the copies of tile t + kStages - 1                               each warp kKeys/kWarps keys
//   [3] S = Q K^T * scale, masked in boundary tiles; row maxima                warp (wr, wk): 16 rows x kWarpKeys keys
//   [4] barrier B; new reference; P = exp2(S - reference), rescaling factors   the same
//   [5] barrier C; acc = acc * factor + P V                                    warp w: all rows x kWarpValues columns
//       row sum = row sum * factor + sums of P                                 thread r: row r
//
// The reference of the softmax is the row's maximum, or an older one that is at most 2^8 below: most tiles then rescale nothing.
// Sums of P are taken over 8 keys at a time, then over these in key order, whatever the tile's shape; products run over the keys
// in order anyway. So a row's bits depend on kKeys and the cut, not on kRows or kWarps.
//
// Barriers (__syncthreads) and what they order:
//   A  copies of tile t before its reads; step [5] of t-1 before its stage is overwritten; row maxima of t-1 before those of t
//   B  row maxima written before read
//   C  P, its sums and the factors written before read
//
// Shared memory: Q kRows x kPitch, kStages key tiles of kKeys x kPitch, P, row statistics. A row of Q or K is Lk 16-bit numbers
// padded to whole 128-byte lines; its 16-byte chunks are swizzled by the row, so that ldmatrix meets no bank twice.
// Registers of a thread: acc kRows/16 * kWarpValues/8 * 4 (128 for 64 x 512 over 8 warps), S kWarpKeys/8 * 4.
#pragma once

#include <cuda_fp8.h>

#include "cuda/launch.h"
#include "cuda/mma.cuh"
#include "cuda/ptx.cuh"
#include "cuda/result.cuh"
#include "cuda/schedule.cuh"
#include "rules/merge.h"
#include "rules/number.h"
#include "rules/workspace.h"

namespace mlaverify::cuda {

// `arch`: the architecture that the code is compiled for, so that each one has kernels of its own name.
template <int arch, class Type, int qk_dim, int v_dim, int rows, int keys, int stages, int warps, int blocks_per_sm>
struct Sm80Config {
  using T = Type;
  static constexpr int kQk = qk_dim, kV = v_dim, kRows = rows, kKeys = keys, kStages = stages, kWarps = warps;
  static constexpr int kThreads = 32 * kWarps, kBlocksPerSm = blocks_per_sm;
  static constexpr int kRowWarps = kRows / 16;                // warps along the rows of S
  static constexpr int kKeyWarps = kWarps / kRowWarps;        // warps along the keys of S
  static constexpr int kWarpKeys = kKeys / kKeyWarps;         // keys of a warp's part of S
  static constexpr int kWarpLoads = kKeys / kWarps;           // keys that a warp copies
  static constexpr int kWarpValues = kV / kWarps;             // columns of a warp's part of acc
  static constexpr int kChunks = kQk / 8;                     // 16-byte chunks of a row
  static constexpr int kPitch = (kQk * 2 + 127) / 128 * 128;  // bytes of a row in shared memory
  static constexpr int kPPitch = kKeys * 2;

  static constexpr int kQBytes = kRows * kPitch, kTileBytes = kKeys * kPitch, kPBytes = kRows * kPPitch;
  static constexpr int kOffsetK = kQBytes, kOffsetP = kOffsetK + kStages * kTileBytes, kOffsetMax = kOffsetP + kPBytes;
  static constexpr int kOffsetAlpha = kOffsetMax + 4 * kKeyWarps * kRows, kOffsetSums = kOffsetAlpha + 4 * kRows;
  static constexpr int kSharedBytes = kOffsetSums + 4 * (kKeys / 8) * kRows;

  static_assert(kRows % 16 == 0 && kWarps % kRowWarps == 0 && kKeys % (8 * kKeyWarps) == 0 && kKeys % 32 == 0);
  static_assert(kQk % 32 == 0 && kV % (16 * kWarps) == 0, "whole ldmatrix_x4 loads");
  static_assert(kWarpLoads >= 1 && kWarpLoads <= 32, "a lane holds the address of one key");
  static_assert(kRows <= kThreads, "one thread sums each row");
};

// Rows of a tile are lines of 128 bytes (of P with 32 keys: half lines), each of 8 chunks of 16 bytes. Byte offset of chunk
// `chunk` of row `row`; chunks further along the row keep their place in the line: add 128 a line.
template <int kPitchBytes>
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  static_assert(kPitchBytes % 128 == 0 || kPitchBytes == 64);
  const int key = kPitchBytes % 128 == 0 ? row & 7 : (row >> 1) & 3;
  return static_cast<uint32_t>(row * kPitchBytes + ((chunk ^ key) << 4));
}

// 8 FP8 numbers as 8 numbers of T, exactly.
template <class T>
__device__ __forceinline__ uint4 widen(uint2 from, bool e4m3) {
  uint32_t to[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto two = static_cast<__nv_fp8x2_storage_t>((i < 2 ? from.x : from.y) >> (i % 2 * 16) & 0xffffu);
    const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(two, e4m3 ? __NV_E4M3 : __NV_E5M2);
    const float2 f = __half22float2(__half2(h));
    to[i] = T::pack(f.x, f.y);
  }
  return {to[0], to[1], to[2], to[3]};
}

// Copies row `from` (null: zeros) into row `row` of a tile. By all lanes of a warp; completes with the thread's cp.async group,
// or, for FP8 caches, at once.
template <class C>
__device__ __forceinline__ void copy_row(char *tile, int row, const char *from, DType type) {
  const int lane = threadIdx.x % 32;
  if (rules::is_fp8(type)) {
    for (int c = lane; c < C::kChunks; c += 32) {
      const uint2 bytes = from != nullptr ? *reinterpret_cast<const uint2 *>(from + c * 8) : uint2{0, 0};
      *reinterpret_cast<uint4 *>(tile + swizzled<C::kPitch>(row, c)) = widen<typename C::T>(bytes, type == DType::f8_e4m3);
    }
    return;
  }
  const uint32_t to = ptx::shared_address(tile);
#pragma unroll
  for (int c0 = 0; c0 < C::kChunks; c0 += 32) {
    const int c = c0 + lane;
    if (C::kChunks - c0 >= 32 || c < C::kChunks)
      ptx::cp_async_16(to + swizzled<C::kPitch>(row, c), from + c * 16, from != nullptr);
  }
}

template <class C>
class Sm80Block {
  static constexpr int kRowBlocks = C::kRows / 16, kColumnBlocks = C::kWarpValues / 8, kScoreBlocks = C::kWarpKeys / 8;

 public:
  __device__ __forceinline__ Sm80Block(const Launch &l, char *shared) : l_(l), p_(l.p), shared_(shared) {
    const float k_scale = p_.k_scale != nullptr ? *p_.k_scale : 1.0f;
    out_scale_ = k_scale;
    scale_log2_ = p_.sm_scale * k_scale * 1.4426950408889634f;
  }

  __device__ __forceinline__ void run(const Item &item) {
    const int tiles = (item.key_end - item.key_begin + C::kKeys - 1) / C::kKeys;
    clear();
    if (tiles > 0) {
      load_queries(item);
      fetch_page(item, 0);
#pragma unroll
      for (int t = 0; t < C::kStages - 1; ++t) load_tile(item, t, tiles);
      set_limits(item);
      for (int t = 0; t < tiles; ++t) {
        ptx::cp_async_wait<C::kStages - 2>();
        __syncthreads();  // A
        load_tile(item, t + C::kStages - 1, tiles);
        float s[kScoreBlocks][4];
        scores(t % C::kStages, s);
        softmax(item.key_begin + t * C::kKeys, s);
        accumulate(t % C::kStages);
      }
    }
    finish(item);
    __syncthreads();  // shared memory is free for the next item
  }

 private:
  // ---- Loads ----

  __device__ __forceinline__ void load_queries(const Item &item) {
    const int64_t rows = rules::request_rows(p_, item.request);
    for (int r = warp_; r < C::kRows; r += C::kWarps) {
      const int64_t row = item.row_tile * static_cast<int64_t>(C::kRows) + r;
      const char *from = nullptr;
      if (row < rows)
        from = static_cast<const char *>(p_.q) + rules::q_offset(p_, item.request, rules::unpack_row(row, p_.num_heads)) * 2;
      copy_row<C>(shared_, r, from, p_.q_dtype);
    }
  }

  // Lane j of a warp looks up the page of key j of the warp's keys of tile t, one tile ahead of the copies. Only the load is
  // here: whatever used its result would wait for it.
  __device__ __forceinline__ void fetch_page(const Item &item, int t) {
    const int64_t key = item.key_begin + static_cast<int64_t>(t) * C::kKeys + warp_ * C::kWarpLoads + lane_;
    const rules::Slot slot = rules::slot_of(static_cast<int32_t>(key), p_.page_size);
    offset_ = slot.offset;
    page_ = -1;
    if (lane_ < C::kWarpLoads && key < item.key_end && slot.entry < p_.table_width)
      page_ = rules::page_id(p_, item.request, slot.entry);
  }

  // Always commits a group, so that group counts stay in step with tiles.
  __device__ __forceinline__ void load_tile(const Item &item, int t, int tiles) {
    if (t < tiles) {
      char *tile = shared_ + C::kOffsetK + t % C::kStages * C::kTileBytes;
      const char *mine = slot_address(p_, page_, offset_);
      fetch_page(item, t + 1);
#pragma unroll
      for (int j = 0; j < C::kWarpLoads; ++j) {
        const auto from = reinterpret_cast<const char *>(__shfl_sync(~0u, reinterpret_cast<unsigned long long>(mine), j));
        copy_row<C>(tile, warp_ * C::kWarpLoads + j, from, p_.kv_dtype);
      }
    }
    ptx::cp_async_commit();
  }

  // ---- One tile ----

  __device__ __forceinline__ void set_limits(const Item &item) {
    const int64_t first = item.row_tile * static_cast<int64_t>(C::kRows);
    seen_by_all_ = rules::visible_keys(p_, item.request, rules::unpack_row(first, p_.num_heads).token);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t row = first + row_warp_ * 16 + mma_row(lane_, 2 * i);
      const bool inside = row < rules::request_rows(p_, item.request);
      limit_[i] = inside ? rules::visible_keys(p_, item.request, rules::unpack_row(row, p_.num_heads).token) : 0;
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc_[m][j][i] = 0;
      }
    }
    sum_ = 0;
    max_[0] = max_[1] = kMinusInf;
  }

  // [3] S = Q K^T of this warp's 16 rows and kWarpKeys keys. Offsets within a line are kept in registers; lines are immediates.
  __device__ __forceinline__ void scores(int stage, float (&s)[kScoreBlocks][4]) {
    const uint32_t q = ptx::shared_address(shared_);
    const uint32_t k = ptx::shared_address(shared_) + C::kOffsetK + stage * C::kTileBytes;
    uint32_t q_at[4], k_at[2];
#pragma unroll
    for (int h = 0; h < 4; ++h) q_at[h] = q + swizzled<C::kPitch>(row_warp_ * 16 + lane_ % 16, h * 2 + lane_ / 16);
#pragma unroll
    for (int h = 0; h < 2; ++h) k_at[h] = k + swizzled<C::kPitch>(key_warp_ * C::kWarpKeys + lane_ % 8, h * 4 + lane_ / 8);
#pragma unroll
    for (int j = 0; j < kScoreBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] = 0;
    }
#pragma unroll
    for (int d = 0; d < C::kQk / 32; ++d) {
      const int half = d % 2, line = d / 2 * 128;
      uint32_t a[2][4];
#pragma unroll
      for (int h = 0; h < 2; ++h) ptx::ldmatrix_x4(a[h], q_at[half * 2 + h] + line);
#pragma unroll
      for (int j = 0; j < kScoreBlocks; ++j) {
        uint32_t b[4];
        ptx::ldmatrix_x4(b, k_at[half] + line + j * 8 * C::kPitch);
        C::T::mma(s[j], a[0], b[0], b[1]);
        C::T::mma(s[j], a[1], b[2], b[3]);
      }
    }
  }

  // [3] end and [4].
  __device__ __forceinline__ void softmax(int32_t first_key, float (&s)[kScoreBlocks][4]) {
    auto *row_max = reinterpret_cast<float *>(shared_ + C::kOffsetMax);  // [kKeyWarps][kRows]
    auto *alpha = reinterpret_cast<float *>(shared_ + C::kOffsetAlpha);  // [kRows]
    auto *sums = reinterpret_cast<float *>(shared_ + C::kOffsetSums);    // [kKeys / 8][kRows]
    float largest[2] = {kMinusInf, kMinusInf};
    const bool boundary = first_key + C::kKeys > seen_by_all_;
#pragma unroll
    for (int j = 0; j < kScoreBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[j][i] *= scale_log2_;
        const int32_t key = first_key + key_warp_ * C::kWarpKeys + j * 8 + mma_col(lane_, i);
        if (boundary && key >= limit_[i / 2]) s[j][i] = kMinusInf;
        largest[i / 2] = fmaxf(largest[i / 2], s[j][i]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      largest[i] = fmaxf(largest[i], __shfl_xor_sync(~0u, largest[i], 1));
      largest[i] = fmaxf(largest[i], __shfl_xor_sync(~0u, largest[i], 2));
      if (lane_ % 4 == 0) row_max[key_warp_ * C::kRows + row_warp_ * 16 + mma_row(lane_, 2 * i)] = largest[i];
    }
    __syncthreads();  // B
    float reference[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = row_warp_ * 16 + mma_row(lane_, 2 * i);
      float now = max_[i];
#pragma unroll
      for (int w = 0; w < C::kKeyWarps; ++w) now = fmaxf(now, row_max[w * C::kRows + row]);
      // The reference moves only if weights would grow beyond 2^kSlack. (-inf - -inf is NaN.)
      if (now - max_[i] <= kSlack) now = max_[i];
      reference[i] = now == kMinusInf ? 0.0f : now;  // no key yet, or all scores -inf: weights 0, not NaN
      if (key_warp_ == 0 && lane_ % 4 == 0) alpha[row] = ptx::exp2_approx(max_[i] - reference[i]);
      max_[i] = now;
    }
#pragma unroll
    for (int j = 0; j < kScoreBlocks; ++j) {
      const int chunk = key_warp_ * kScoreBlocks + j;  // of 8 keys
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = row_warp_ * 16 + mma_row(lane_, 2 * i);
        const float low = ptx::exp2_approx(s[j][2 * i] - reference[i]);
        const float high = ptx::exp2_approx(s[j][2 * i + 1] - reference[i]);
        const uint32_t at = C::kOffsetP + swizzled<C::kPPitch>(row, chunk) + lane_ % 4 * 4;
        *reinterpret_cast<uint32_t *>(shared_ + at) = C::T::pack(low, high);
        float sum = low + high;
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane_ % 4 == 0) sums[chunk * C::kRows + row] = sum;
      }
    }
    __syncthreads();  // C
  }

  // [5].
  __device__ __forceinline__ void accumulate(int stage) {
    const auto *alpha = reinterpret_cast<const float *>(shared_ + C::kOffsetAlpha);
    float a[kRowBlocks][2];
    bool changed = false;
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        a[m][i] = alpha[m * 16 + mma_row(lane_, 2 * i)];
        changed = changed || a[m][i] != 1.0f;
      }
    }
    if (__any_sync(~0u, changed)) {
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) acc_[m][j][i] *= a[m][i / 2];
        }
      }
    }
    if (threadIdx.x < C::kRows) {
      const auto *sums = reinterpret_cast<const float *>(shared_ + C::kOffsetSums) + threadIdx.x;
      sum_ *= alpha[threadIdx.x];
#pragma unroll
      for (int i = 0; i < C::kKeys / 8; ++i) sum_ += sums[i * C::kRows];
    }
    const uint32_t p = ptx::shared_address(shared_) + C::kOffsetP;
    const uint32_t v = ptx::shared_address(shared_) + C::kOffsetK + stage * C::kTileBytes;
    uint32_t p_at[C::kKeys / 16], v_at[kColumnBlocks / 2];
#pragma unroll
    for (int k = 0; k < C::kKeys / 16; ++k) p_at[k] = p + swizzled<C::kPPitch>(lane_ % 16, k * 2 + lane_ / 16);
#pragma unroll
    for (int j = 0; j < kColumnBlocks / 2; ++j)
      v_at[j] = v + swizzled<C::kPitch>(lane_ % 16, warp_ * (C::kWarpValues / 8) + j * 2 + lane_ / 16);
#pragma unroll
    for (int k = 0; k < C::kKeys / 16; ++k) {
      uint32_t w[kRowBlocks][4];
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) ptx::ldmatrix_x4(w[m], p_at[k] + m * 16 * C::kPPitch);
#pragma unroll
      for (int j = 0; j < kColumnBlocks; j += 2) {
        uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, v_at[j / 2] + k * 16 * C::kPitch);
#pragma unroll
        for (int m = 0; m < kRowBlocks; ++m) {
          C::T::mma(acc_[m][j], w[m], b[0], b[1]);
          C::T::mma(acc_[m][j + 1], w[m], b[2], b[3]);
        }
      }
    }
  }

  // ---- Results ----

  __device__ __forceinline__ void finish(const Item &item) {
    auto *max_of = reinterpret_cast<float *>(shared_ + C::kOffsetAlpha);  // [kRows]; alpha is no longer read after the barrier
    auto *sum_of = reinterpret_cast<float *>(shared_ + C::kOffsetSums);   // [kRows]
    __syncthreads();
    if (key_warp_ == 0 && lane_ % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) max_of[row_warp_ * 16 + mma_row(lane_, 2 * i)] = max_[i];
    }
    if (threadIdx.x < C::kRows) sum_of[threadIdx.x] = sum_;
    __syncthreads();
    if (item.part >= 0) {
      write_part(item, max_of, sum_of);
    } else {
      write_result(item, max_of, sum_of);
    }
  }

  __device__ __forceinline__ void write_part(const Item &item, const float *max_of, const float *sum_of) {
    const rules::GpuPartLayout part = rules::gpu_part_layout(C::kRows, C::kV);
    float *to = l_.parts + item.part * part.size;
    for (int r = threadIdx.x; r < C::kRows; r += C::kThreads) {
      to[part.max + r] = max_of[r];
      to[part.sum + r] = sum_of[r];
    }
    if (item.key_begin == item.key_end) return;  // weighs nothing: acc is not looked at
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float *row = to + part.acc + (m * 16 + mma_row(lane_, 2 * i)) * C::kV + warp_ * C::kWarpValues;
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
          *reinterpret_cast<float2 *>(row + j * 8 + mma_col(lane_, 0)) = {acc_[m][j][2 * i], acc_[m][j][2 * i + 1]};
        }
      }
    }
  }

  __device__ __forceinline__ void write_result(const Item &item, const float *max_of, const float *sum_of) {
    const int64_t rows = rules::request_rows(p_, item.request);
    const int64_t first = item.row_tile * static_cast<int64_t>(C::kRows);
    for (int r = threadIdx.x; r < C::kRows && first + r < rows; r += C::kThreads) {
      const rules::Row row = rules::unpack_row(first + r, p_.num_heads);
      p_.lse[rules::lse_offset(p_, item.request, row)] = lse_of(row_state(item, row, max_of[r], sum_of[r]));
    }
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = m * 16 + mma_row(lane_, 2 * i);
        if (first + r >= rows) continue;
        const rules::Row row = rules::unpack_row(first + r, p_.num_heads);
        const float scale = row_scale(row_state(item, row, max_of[r], sum_of[r]), out_scale_);
        auto *to =
            static_cast<typename C::T::Element *>(p_.out) + rules::out_offset(p_, item.request, row) + warp_ * C::kWarpValues;
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
          *reinterpret_cast<uint32_t *>(to + j * 8 + mma_col(lane_, 0)) =
              C::T::pack(acc_[m][j][2 * i] * scale, acc_[m][j][2 * i + 1] * scale);
        }
      }
    }
  }

  __device__ __forceinline__ RowState row_state(const Item &item, rules::Row row, float max, float sum) const {
    return {{max, sum}, rules::visible_keys(p_, item.request, row.token) > 0};
  }

  static constexpr float kSlack = 8.0f;  // log2 units: weights up to 256 fit f16 and lose nothing in bf16

  const Launch &l_;
  const Problem &p_;
  char *shared_;
  float scale_log2_, out_scale_;
  const int warp_ = threadIdx.x / 32, lane_ = threadIdx.x % 32;
  const int row_warp_ = warp_ % C::kRowWarps, key_warp_ = warp_ / C::kRowWarps;
  int32_t page_ = -1, offset_ = 0;
  int32_t seen_by_all_ = 0, limit_[2] = {0, 0};
  float max_[2];  // of rows mma_row(lane, 0) and mma_row(lane, 2) of this row warp, log2 units
  float sum_;     // of row threadIdx.x
  float acc_[kRowBlocks][kColumnBlocks][4];
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm) verify_sm80_kernel(const __grid_constant__ Launch l) {
  extern __shared__ __align__(128) char shared[];
  ptx::launch_dependents();
  Sm80Block<C> block(l, shared);
  for_each_item<C::kRows, C::kKeys>(l, [&](const Item &item) { block.run(item); });
}

}  // namespace mlaverify::cuda
