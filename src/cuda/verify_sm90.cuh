// The Hopper kernel (sm_90a): wgmma, fed by the copy engine where pages and tiles fit each other, by cp.async elsewhere.
// docs/hopper-kernel.md says why it is so.
//
// A block of three warpgroups takes one tile of 64 packed rows over one range of keys at a time (schedule.cuh), 64 keys a tile.
// Warpgroup 2 walks the schedule and copies; 0 and 1 compute. Group t % 2 owns tile t: it has the tile's scores and softmax. Of
// the values each group has half of the columns, for every tile.
//
//   copies, tile t in stage t % 2     wait for the parts of the stage to be empty; copy by boxes of the copy engine, or one 16-byte
//                                     cp.async a chunk; "full" completes with the copies
//   the owner of tile t, step t
//     [1] wait for P(t-1) and its reference, of the other group; rescale O if it moved; O += P(t-1) V, P from shared memory;
//         arrive at "values empty" of tile t-1
//     [2] wait for "full" of tile t; S = Q K^T; arrive at "keys empty" of tile t. What is there first of [1] and [2] is issued
//         first; if it is [2], the softmax lies under [1]
//     [3] scale, mask in boundary tiles; row maxima; new reference; P(t) = exp2(S - reference), row sums
//     [4] P(t) and the reference to shared memory, for the other group
//     [5] rescale O if the reference moved; O += P(t) V, P from registers; arrive at "values empty" of tile t
//
// The reference of the softmax is the row's maximum, or an older one that is at most 2^8 below: most tiles then rescale nothing.
//
// Barriers           kind         arrivals             orders
//   full[2]          mbarrier     1 + bytes, or 128    the copies of a tile before its products
//                                 copying
//   keys empty[2]    mbarrier     4 warps: the owner   the scores of a tile before the blocks of its stage that are no values are
//                                                      overwritten
//   values empty     mbarrier     4 warps of a group   the group's values before its half of the stage's is overwritten
//    [2][2 groups]
//   item             mbarrier     1 copying            the item's place and keys written before read, in slot i % 2 for item i
//   q full           mbarrier     128 copying          the copies of an item's queries before its products
//   q empty          mbarrier     8 warps              the products of an item before its queries are overwritten, and that all
//                                                      warps are done with the item before, whose slot is next
//   weights[2]       mbarrier     128: the owner       P(t) and the reference written before read. They are overwritten by their
//                                                      reader, as P(t+1), after its [1]
//   sums             named, 256   groups 0, 1          row sums written before read; P of one item read before that of the next is
//                                                      written
//   group 0, 1       named, 128   a group              what comes first agreed on; cleared values written before read
//
// Shared memory, in blocks of 64 rows or keys x 64 columns (8 KB, swizzled): Q Lk/64, two tiles Lk/64 each, P 1; then references
// [64], row sums [2][64], items, barriers. 225 KB for Lk 576: one block a multiprocessor.
// Registers: the launch gives 168 a thread; 216 a computing one (O 128, S 32, P 16), 72 a copying one.
#pragma once

#include <type_traits>

#include "cuda/launch.h"
#include "cuda/mma.cuh"
#include "cuda/ptx.cuh"
#include "cuda/result.cuh"
#include "cuda/schedule.cuh"
#include "cuda/sm90_copies.cuh"
#include "cuda/wgmma.cuh"
#include "rules/workspace.h"

namespace mlaverify::cuda {

// One of the computing warpgroups.
template <class C>
class Sm90Products {
 public:
  __device__ __forceinline__ Sm90Products(const Launch &l, char *shared, Sm90Barriers<C> barriers, int group)
      : l_(l), p_(l.p), shared_(shared), barriers_(barriers), group_(group) {
    const float k_scale = p_.k_scale != nullptr ? *p_.k_scale : 1.0f;
    out_scale_ = k_scale;
    scale_log2_ = p_.sm_scale * k_scale * 1.4426950408889634f;
  }

  // Until there are no more items.
  __device__ __forceinline__ void run() {
    for (uint32_t items = 0, with_keys = 0;; ++items) {
      ptx::mbarrier_wait(barriers_.item(), items % 2);
      const volatile Item &item = reinterpret_cast<const volatile Item *>(shared_ + C::kOffsetItems)[items % 2];
      if (item.request == Sm90Copies<C>::kNoMore) return;
      with_keys += run(item, with_keys % 2) ? 1 : 0;
    }
  }

 private:
  // `item` stays in shared memory, where it takes no registers. Returns whether it has keys.
  __device__ __forceinline__ bool run(const volatile Item &item, uint32_t q_parity) {
    const int tiles = tiles_of<C>(item.key_begin, item.key_end);
    float o[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] = 0.0f;
    sum_[0] = sum_[1] = 0.0f;
    max_[0] = max_[1] = kMinusInf;
    if (tiles > 0) {
      set_limits(item);
      ptx::mbarrier_wait(barriers_.q_full(), q_parity);
      ptx::fence_proxy_async();
      for (int t = group_; t < tiles; t += 2) {
        float s[32];
        uint32_t weights[16];
        float alpha[2];
        if (t > 0 && scores_first(t)) {
          wait_for_tile(t);
          issue_scores(s, t);
          issue_values_of_other(o, t - 1, item.key_end - item.key_begin);
          wgmma_wait<1>();
          release(barriers_.keys_empty(stage(t)));
          softmax(item.key_begin + t * C::kKeys, s, weights, alpha);
          wgmma_wait<0>();
          release_values(t - 1);
        } else {
          if (t > 0) {
            issue_values_of_other(o, t - 1, item.key_end - item.key_begin);
            wgmma_wait<0>();
            release_values(t - 1);
          }
          wait_for_tile(t);
          issue_scores(s, t);
          wgmma_wait<0>();
          release(barriers_.keys_empty(stage(t)));
          softmax(item.key_begin + t * C::kKeys, s, weights, alpha);
        }
        if (t + 2 >= tiles) release(barriers_.q_empty());
        hand_over(weights);
        rescale(o, alpha);
        clear_unused_values(t, item.key_end - item.key_begin);
        issue_own_values(o, weights, t);
        wgmma_wait<0>();
        release_values(t);
      }
      if ((tiles - 1) % 2 != group_) {
        if (tiles == 1) release(barriers_.q_empty());
        issue_values_of_other(o, tiles - 1, item.key_end - item.key_begin);
        wgmma_wait<0>();
        release_values(tiles - 1);
      }
      tiles_ += tiles;
      add_sums();
    } else {
      release(barriers_.q_empty());
    }
    if (item.part >= 0) {
      write_part(item, o);
    } else {
      write_result(item, o);
    }
    return tiles > 0;
  }

  static constexpr int kBarrierSums = 1, kBarrierGroup = 2;  // named; of both groups, and 2 and 3 of one group
  static constexpr float kSlack = 8.0f;                      // log2 units: weights up to 256 fit f16 and lose nothing in bf16

  // Of tile t of the item.
  __device__ __forceinline__ int stage(int t) const { return static_cast<int>((tiles_ + t) % C::kStages); }

  // Calls issue(stage of tile t) with a constant, so that descriptors stay in uniform registers, where wgmma takes them from.
  template <class Issue>
  __device__ __forceinline__ void with_stage(int t, Issue issue) const {
    if (stage(t) == 0) {
      issue(std::integral_constant<int, 0>());
    } else {
      issue(std::integral_constant<int, 1>());
    }
  }

  // Row i (0, 1) of this thread, of the tile.
  __device__ __forceinline__ int row_of(int i) const { return warp_ * 16 + mma_row(lane_, 2 * i); }

  __device__ __forceinline__ void set_limits(const volatile Item &item) {
    const int64_t first = item.row_tile * static_cast<int64_t>(C::kRows);
    seen_by_all_ = rules::visible_keys(p_, item.request, rules::unpack_row(first, p_.num_heads).token);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t row = first + row_of(i);
      const bool inside = row < rules::request_rows(p_, item.request);
      limit_[i] = inside ? rules::visible_keys(p_, item.request, rules::unpack_row(row, p_.num_heads).token) : 0;
    }
  }

  __device__ __forceinline__ void wait_for_tile(int t) const {
    ptx::mbarrier_wait(barriers_.full(stage(t)), (tiles_ + t) / C::kStages % 2);
    if (l_.box_keys == 0) ptx::fence_proxy_async();
  }

  __device__ __forceinline__ void group_barrier() const { ptx::barrier_sync(kBarrierGroup + group_, C::kGroup); }

  // Of [1] and [2], what comes first: waits until tile t or P(t-1) is here. The same answer for all warps of the group, which have to
  // issue their products in the same order. (It is read by all before it can be written again: that takes their weights.)
  __device__ __forceinline__ bool scores_first(int t) const {
    auto *answer = reinterpret_cast<volatile int *>(shared_ + C::kOffsetAnswer) + group_;
    if (warp_ == 0) {
      bool here;
      do {
        here = ptx::mbarrier_test(barriers_.full(stage(t)), (tiles_ + t) / C::kStages % 2);
      } while (!here && !ptx::mbarrier_test(barriers_.weights(group_ ^ 1), weights_of_other_ % 2));
      if (lane_ == 0) *answer = here ? 1 : 0;
    }
    group_barrier();
    return __any_sync(~0u, *answer != 0);
  }

  // Copied boxes hold whatever lies behind the keys that some row sees, and 0 * NaN would be NaN: in the last tile of an item of
  // `keys` keys, zeros to what is unused of this group's columns.
  __device__ __forceinline__ void clear_unused_values(int t, int keys) const {
    const int used = keys - t * C::kKeys;
    if (used >= C::kKeys) return;
    char *columns = shared_ + C::kOffsetK + stage(t) * C::kTileBytes + group_ * (C::kGroupValues / 64) * C::kBlockBytes;
    for (int i = used * 8 + threadIdx.x % C::kGroup; i < C::kKeys * 8; i += C::kGroup) {
#pragma unroll
      for (int b = 0; b < C::kGroupValues / 64; ++b)
        *reinterpret_cast<uint4 *>(columns + b * C::kBlockBytes + i * 16) = uint4{0, 0, 0, 0};
    }
    ptx::fence_proxy_async();
    group_barrier();
  }

  // This warp no longer reads what `barrier` guards.
  __device__ __forceinline__ void release(uint32_t barrier) const {
    if (lane_ == 0) ptx::mbarrier_arrive(barrier);
  }

  __device__ __forceinline__ void release_values(int t) const { release(barriers_.values_empty(stage(t), group_)); }

  // [2] S = Q K^T.
  __device__ __forceinline__ void issue_scores(float (&s)[32], int t) const {
    with_stage(t, [&](auto stage) {
      wgmma_fence();
      const uint32_t base = ptx::not_hoisted(ptx::shared_address(shared_));
      const uint64_t q = k_major(base), k = k_major(base + C::kOffsetK + decltype(stage)::value * C::kTileBytes);
#pragma unroll
      for (int d = 0; d < C::kQk / 16; ++d) {
        const uint64_t step = (d / 4 * C::kBlockBytes + d % 4 * 32) >> 4;
        Wgmma<typename C::T>::scores(s, q + step, k + step, d == 0);
      }
      wgmma_commit();
    });
  }

  // V of this group's columns, keys 16 k ... of a stage.
  __device__ __forceinline__ uint64_t values_at(uint32_t base, int stage, int k) const {
    const uint32_t block = base + C::kOffsetK + stage * C::kTileBytes + group_ * (C::kGroupValues / 64) * C::kBlockBytes;
    return mn_major(block, C::kBlockBytes) + (k * 16 * 128 >> 4);
  }

  // [1].
  __device__ __forceinline__ void issue_values_of_other(float (&o)[128], int t, int keys) {
    ptx::mbarrier_wait(barriers_.weights(group_ ^ 1), weights_of_other_++ % 2);
    const auto *references = reinterpret_cast<const float *>(shared_ + C::kOffsetReference);
    float alpha[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) alpha[i] = move_reference(i, references[row_of(i)]);
    rescale(o, alpha);
    clear_unused_values(t, keys);
    wgmma_fence();
    const uint32_t base = ptx::not_hoisted(ptx::shared_address(shared_));
    const uint64_t p = k_major(base + C::kOffsetP);
#pragma unroll
    for (int k = 0; k < C::kKeys / 16; ++k) Wgmma<typename C::T>::values(o, p + (k * 32 >> 4), values_at(base, stage(t), k));
    wgmma_commit();
  }

  // [5].
  __device__ __forceinline__ void issue_own_values(float (&o)[128], const uint32_t (&weights)[16], int t) const {
    wgmma_fence();
    const uint32_t base = ptx::not_hoisted(ptx::shared_address(shared_));
#pragma unroll
    for (int k = 0; k < C::kKeys / 16; ++k) Wgmma<typename C::T>::values(o, weights + 4 * k, values_at(base, stage(t), k));
    wgmma_commit();
  }

  // Moves row i to another reference; returns what its sums are to be multiplied with. (-inf - -inf is NaN.)
  __device__ __forceinline__ float move_reference(int i, float now) {
    const float alpha = ptx::exp2_approx(max_[i] - finite(now));
    max_[i] = now;
    sum_[i] *= alpha;
    return alpha;
  }

  // What is subtracted from scores: no key yet, or all scores -inf: weights 0, not NaN.
  static __device__ __forceinline__ float finite(float reference) { return reference == kMinusInf ? 0.0f : reference; }

  __device__ __forceinline__ void rescale(float (&o)[128], const float (&alpha)[2]) const {
    if (!__any_sync(~0u, alpha[0] != 1.0f || alpha[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] *= alpha[i / 2 % 2];
  }

  // [3]: weights of the tile that begins at `first_key`, packed by two as A operands of four products, and what O is to be
  // multiplied with.
  __device__ __forceinline__ void softmax(int32_t first_key, float (&s)[32], uint32_t (&weights)[16], float (&alpha)[2]) {
    float scale = scale_log2_;
    if (!(scale > 0)) {  // so that maxima can be taken before they are scaled, and -inf stays what it is
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] *= scale;
      scale = 1.0f;
    }
    if (first_key + C::kKeys > seen_by_all_) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if (first_key + i / 4 * 8 + mma_col(lane_, i % 4) >= limit_[i / 2 % 2]) s[i] = kMinusInf;
      }
    }
    float largest[2] = {kMinusInf, kMinusInf};
#pragma unroll
    for (int i = 0; i < 32; ++i) largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], s[i]);
    float reference[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      largest[i] = fmaxf(largest[i], __shfl_xor_sync(~0u, largest[i], 1));
      largest[i] = fmaxf(largest[i], __shfl_xor_sync(~0u, largest[i], 2));
      // It moves only if weights would grow beyond 2^kSlack.
      const float now = fmaxf(max_[i], largest[i] * scale);
      alpha[i] = move_reference(i, now - max_[i] <= kSlack ? max_[i] : now);
      reference[i] = finite(max_[i]);
    }
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const int r = i / 2 % 2;
      const float low = ptx::exp2_approx(__fmaf_rn(s[i], scale, -reference[r]));
      const float high = ptx::exp2_approx(__fmaf_rn(s[i + 1], scale, -reference[r]));
      weights[i / 2] = C::T::pack(low, high);
      sum_[r] += low + high;
    }
  }

  // [4].
  __device__ __forceinline__ void hand_over(const uint32_t (&weights)[16]) const {
    auto *references = reinterpret_cast<float *>(shared_ + C::kOffsetReference);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int row = row_of(i % 2), chunk = i / 2;
      *reinterpret_cast<uint32_t *>(shared_ + C::kOffsetP + row * 128 + ((chunk ^ row % 8) << 4) + lane_ % 4 * 4) = weights[i];
    }
    if (lane_ % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) references[row_of(i)] = max_[i];
    }
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(barriers_.weights(group_));
  }

  // The sums of whole rows, from those of the threads.
  __device__ __forceinline__ void add_sums() {
    auto *sums = reinterpret_cast<float *>(shared_ + C::kOffsetSum);  // [2][kRows]
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum_[i] += __shfl_xor_sync(~0u, sum_[i], 1);
      sum_[i] += __shfl_xor_sync(~0u, sum_[i], 2);
      if (lane_ % 4 == 0) sums[group_ * C::kRows + row_of(i)] = sum_[i];
    }
    ptx::barrier_sync(kBarrierSums, 2 * C::kGroup);
#pragma unroll
    for (int i = 0; i < 2; ++i) sum_[i] = sums[row_of(i)] + sums[C::kRows + row_of(i)];
  }

  // ---- Results ----

  __device__ __forceinline__ void write_part(const volatile Item &item, const float (&o)[128]) const {
    const rules::GpuPartLayout part = rules::gpu_part_layout(C::kRows, C::kV);
    float *to = l_.parts + item.part * part.size;
    if (group_ == 0 && lane_ % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        to[part.max + row_of(i)] = max_[i];
        to[part.sum + row_of(i)] = sum_[i];
      }
    }
    if (item.key_begin == item.key_end) return;  // weighs nothing: acc is not looked at
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float *row = to + part.acc + row_of(i) * C::kV + group_ * C::kGroupValues;
#pragma unroll
      for (int j = 0; j < C::kGroupValues / 8; ++j)
        *reinterpret_cast<float2 *>(row + j * 8 + mma_col(lane_, 0)) = {o[4 * j + 2 * i], o[4 * j + 2 * i + 1]};
    }
  }

  __device__ __forceinline__ void write_result(const volatile Item &item, const float (&o)[128]) const {
    const int64_t first = item.row_tile * static_cast<int64_t>(C::kRows);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (first + row_of(i) >= rules::request_rows(p_, item.request)) continue;
      const rules::Row row = rules::unpack_row(first + row_of(i), p_.num_heads);
      const RowState state = {{max_[i], sum_[i]}, rules::visible_keys(p_, item.request, row.token) > 0};
      if (group_ == 0 && lane_ % 4 == 0) p_.lse[rules::lse_offset(p_, item.request, row)] = lse_of(state);
      const float scale = row_scale(state, out_scale_);
      auto *to =
          static_cast<typename C::T::Element *>(p_.out) + rules::out_offset(p_, item.request, row) + group_ * C::kGroupValues;
#pragma unroll
      for (int j = 0; j < C::kGroupValues / 8; ++j) {
        *reinterpret_cast<uint32_t *>(to + j * 8 + mma_col(lane_, 0)) =
            C::T::pack(o[4 * j + 2 * i] * scale, o[4 * j + 2 * i + 1] * scale);
      }
    }
  }

  const Launch &l_;
  const Problem &p_;
  char *const shared_;
  const Sm90Barriers<C> barriers_;
  const int group_, warp_ = threadIdx.x / 32 % 4, lane_ = threadIdx.x % 32;
  float scale_log2_, out_scale_;
  int32_t seen_by_all_ = 0, limit_[2] = {0, 0};
  float max_[2], sum_[2];          // of this thread's rows: the reference, and the sum over its own keys until add_sums()
  uint32_t tiles_ = 0;             // of the items so far
  uint32_t weights_of_other_ = 0;  // taken over so far
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) verify_sm90_kernel(const __grid_constant__ Launch l) {
  extern __shared__ __align__(1024) char sm90_shared[];
  ptx::launch_dependents();
  const Sm90Barriers<C> barriers = {ptx::shared_address(sm90_shared) + C::kOffsetBarriers};
  if (threadIdx.x == 0) barriers.init(l.box_keys > 0);
  __syncthreads();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / C::kGroup, 0);
  if (group == 2) {
    ptx::give_registers<C::kCopyRegisters>();
    Sm90Copies<C> copies(l, sm90_shared, barriers);
    for_each_item<C::kRows, C::kKeys>(l, 2 * C::kGroup, [&](const Item &item) { copies.run(item); });
    copies.finish();
  } else {
    ptx::take_registers<C::kComputeRegisters>();
    Sm90Products<C> products(l, sm90_shared, barriers, group);
    products.run();
  }
}

}  // namespace mlaverify::cuda
