// The Hopper kernel (sm_90a): wgmma, fed by the copy engine where pages and tiles fit each other, by cp.async elsewhere.
// docs/hopper-kernel.md says why it is so.
//
// A block of three warpgroups takes one tile of 64 packed rows over one range of keys at a time (schedule.cuh), 64 keys a tile.
// Warpgroup 2 walks the schedule and copies keys; 0 and 1 compute. Group t % 2 owns tile t of an item, in stage t % 2: it has the
// tile's scores and softmax. Of the values each group has half of the columns, for every tile.
//
//   copies, tile t                    a warp for each part of the tile: wait until it is empty, copy by boxes of the copy engine; or all
//                                     four one part after the other, 16 bytes a thread (cp.async). "full" completes with the copies
//   the owner of tile t, step t
//     [1] wait for P(t-1) of the other group; rescale O if its reference moved; O += P(t-1) V; values of t-1 empty
//     [2] S = Q K^T, each half part as it arrives; "part 0 empty" of tile t
//     [3] scale, mask in boundary tiles; row maxima; wait for the reference of t-1; new reference, told to the other group at once
//     [4] P(t) = exp2(S - reference), row sums; P(t) to shared memory, for the other group
//     [5] rescale O if the reference moved; O += P(t) V; values of t empty
//
// Group 0 does [1] before [2]. Group 1 issues [1] between [3] and [4], so that the weights are computed under these products; the scores
// of each group lie over the softmax of the other (docs/hopper-kernel.md).
//
// Two blocks of a row group that have neighbouring row tiles of a request form a cluster and take the same items in step. Each copies
// half of every tile, to both (multicast); a part is empty when both have said so to both.
//
// The reference of the softmax is the row's maximum, or an older one that is at most 2^8 below: most tiles then rescale nothing.
//
// Barriers           kind         arrivals             orders
//   full[2][5]       mbarrier     1 + bytes, or 128    the copies of a half part before its products
//                                 copying
//   empty[2][3]      mbarrier     4 warps of a group,  the products that read a part before it is overwritten: of part 0 the owner's
//                                 of each of a pair    scores, of part 1 + g the values of group g
//   item full[2]     mbarrier     1 copying            the item's place and keys written before read, in slot i % 2 for item i
//   item empty[2]    mbarrier     8 warps              all warps done with an item before its slot is written again
//   reference[2]     mbarrier     4 warps: the owner   the references of t written before read; overwritten, by t+2, after those of t+1,
//                                                      which are written behind that, have been read
//   weights[2]       mbarrier     4 warps: the owner   P(t) written before read; overwritten likewise, as P(t+1), after [1]
//   both             named, 256   groups 0, 1          results of an item that lie on Q, and row sums, read before the next queries are copied
//                                                      and sums written; queries before read; products with Q done, and row sums written, before read; a partial
//                                                      result written before it is merged, and read before it is overwritten
//   group 0, 1       named, 128   a group              cleared values written before read
//   cluster          hardware     a pair               barriers set up before the first copy; all copies and arrivals from the other
//                                                      block over before a block ends
//
// Shared memory, in blocks of 64 rows or keys x 64 columns (8 KB, swizzled): Q Lk/64 (results at the end of an item), two tiles Lk/64
// each, P 1; then references [2][64], row sums [2][64], items, barriers. 225 KB for Lk 576: one block a multiprocessor.
// Registers: the launch gives 168 a thread; 216 a computing one (O 128, S 32, P 16 twice), 72 a copying one.
#pragma once

#include "cuda/launch.h"
#include "cuda/mma.cuh"
#include "cuda/part.cuh"
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
    receive_items(
        shared_ + C::kOffsetItems, barriers_, [this](const volatile Item &item) { run(item); },
        [this](uint32_t barrier) { release(barrier); });
  }

 private:
  __device__ __forceinline__ void run(const volatile Item &item) {
    const int tiles = tiles_of<C>(item.key_begin, item.key_end);
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);  // both are done with the item before
    if (tiles > 0 && !same_rows(item)) copy_queries(item);
    float o[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] = 0.0f;
    sum_[0] = sum_[1] = 0.0f;
    max_[0] = max_[1] = kMinusInf;
    if (tiles > 0) {
      const int keys = item.key_end - item.key_begin;
      if (!same_rows(item)) {
        set_limits(item);
        wait_for_queries();
      }
      // One step more than there are own tiles, where the last tile is the other group's.
#pragma unroll 1
      for (int t = group_; t <= tiles; t += 2) {
        float s[32];
        uint32_t weights[16], weights_of_other[16];
        float largest[2], reference[2], alpha[2], alpha_of_other[2];
        if (group_ == 1 && t < tiles) {
          issue_scores(s);
          wgmma_wait<0>();
          release_part(group_, 0);
          take_maxima(item.key_begin + t * C::kKeys, s, largest);
          take_over_reference(alpha_of_other);
          move_on(largest, reference, alpha);
          issue_values_of_other(o, alpha_of_other, weights_of_other, keys - (t - 1) * C::kKeys);
          take_weights(s, reference, weights);
          hand_over(weights);
          wgmma_wait<0>();
          release_part(group_ ^ 1, 1 + group_);
        } else {
          if (t > 0) {
            take_over_reference(alpha_of_other);
            issue_values_of_other(o, alpha_of_other, weights_of_other, keys - (t - 1) * C::kKeys);
            wgmma_wait<0>();
            release_part(group_ ^ 1, 1 + group_);
          }
          if (t == tiles) break;
          issue_scores(s);
          wgmma_wait<0>();
          release_part(group_, 0);
          take_maxima(item.key_begin + t * C::kKeys, s, largest);
          move_on(largest, reference, alpha);
          take_weights(s, reference, weights);
          hand_over(weights);
        }
        rescale(o, alpha);
        clear_unused_values(group_, keys - t * C::kKeys);
        issue_values(o, weights, group_);
        wgmma_wait<0>();
        release_part(group_, 1 + group_);
      }
      add_sums();
    }
    int32_t piece = item.piece;
    if (is_chunk(l_, item)) piece = merge_chunk(item, o);
    if (piece >= 0) {
      write_part(item, piece, o);
    } else {
      write_result(item, o);
    }
  }

  static constexpr int kBarrierBoth = 1, kBarrierGroup = 2;  // named; of both groups, and 2 and 3 of one group
  static constexpr float kSlack = 8.0f;                      // log2 units: weights up to 256 fit f16 and lose nothing in bf16

  // Row i (0, 1) of this thread, of the tile.
  __device__ __forceinline__ int row_of(int i) const { return warp_ * 16 + mma_row(lane_, 2 * i); }

  __device__ __forceinline__ void set_limits(const volatile Item &item) {
    const int32_t first = item.row_tile * C::kRows;
    seen_by_all_ = rules::visible_keys(p_, item.request, rules::unpack_row(first, p_.num_heads).token);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t row = first + row_of(i);
      const bool inside = row < rows_of(p_, item.request);
      limit_[i] = inside ? rules::visible_keys(p_, item.request, rules::unpack_row(row, p_.num_heads).token) : 0;
    }
  }

  // As in the item before. (Its results, if they went by way of Q, would be the last of these rows.)
  __device__ __forceinline__ bool same_rows(const volatile Item &item) const { return item.chunk > item.first_chunk; }

  // Eight rows a warp.
  __device__ __forceinline__ void copy_queries(const volatile Item &item) const {
    constexpr int kWarpRows = C::kRows / 8;
    const int first = (group_ * 4 + warp_) * kWarpRows;
    const int32_t row = item.row_tile * C::kRows + first + lane_;
    const char *mine = nullptr;
    if (lane_ < kWarpRows && row < rows_of(p_, item.request))
      mine = static_cast<const char *>(p_.q) + rules::q_offset(p_, item.request, rules::unpack_row(row, p_.num_heads)) * 2;
    const uint32_t to = ptx::shared_address(shared_) + first * 128;
#pragma unroll 1
    for (int b = 0; b < C::kValueBlocks; b += 4) copy_columns<kWarpRows, 4>(mine, to + b * C::kBlockBytes, b * 128);
    if constexpr (C::kRopeBlocks > 0)
      copy_columns<kWarpRows, 1>(mine, to + C::kValueBlocks * C::kBlockBytes, C::kValueBlocks * 128);
  }

  __device__ __forceinline__ void wait_for_queries() const {
    ptx::cp_async_wait_all();
    ptx::fence_proxy_async();
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
  }

  // Copied boxes hold whatever lies behind the keys that some row sees, and 0 * NaN would be NaN: zeros to what is
  // unused of this group's columns in a tile of which `keys` keys are used.
  __device__ __forceinline__ void clear_unused_values(int stage, int keys) const {
    if (keys >= C::kKeys) return;
    const auto thread = static_cast<int>(ptx::not_hoisted(threadIdx.x) % C::kGroup);
    char *columns = shared_ + C::kOffsetK + stage * C::kTileBytes + group_ * C::kGroupBlocks * C::kBlockBytes;
#pragma unroll 1
    for (int i = keys * 8 + thread; i < C::kKeys * 8; i += C::kGroup) {
#pragma unroll
      for (int b = 0; b < C::kGroupBlocks; ++b)
        *reinterpret_cast<uint4 *>(columns + b * C::kBlockBytes + i * 16) = uint4{0, 0, 0, 0};
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(kBarrierGroup + group_, C::kGroup);
  }

  // This warp no longer reads what `barrier` guards.
  __device__ __forceinline__ void release(uint32_t barrier) const {
    if (lane_ == 0) ptx::mbarrier_arrive(barrier);
  }

  // Nor a part of a tile; the blocks of a pair tell each other.
  __device__ __forceinline__ void release_part(int stage, int part) const {
    if (lane_ < l_.pair) ptx::mbarrier_arrive_at(barriers_.empty(stage, part), lane_);
  }

  // Of half `half` of a part, of `blocks` blocks, as soon as it is there.
  template <int blocks, bool begin>
  __device__ __forceinline__ void issue_scores(float (&s)[32], uint32_t q, uint32_t k, int part, int half) const {
    ptx::mbarrier_wait(barriers_.full(group_, part, half), own_tiles_ % 2);
    if (l_.box_keys == 0) ptx::fence_proxy_async();
    wgmma_fence();
    const uint32_t at = (C::first_block(part) + half * blocks) * C::kBlockBytes >> 4;
#pragma unroll
    for (int i = 0; i < 4 * blocks; ++i) {
      const uint32_t step = at + ((i / 4 * C::kBlockBytes + i % 4 * 32) >> 4);
      Wgmma<typename C::T>::scores(s, q + step, k + step, begin && i == 0);
    }
  }

  // [2] S = Q K^T of the next own tile; last the values of the other group, which arrive last.
  __device__ __forceinline__ void issue_scores(float (&s)[32]) {
    constexpr bool kRope = C::kRopeBlocks > 0;
    constexpr int kHalf = C::kGroupBlocks / 2;
    const uint32_t base = ptx::not_hoisted(ptx::shared_address(shared_));
    const uint32_t q = k_major(base), k = k_major(base + C::kOffsetK + group_ * C::kTileBytes);
    if constexpr (kRope) issue_scores<C::kRopeBlocks, true>(s, q, k, 0, 0);
    issue_scores<kHalf, !kRope>(s, q, k, 1 + group_, 0);
    issue_scores<kHalf, false>(s, q, k, 1 + group_, 1);
    issue_scores<kHalf, false>(s, q, k, 2 - group_, 0);
    issue_scores<kHalf, false>(s, q, k, 2 - group_, 1);
    wgmma_commit();
    ++own_tiles_;
  }

  // V of this group's columns, keys 16 k ... of a stage.
  __device__ __forceinline__ uint32_t values_at(uint32_t base, int stage, int k) const {
    const uint32_t block = base + C::kOffsetK + stage * C::kTileBytes + group_ * C::kGroupBlocks * C::kBlockBytes;
    return mn_major(block, C::kBlockBytes) + (k * 16 * 128 >> 4);
  }

  // The reference of the tile before, of the other group: what O is to be multiplied with before the values of that tile.
  __device__ __forceinline__ void take_over_reference(float (&alpha)[2]) {
    ptx::mbarrier_wait(barriers_.reference(group_ ^ 1), weights_of_other_ % 2);
    const auto *references = reinterpret_cast<const float *>(shared_ + C::kOffsetReference) + (group_ ^ 1) * C::kRows;
#pragma unroll
    for (int i = 0; i < 2; ++i) alpha[i] = move_reference(i, references[row_of(i)]);
  }

  // [1], of a tile of which `keys` keys are used.
  __device__ __forceinline__ void issue_values_of_other(float (&o)[128], const float (&alpha)[2], uint32_t (&weights)[16],
                                                        int keys) {
    ptx::mbarrier_wait(barriers_.weights(group_ ^ 1), weights_of_other_++ % 2);
#pragma unroll
    for (int j = 0; j < C::kKeys / 8; j += 2) {
      uint32_t(&four)[4] = *reinterpret_cast<uint32_t(*)[4]>(weights + 2 * j);
      ptx::ldmatrix_x4(four, weights_at(j));
    }
    rescale(o, alpha);
    clear_unused_values(group_ ^ 1, keys);
    issue_values(o, weights, group_ ^ 1);
  }

  // [1] and [5]: O += P V.
  __device__ __forceinline__ void issue_values(float (&o)[128], const uint32_t (&weights)[16], int stage) const {
    wgmma_fence();
    const uint32_t base = ptx::not_hoisted(ptx::shared_address(shared_));
#pragma unroll
    for (int k = 0; k < C::kKeys / 16; ++k) Wgmma<typename C::T>::values(o, weights + 4 * k, values_at(base, stage, k));
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

  // Scores are scaled before their maxima are taken where that changes their order. -inf stays what it is.
  __device__ __forceinline__ bool scaled_first() const { return !(scale_log2_ > 0); }
  __device__ __forceinline__ float scale_of_scores() const { return scaled_first() ? 1.0f : scale_log2_; }

  // [3] begins: masks the tile that begins at `first_key`; its rows' maxima.
  __device__ __forceinline__ void take_maxima(int32_t first_key, float (&s)[32], float (&largest)[2]) const {
    if (scaled_first()) {
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] *= scale_log2_;
    }
    if (first_key + C::kKeys > seen_by_all_) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if (first_key + i / 4 * 8 + mma_col(lane_, i % 4) >= limit_[i / 2 % 2]) s[i] = kMinusInf;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float some[4];  // of every fourth pair: short chains
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        some[j] = fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]);
        some[j] = fmaxf(some[j], fmaxf(s[4 * j + 16 + 2 * i], s[4 * j + 17 + 2 * i]));
      }
      largest[i] = fmaxf(fmaxf(some[0], some[1]), fmaxf(some[2], some[3]));
      largest[i] = fmaxf(largest[i], __shfl_xor_sync(~0u, largest[i], 1));
      largest[i] = fmaxf(largest[i], __shfl_xor_sync(~0u, largest[i], 2));
    }
  }

  // The references behind a tile, told to the other group at once, and what O is to be multiplied with.
  __device__ __forceinline__ void move_on(const float (&largest)[2], float (&reference)[2], float (&alpha)[2]) {
    const float scale = scale_of_scores();
    auto *references = reinterpret_cast<float *>(shared_ + C::kOffsetReference) + group_ * C::kRows;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // It moves only if weights would grow beyond 2^kSlack.
      const float now = fmaxf(max_[i], largest[i] * scale);
      alpha[i] = move_reference(i, now - max_[i] <= kSlack ? max_[i] : now);
      reference[i] = finite(max_[i]);
      if (lane_ % 4 == 0) references[row_of(i)] = max_[i];
    }
    __syncwarp();
    release(barriers_.reference(group_));
  }

  // [3] ends: the weights, packed by two as A operands of four products.
  __device__ __forceinline__ void take_weights(const float (&s)[32], const float (&reference)[2], uint32_t (&weights)[16]) {
    const float scale = scale_of_scores();
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const int r = i / 2 % 2;
      const float low = ptx::exp2_approx(__fmaf_rn(s[i], scale, -reference[r]));
      const float high = ptx::exp2_approx(__fmaf_rn(s[i + 1], scale, -reference[r]));
      weights[i / 2] = C::T::pack(low, high);
      sum_[r] += low + high;
    }
  }

  // Where the 8 x 8 weights lie whose address this lane gives, of four: keys 8 j ... of this warp's upper and lower 8 rows, then the
  // next 8 keys.
  __device__ __forceinline__ uint32_t weights_at(int j) const {
    const int row = warp_ * 16 + lane_ % 16;
    return ptx::shared_address(shared_) + C::kOffsetP + row * 128 + ((j + lane_ / 16 ^ row % 8) << 4);
  }

  // [4] To the warp of the other group that has the same rows.
  __device__ __forceinline__ void hand_over(const uint32_t (&weights)[16]) const {
#pragma unroll
    for (int j = 0; j < C::kKeys / 8; j += 2)
      ptx::stmatrix_x4(weights_at(j), weights[2 * j], weights[2 * j + 1], weights[2 * j + 2], weights[2 * j + 3]);
    __syncwarp();
    release(barriers_.weights(group_));
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
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
#pragma unroll
    for (int i = 0; i < 2; ++i) sum_[i] = sums[row_of(i)] + sums[C::kRows + row_of(i)];
  }

  // ---- Results ----

  __device__ __forceinline__ Part part(const volatile Item &item, int32_t piece, bool f16 = false) const {
    return {l_, rules::gpu_part_layout(C::kRows, C::kV, l_.part.pieces, f16), {item.series, piece}};
  }

  // Of the tile's rows. Rows that only fill it have no partial results: a tile that only completes a pair has no place of its own.
  __device__ __forceinline__ int32_t used_rows(const volatile Item &item) const {
    return rows_of(p_, item.request) - item.row_tile * C::kRows;
  }

  __device__ __forceinline__ void write_state(const volatile Item &item, int32_t piece, bool keys) const {
    if (group_ != 0 || lane_ % 4 != 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row_of(i) < used_rows(item))
        part(item, piece).set_state(row_of(i), keys ? rules::SoftmaxState{max_[i], sum_[i]} : kNoKeys);
    }
  }

  __device__ __forceinline__ void write_part(const volatile Item &item, int32_t piece, const float (&o)[128]) const {
    if (l_.chunks == 0) return write_part_f16(item, piece, o);
    write_state(item, piece, true);
    const Part part = this->part(item, piece);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row_of(i) >= used_rows(item)) continue;
      float4 *to = part.fragments(warp_ * 16 + 8 * i, group_ * C::kGroupValues);
#pragma unroll
      for (int j = 0; j < C::kGroupValues / 8; j += 2)
        to[j / 2 * rules::kAccBlock] = {o[4 * j + 2 * i], o[4 * j + 2 * i + 1], o[4 * j + 4 + 2 * i], o[4 * j + 5 + 2 * i]};
    }
  }

  // Half the bytes to write, and for the merge to read.
  __device__ __forceinline__ void write_part_f16(const volatile Item &item, int32_t piece, const float (&o)[128]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const F16Scale scale = f16_scale(largest_of_row(o, i));
      if (row_of(i) >= used_rows(item)) continue;
      if (lane_ % 4 == 0) {
        if (group_ == 0) part(item, piece, true).set_state(row_of(i), {max_[i], sum_[i]});
        part(item, piece, true).set_scale(row_of(i), group_, scale.back);
      }
      float4 *to = part(item, piece, true).fragments(warp_ * 16 + 8 * i, group_ * C::kGroupValues);
      const auto two = [&](int j) {
        return __uint_as_float(F16::pack(o[4 * j + 2 * i] * scale.factor, o[4 * j + 1 + 2 * i] * scale.factor));
      };
#pragma unroll
      for (int j = 0; j < C::kGroupValues / 8; j += 4)
        to[j / 4 * rules::kAccBlock] = {two(j), two(j + 1), two(j + 2), two(j + 3)};
    }
  }

  // The size of the largest finite number of row i in this group's columns.
  __device__ __forceinline__ float largest_of_row(const float (&o)[128], int i) const {
    float largest = 0.0f;
#pragma unroll
    for (int j = 0; j < C::kGroupValues / 8; ++j)
      largest = fmaxf(largest, fmaxf(finite_size(o[4 * j + 2 * i]), finite_size(o[4 * j + 1 + 2 * i])));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    return largest;
  }

  // Merges what lies in the place of a piece and `o`.
  __device__ __forceinline__ void merge_part(const volatile Item &item, int32_t piece, float (&o)[128]) {
    const Part part = this->part(item, piece);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const rules::SoftmaxState left = row_of(i) < used_rows(item) ? part.state(row_of(i)) : kNoKeys;
      const rules::MergeStep m = merge_in_log2(left, {max_[i], sum_[i]});
      const float4 *from = part.fragments(warp_ * 16 + 8 * i, group_ * C::kGroupValues);
#pragma unroll
      for (int j = 0; j < C::kGroupValues / 8; j += 2) {
        const float4 x = ptx::load_global_16(from + j / 2 * rules::kAccBlock, m.a != 0.0f);
        o[4 * j + 2 * i] = merged(m, x.x, o[4 * j + 2 * i]);
        o[4 * j + 2 * i + 1] = merged(m, x.y, o[4 * j + 2 * i + 1]);
        o[4 * j + 4 + 2 * i] = merged(m, x.z, o[4 * j + 4 + 2 * i]);
        o[4 * j + 5 + 2 * i] = merged(m, x.w, o[4 * j + 5 + 2 * i]);
      }
      max_[i] = m.merged.max;
      sum_[i] = m.merged.sum;
    }
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
  }

  __device__ __forceinline__ int32_t merge_chunk(const volatile Item &item, float (&o)[128]) {
    return cuda::merge_chunk(
        item, [&](int32_t left) { merge_part(item, left, o); }, [&](int32_t piece) { write_state(item, piece, false); });
  }

  // By way of shared memory, so that a warp writes whole rows of its columns. Q lies there no more: add_sums() follows the last
  // products.
  __device__ __forceinline__ void write_result(const volatile Item &item, const float (&o)[128]) const {
    const int32_t first = item.row_tile * C::kRows, rows = rows_of(p_, item.request);
    constexpr int kPitch = C::kGroupValues * 2;  // bytes of a row of the group's columns
    const uint32_t mine = ptx::shared_address(shared_) + (group_ * C::kRows + warp_ * 16) * kPitch;
    float scale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t packed = first + row_of(i);
      const rules::Row row = rules::unpack_row(packed, p_.num_heads);
      const bool inside = packed < rows;
      const RowState state = {{max_[i], sum_[i]}, inside && rules::visible_keys(p_, item.request, row.token) > 0};
      if (inside && group_ == 0 && lane_ % 4 == 0) p_.lse[rules::lse_offset(p_, item.request, row)] = lse_of(state);
      scale[i] = row_scale(state, out_scale_);
    }
    const int r = lane_ % 16;  // whose address this lane gives, of 16-byte chunk j + lane / 16
#pragma unroll
    for (int j = 0; j < C::kGroupValues / 8; j += 2) {
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) packed[i] = C::T::pack(o[4 * j + 2 * i] * scale[i % 2], o[4 * j + 2 * i + 1] * scale[i % 2]);
      ptx::stmatrix_x4(mine + r * kPitch + ((j + lane_ / 16 ^ r % 8) << 4), packed[0], packed[1], packed[2], packed[3]);
    }
    __syncwarp();
    const int32_t row = first + warp_ * 16 + lane_ % 16;
    const int64_t at = row < rows ? rules::out_offset(p_, item.request, rules::unpack_row(row, p_.num_heads)) : 0;
    auto *out = static_cast<typename C::T::Element *>(p_.out) + group_ * C::kGroupValues;
#pragma unroll 1
    for (int i = 0; i < 16 && first + warp_ * 16 + i < rows; ++i) {
      auto *to = out + __shfl_sync(~0u, at, i);
      const uint4 x = ptx::load_shared_16(mine + i * kPitch + ((lane_ ^ i % 8) << 4));
      if (l_.out_16_bytes) {
        reinterpret_cast<uint4 *>(to)[lane_] = x;
      } else {
        const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) reinterpret_cast<uint32_t *>(to)[lane_ * 4 + w] = words[w];
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
  uint32_t own_tiles_ = 0;         // so far
  uint32_t weights_of_other_ = 0;  // taken over so far
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) verify_sm90_kernel(const __grid_constant__ Launch l) {
  extern __shared__ __align__(1024) char sm90_shared[];
  const Sm90Barriers<C> barriers = {ptx::shared_address(sm90_shared) + C::kOffsetBarriers};
  if (threadIdx.x == 0) barriers.init(l.box_keys > 0, l.pair);
  if (threadIdx.x == 2 * C::kGroup && l.box_keys > 0) ptx::prefetch_map(l.kv_map.bytes);
  if (l.pair > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  ptx::wait_for_previous_grid();
  ptx::launch_dependents();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / C::kGroup, 0);
  // The copies come first in the code (the compiler turns the branches round): they start the work, and fetching code that lies far
  // off takes microseconds.
  if (group < 2) {
    ptx::take_registers<C::kComputeRegisters>();
    Sm90Products<C>(l, sm90_shared, barriers, group).run();
  } else {
    ptx::give_registers<C::kCopyRegisters>();
    Sm90Copies<C> copies(l, sm90_shared, barriers);
    const Items<C::kRows, true> items(l);
    ItemCursor cursor = items.begin();
    for (Item item; items.next(&cursor, &item);) copies.run(item);
    copies.finish();
  }
  if (l.pair > 1) ptx::cluster_sync();  // the other one of the pair may still write here
}

}  // namespace mlaverify::cuda
