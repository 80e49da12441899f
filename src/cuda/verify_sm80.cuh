// The portable tensor-core kernel: mma.sync m16n8k16 fed by cp.async, for every GPU from sm_80 on.
//
// A block takes one row tile (kRows packed rows of a request) over one range of keys at a time (schedule.cuh), kKeys keys a tile.
// Its warps have two roles, so that softmax and copies of one tile run under the products of others:
//
//   score warps (two for each 32 rows), tile t                   value warps (kValueWarps), tile t
//   [1] wait for `full` of the stage                             [5] wait for kWeightsReady; acc = acc * factor + P V, a warp all
//   [2] S = Q K^T of 32 rows (or all 16), half the width             rows x kWarpValues columns; arrive at kWeightsRead for t + 2
//   [3] add the halves: each warp gets 16 rows (of 16 rows       [6] wait for each other (kValues); copy tile t + kStages into the
//       the first one gets all); scale and mask                      stage, eight lanes a key; `full` follows by itself
//   [4] wait for kWeightsRead; P = exp2(S - reference); arrive   [7] after the last tile (kItem): write the results
//       at kWeightsReady
//
// With kStages >= 4, but not over records, step [4] of t stands in parts between the products of step [2] of t + 1 (kInterleave).
//
// The two halves of the width are the even and the odd half lines of 64 bytes: an element of S is one sum over each, in order,
// then their sum. The reference of the softmax is the row's maximum, or an older one that is at most 2^8 below: most tiles then
// rescale nothing. Four lanes keep the sum of a row, each of its own keys in order. So a row's bits depend on kKeys and the cut,
// not on kRows or the number of warps.
//
// Barriers and what they order (`/2`: two of them, for even and odd tiles):
//   full[stage]       (mbarrier) copies of a tile, for the first one those of Q too, before their reads
//   kPair + i         sums of a pair of score warps written before read; Q kept in registers before P and sums lie there
//   kWeightsReady /2  P and factors of t written before read; [2] of t done before its stage is overwritten
//   kWeightsRead /2   P and factors of t read before those of t + 2 are written, sums of t read before those of t + 1
//   kValues           P V of t done by all value warps before its stage is overwritten
//   kItem             begin: an item written before read, the results of the one before written; end: row statistics written
//                     before read, all other shared memory read before the next item's copies
//
// Shared memory: Q kRows x kPitch, kStages key tiles of kKeys x kPitch, two times factors, row statistics, two items, a cursor for
// each score warp, mbarriers. A row of Q or K is Lk 16-bit numbers padded to whole 128-byte lines; its 16-byte chunks are swizzled
// by the row, so that ldmatrix meets no bank twice. Score warps keep the first kKept steps of Q, two lines of a row, in registers: line 0 then holds P of even
// and odd tiles, line 1 the sums that the other warp of the pair gives.
//
// Over 656-byte records (kRecords) a key tile has their numbers, exactly, without the scales, and behind it the scales, [group][key]. A
// group of columns is two lines. Its scales multiply the sum over them, in f32; and V in the registers of value warps, where it is rounded
// then. The reference of the softmax is the maximum itself, so that the weight of a key that decides a row is 1, and not rounded as well.
// Score warps have a second S, of a group, and keep no Q: P and sums have two lines a row of their own.
//
// Registers of a thread, at most 65536 / kThreads: value warps have acc kRows/16 * kWarpValues/8 * 4 (128 for 64 x 512), P
// kRows/16 * 4, V 4; score warps of 64 rows S 32, the scores of the tile before 16, kept Q 32 (over records: S of a group 32), fragments of
// two steps 32. Nothing else may stay in registers of value warps: hence items in shared memory and ptx::lane().
#pragma once

#include "cuda/launch.h"
#include "cuda/mma.cuh"
#include "cuda/part.cuh"
#include "cuda/ptx.cuh"
#include "cuda/result.cuh"
#include "cuda/schedule.cuh"
#include "cuda/sm80_block.cuh"
#include "cuda/sm80_scores.cuh"
#include "rules/merge.h"
#include "rules/number.h"
#include "rules/workspace.h"

namespace mlaverify::cuda {

// One of the warps that copy keys and have the accumulators. These leave few registers: an item stays in shared memory.
template <class C>
class Sm80ValueWarp {
  static constexpr int kColumnBlocks = C::kWarpValues / 8;

 public:
  __device__ __forceinline__ Sm80ValueWarp(const Launch &l, char *shared, int warp)
      : l_(l), p_(l.p), shared_(shared), warp_(warp) {}

  __device__ __forceinline__ void run() {
    for (int parity = 0;; parity ^= 1) {
      ptx::barrier_sync(kItem, C::kThreads);
      const Item &item = shared_items<C>(shared_)[parity];
      if (item.request < 0) return;
      run(item);
    }
  }

 private:
  __device__ __forceinline__ void run(const Item &item) {
    const int tiles = num_tiles<C>(item);
    if (tiles > 0) {
      load_queries(item);
      fetch_page(item, 0);
      if (C::kRawBytes > 0) copy_raw(item, 0);
    }
    clear();
    for (int t = 0; t < 2 && t < tiles; ++t) ptx::barrier_arrive(kWeightsRead + t, C::kThreads);
#pragma unroll 1
    for (int t = tiles > 0 ? -C::kStages : 0; t < tiles; ++t, ring_.next()) {
      const bool filled = t >= 0;
      if (filled) {
        ptx::barrier_sync(kWeightsReady + t % 2, C::kThreads);
        ptx::mbarrier_wait(full(ring_.stage), ring_.phase ^ 1);  // already so; tile t - kStages began the phase
        accumulate(t % 2, t + 2 < tiles);
      }
      if (t + C::kStages < tiles) {
        if (filled) ptx::barrier_sync(kValues, 32 * C::kValueWarps);
        load_tile(item, t + C::kStages, ring_.stage);
        if (C::kRawBytes > 0 && t + C::kStages + 1 < tiles) copy_raw(item, t + C::kStages + 1);
      }
    }
    if (tiles > 0) ring_.phase ^= 1;  // once around more than tiles
    page_ = -1;                       // takes no register from here on
    ptx::barrier_sync(kItem, C::kThreads);
    int32_t piece = item.piece;
    if (is_chunk(l_, item)) piece = merge_chunk(item);
    if (piece >= 0) {
      write_part(item, piece);
    } else {
      write_result(item);
    }
  }

  // What is computed from it is not kept in registers.
  __device__ __forceinline__ int warp() const { return static_cast<int>(ptx::not_hoisted(static_cast<uint32_t>(warp_))); }

  // ---- Loads ----

  // Row of a tile that this lane copies.
  __device__ __forceinline__ int warp_row() const { return warp() * C::kWarpLoads + ptx::lane() / 8; }

  // Of this lane.
  __device__ __forceinline__ int64_t key_of(const Item &item, int t) const {
    return item.key_begin + static_cast<int64_t>(t) * C::kKeys + warp_row();
  }

  __device__ __forceinline__ void load_queries(const Item &item) {
    const int32_t rows = rows_of(p_, item.request);
#pragma unroll 1
    for (int r = warp_row(); r < C::kRows; r += C::kWarpLoads * C::kValueWarps) {
      const int32_t row = item.row_tile * C::kRows + r;
      const char *from = nullptr;
      if (row < rows)
        from = static_cast<const char *>(p_.q) + rules::q_offset(p_, item.request, rules::unpack_row(row, p_.num_heads)) * 2;
      copy_rows<C>(shared_, r, from);
    }
  }

  // Looks up the page of this lane's key of tile t, one tile ahead of the copies. Only the load is here: whatever used its result
  // would wait for it.
  __device__ __forceinline__ void fetch_page(const Item &item, int t) {
    const int64_t key = key_of(item, t);
    const rules::Slot slot = rules::slot_of(static_cast<int32_t>(key), p_.page_size);
    offset_ = slot.offset;
    page_ = -1;
    if (key < item.key_end && slot.entry < p_.table_width) page_ = rules::page_id(p_, item.request, slot.entry);
  }

  // Address of this lane's key of tile t; looks up the page of the next one.
  __device__ __forceinline__ const char *next_key(const Item &item, int t) {
    // (Over records no register is left to keep the offset in.)
    const int32_t offset = C::kRecords ? rules::slot_of(static_cast<int32_t>(key_of(item, t)), p_.page_size).offset : offset_;
    const char *from = slot_address(p_, page_, offset);
    fetch_page(item, t + 1);
    return from;
  }

  __device__ __forceinline__ RawRecord<C> raw_record() const { return {shared_ + C::kOffsetRaw, warp() * 32 + ptx::lane()}; }
  __device__ __forceinline__ void copy_raw(const Item &item, int t) { raw_record().copy(next_key(item, t)); }

  __device__ __forceinline__ void load_tile(const Item &item, int t, int stage) {
    char *tile = shared_ + C::kOffsetK + stage * C::kStageBytes;
    if constexpr (C::kRawBytes > 0) {
      ptx::cp_async_wait_all();  // what the thread itself has copied
      widen_records<C>(tile, warp_row(), raw_record());
      ptx::mbarrier_arrive(full(stage));
      return;
    }
    const char *from = next_key(item, t);
    if constexpr (C::kRecords) {
      widen_records<C>(tile, warp_row(), CachedRecord{from});
      ptx::cp_async_wait_all();  // queries
      ptx::mbarrier_arrive(full(stage));
    } else if (rules::is_fp8(p_.kv_dtype)) {
      widen_rows<C>(tile, warp_row(), from, p_.kv_dtype == DType::f8_e4m3);
      ptx::cp_async_wait_all();  // queries
      ptx::mbarrier_arrive(full(stage));
    } else {
      copy_rows<C>(tile, warp_row(), from);
      ptx::mbarrier_arrive_after_copies(full(stage));
    }
  }

  __device__ __forceinline__ uint32_t full(int stage) const {
    return ptx::shared_address(shared_) + C::kOffsetFull + stage * 8;
  }

  // ---- One tile ----

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < C::kBlocks; ++m) {
#pragma unroll
      for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc_[m][j][i] = 0;
      }
    }
  }

  // [5].
  __device__ __forceinline__ void accumulate(int parity, bool again) {
    const auto *factors = reinterpret_cast<const float *>(shared_ + C::kOffsetFactors) + parity * C::kRows + ptx::lane() / 4;
    float factor[C::kBlocks][2];
    bool changed = false;
#pragma unroll
    for (int m = 0; m < C::kBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        factor[m][i] = factors[m * 16 + i * 8];
        changed = changed || factor[m][i] != 1.0f;
      }
    }
    if (__any_sync(~0u, changed)) {
#pragma unroll
      for (int m = 0; m < C::kBlocks; ++m) {
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) acc_[m][j][i] *= factor[m][i / 2];
        }
      }
    }
    const uint32_t p_at = ptx::shared_address(shared_) + C::kOffsetWeights +
                          swizzled<C::kWeightsPitch>(ptx::lane() % 16, parity * 4 + ptx::lane() / 16);
    const uint32_t tile = ptx::shared_address(shared_) + C::kOffsetK + ring_.stage * C::kStageBytes;
    const uint32_t v_at = tile + swizzled<C::kPitch>(ptx::lane() % 16, warp() * (C::kWarpValues / 8) + ptx::lane() / 16);
#pragma unroll
    for (int k = 0; k < C::kKeys / 16; ++k) {
      float2 scale[2];  // of this warp's columns of records, for the keys that the lane has of a fragment
      if constexpr (C::kRecords) {
        const int group = warp() * C::kWarpValues / rules::kRecordGroup;
#pragma unroll
        for (int i = 0; i < 2; ++i) scale[i] = load_scales<C>(tile, group, k * 16 + i * 8 + mma_col(ptx::lane(), 0));
      }
      uint32_t w[C::kBlocks][4];
#pragma unroll
      for (int m = 0; m < C::kBlocks; ++m) ptx::ldmatrix_x4(w[m], (p_at ^ k << 5) + m * 16 * C::kWeightsPitch);
      if (k == C::kKeys / 16 - 1 && again) ptx::barrier_arrive(kWeightsRead + parity, C::kThreads);
#pragma unroll
      for (int j = 0; j < kColumnBlocks; j += 2) {
        uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, (v_at ^ j << 4) + k * 16 * C::kPitch);  // chunk j of the warp's part of the line
        if constexpr (C::kRecords) {
#pragma unroll
          for (int i = 0; i < 4; ++i) b[i] = scaled<typename C::T>(b[i], scale[i % 2].x, scale[i % 2].y);
        }
#pragma unroll
        for (int m = 0; m < C::kBlocks; ++m) {
          C::T::mma(acc_[m][j], w[m], b[0], b[1]);
          C::T::mma(acc_[m][j + 1], w[m], b[2], b[3]);
        }
      }
    }
  }

  // ---- Results ----

  __device__ __forceinline__ float max_of(int row) const { return reinterpret_cast<float *>(shared_ + C::kOffsetMax)[row]; }
  __device__ __forceinline__ float sum_of(int row) const { return reinterpret_cast<float *>(shared_ + C::kOffsetSum)[row]; }
  __device__ __forceinline__ void set_state(int row, rules::SoftmaxState s) const {
    reinterpret_cast<float *>(shared_ + C::kOffsetMax)[row] = s.max;
    reinterpret_cast<float *>(shared_ + C::kOffsetSum)[row] = s.sum;
  }

  __device__ __forceinline__ Part part(const Item &item, int32_t piece) const {
    return {l_, rules::gpu_part_layout(C::kRows, C::kV, l_.part.pieces, false), {item.series, piece}};
  }

  // Calls f(row) for each row of the tile, shared out over the value warps' threads.
  template <class F>
  __device__ __forceinline__ void for_rows(const Item &item, F f) const {
    const int rows = rows_of_tile<C::kRows>(p_, item.request, item.row_tile);
#pragma unroll 1
    for (int r = warp() * 32 + ptx::lane(); r < rows; r += 32 * C::kValueWarps) f(r);
  }

  __device__ __forceinline__ void write_part(const Item &item, int32_t piece) {
    for_rows(item, [&](int r) { part(item, piece).set_state(r, {max_of(r), sum_of(r)}); });
    if (!has_acc(l_, item)) return;
    const Part part = this->part(item, piece);
    const int rows = rows_of_tile<C::kRows>(p_, item.request, item.row_tile);
#pragma unroll
    for (int m = 0; m < C::kBlocks; ++m) {
      if (m * 16 >= rows) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float4 *to = part.fragments(m * 16 + 8 * i, warp() * C::kWarpValues);
#pragma unroll
        for (int j = 0; j < kColumnBlocks; j += 2) {
          ptx::store_global_16(to + j / 2 * rules::kAccBlock, acc_[m][j][2 * i], acc_[m][j][2 * i + 1], acc_[m][j + 1][2 * i],
                               acc_[m][j + 1][2 * i + 1]);
        }
      }
    }
  }

  // Merges what lies in the place of a piece and acc. The factors of both lie where those of the tiles did.
  __device__ __forceinline__ void merge_part(const Item &item, int32_t piece) {
    auto *factors = reinterpret_cast<float *>(shared_ + C::kOffsetFactors);
    const int rows = rows_of_tile<C::kRows>(p_, item.request, item.row_tile);
#pragma unroll 1
    for (int r = warp() * 32 + ptx::lane(); r < C::kRows; r += 32 * C::kValueWarps) {
      const rules::MergeStep m = merge_in_log2(r < rows ? part(item, piece).state(r) : kNoKeys, {max_of(r), sum_of(r)});
      factors[r] = m.a;
      factors[C::kRows + r] = m.b;
      set_state(r, m.merged);
    }
    ptx::barrier_sync(kValues, 32 * C::kValueWarps);
    const Part part = this->part(item, piece);
#pragma unroll
    for (int m = 0; m < C::kBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float *factor = factors + static_cast<int>(ptx::not_hoisted(m * 16 + mma_row(ptx::lane(), 2 * i)));
        const rules::MergeStep step = {factor[0], factor[C::kRows], {}};
        const float4 *from = part.fragments(m * 16 + 8 * i, warp() * C::kWarpValues);
#pragma unroll
        for (int j = 0; j < kColumnBlocks; j += 2) {
          const float4 x = ptx::load_global_16(from + j / 2 * rules::kAccBlock, step.a != 0.0f);
          acc_[m][j][2 * i] = merged(step, x.x, acc_[m][j][2 * i]);
          acc_[m][j][2 * i + 1] = merged(step, x.y, acc_[m][j][2 * i + 1]);
          acc_[m][j + 1][2 * i] = merged(step, x.z, acc_[m][j + 1][2 * i]);
          acc_[m][j + 1][2 * i + 1] = merged(step, x.w, acc_[m][j + 1][2 * i + 1]);
        }
      }
    }
    ptx::barrier_sync(kValues, 32 * C::kValueWarps);
  }

  __device__ __forceinline__ int32_t merge_chunk(const Item &item) {
    return cuda::merge_chunk(
        item, [&](int32_t left) { merge_part(item, left); },
        [&](int32_t piece) { for_rows(item, [&](int r) { part(item, piece).set_state(r, kNoKeys); }); });
  }

  __device__ __forceinline__ void write_result(const Item &item) {
    const float out_scale = p_.k_scale != nullptr ? *p_.k_scale : 1.0f;
    const int32_t rows = rows_of(p_, item.request);
    const int32_t first = item.row_tile * C::kRows;
    for (int r = warp() * 32 + ptx::lane(); r < C::kRows && first + r < rows; r += 32 * C::kValueWarps) {
      const rules::Row row = rules::unpack_row(first + r, p_.num_heads);
      p_.lse[rules::lse_offset(p_, item.request, row)] = lse_of(row_state(item, row, r));
    }
#pragma unroll
    for (int m = 0; m < C::kBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = m * 16 + mma_row(ptx::lane(), 2 * i);
        if (first + r >= rows) continue;
        const rules::Row row = rules::unpack_row(first + r, p_.num_heads);
        const float scale = row_scale(row_state(item, row, r), out_scale);
        auto *to =
            static_cast<typename C::T::Element *>(p_.out) + rules::out_offset(p_, item.request, row) + warp() * C::kWarpValues;
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
          *reinterpret_cast<uint32_t *>(to + j * 8 + mma_col(ptx::lane(), 0)) =
              C::T::pack(acc_[m][j][2 * i] * scale, acc_[m][j][2 * i + 1] * scale);
        }
      }
    }
  }

  __device__ __forceinline__ RowState row_state(const Item &item, rules::Row row, int r) const {
    return {{max_of(r), sum_of(r)}, rules::visible_keys(p_, item.request, row.token) > 0};
  }

  const Launch &l_;
  const Problem &p_;
  char *shared_;
  const int warp_;
  Ring<C::kStages> ring_;
  int32_t page_ = -1, offset_ = 0;
  float acc_[C::kBlocks][kColumnBlocks][4];
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kResident) verify_sm80_kernel(const __grid_constant__ Launch l) {
  extern __shared__ __align__(128) char shared[];
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i)
      ptx::mbarrier_init(ptx::shared_address(shared) + C::kOffsetFull + i * 8, 32 * C::kValueWarps);
  }
  __syncthreads();
  ptx::wait_for_previous_grid();
  ptx::launch_dependents();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  if (warp < C::kScoreWarps) {
    Sm80ScoreWarp<C> role(l, shared, warp);
    const Items<C::kRows> items(l);
    // The cursor of each warp lies in shared memory meanwhile, where it takes no registers.
    ItemCursor *kept = reinterpret_cast<ItemCursor *>(shared + C::kOffsetCursors) + warp;
    ItemCursor cursor = items.begin();
    for (Item item; items.next(&cursor, &item); cursor = *kept) {
      __syncwarp();  // all lanes have read it
      if (threadIdx.x % 32 == 0) *kept = cursor;
      __syncwarp();
      role.run(item);
    }
    role.publish({-1, 0, 0, 0, 0, 0});
  } else {
    Sm80ValueWarp<C>(l, shared, warp - C::kScoreWarps).run();
  }
}

}  // namespace mlaverify::cuda
