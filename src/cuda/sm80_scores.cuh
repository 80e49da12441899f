// The warps of verify_sm80.cuh that find the items and make the weights; the steps in brackets are those of its head.
#pragma once

#include "cuda/mma.cuh"
#include "cuda/ptx.cuh"
#include "cuda/result.cuh"
#include "cuda/schedule.cuh"
#include "cuda/sm80_block.cuh"
#include "rules/row.h"

namespace mlaverify::cuda {

// One of the warps that find the items and make the weights P.
template <class C>
class Sm80ScoreWarp {
  static constexpr int kKeyBlocks = C::kKeys / 8;
  static constexpr int kSteps = C::kPitch / 64;      // of 16 numbers: two in each line are this warp's
  static constexpr int kKept = C::kRecords ? 0 : 4;  // first steps, whose fragments of Q stay in registers: two lines of Q
  // Whether the weights of a tile are made between the products of the next one, which then must be there: with few stages it would
  // be waited for.
  static constexpr bool kInterleave = C::kStages >= 4 && !C::kRecords;
  using Scores = float[C::kPairBlocks][kKeyBlocks][4];

 public:
  __device__ __forceinline__ Sm80ScoreWarp(const Launch &l, char *shared, int warp)
      : p_(l.p), shared_(shared), pair_(warp / 2), half_(warp % 2) {
    const float k_scale = p_.k_scale != nullptr ? *p_.k_scale : 1.0f;
    scale_log2_ = p_.sm_scale * k_scale * 1.4426950408889634f;
    mine_ = pair_ * C::kPairBlocks + (C::kPairBlocks == 2 ? half_ : 0);
    other_ = pair_ * C::kPairBlocks + (C::kPairBlocks == 2 ? 1 - half_ : 0);
  }

  __device__ __forceinline__ void run(const Item &item) {
    const int tiles = num_tiles<C>(item);
    publish(item);
    set_limits(item);
    max_[0] = max_[1] = kMinusInf;
    sum_[0] = sum_[1] = 0;
    if (tiles > 0) {
      Scores s;
      wait_for_tile();
      keep_queries();
      products(s);
      for (int t = 0;; ++t) {
        add_halves(s);
        scale(first_key() + t * C::kKeys, s[0]);
        if (!kInterleave) pass<false, true>(s, t % 2);
        if (t + 1 == tiles) break;
        wait_for_tile();
        if constexpr (kInterleave) {
          pass<true, true>(s, t % 2);
        } else {
          products(s);
        }
      }
      if (kInterleave) pass<false, true>(s, (tiles - 1) % 2);
    }
    if (has_rows()) write_state();
    ptx::barrier_sync(kItem, C::kThreads);
  }

  // Of the item that was published last. Read again for each tile, it takes no register.
  __device__ __forceinline__ int32_t first_key() const {
    return static_cast<const volatile Item *>(shared_items<C>(shared_))[parity_ ^ 1].key_begin;
  }

  // Hands an item to the value warps.
  __device__ __forceinline__ void publish(const Item &item) {
    if (pair_ == 0 && half_ == 0 && lane_ == 0) shared_items<C>(shared_)[parity_] = item;
    parity_ ^= 1;
    ptx::barrier_sync(kItem, C::kThreads);
  }

 private:
  // With one block of rows the first warp of the pair has it, else each has one.
  __device__ __forceinline__ bool has_rows() const { return C::kPairBlocks == 2 || half_ == 0; }

  __device__ __forceinline__ void set_limits(const Item &item) {
    const int32_t first = item.row_tile * C::kRows;
    seen_by_all_ = rules::visible_keys(p_, item.request, rules::unpack_row(first, p_.num_heads).token);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t row = first + mine_ * 16 + mma_row(lane_, 2 * i);
      const bool inside = row < rows_of(p_, item.request);
      limit_[i] = inside ? rules::visible_keys(p_, item.request, rules::unpack_row(row, p_.num_heads).token) : 0;
    }
  }

  // [1].
  __device__ __forceinline__ void wait_for_tile() {
    ptx::mbarrier_wait(ptx::shared_address(shared_) + C::kOffsetFull + ring_.stage * 8, ring_.phase);
    k_tile_ = ptx::shared_address(shared_) + C::kOffsetK + ring_.stage * C::kStageBytes;
    ring_.next();
  }

  // Address of step `step` of row block m (0: of this warp, 1: of the other one of the pair): this lane's part for ldmatrix.
  __device__ __forceinline__ uint32_t q_at(int m, int step) const {
    const int row = (m == 0 ? mine_ : other_) * 16 + lane_ % 16;
    return ptx::shared_address(shared_) + swizzled<C::kPitch>(row, half_ * 4 + step % 2 * 2 + lane_ / 16) + step / 2 * 128;
  }
  __device__ __forceinline__ uint32_t k_at(int step) const {
    const int row = lane_ / 16 * 8 + lane_ % 8;
    return k_tile_ + swizzled<C::kPitch>(row, half_ * 4 + step % 2 * 2 + lane_ / 8 % 2) + step / 2 * 128;
  }

  __device__ __forceinline__ void keep_queries() {
#pragma unroll
    for (int step = 0; step < kKept; ++step) {
#pragma unroll
      for (int m = 0; m < C::kPairBlocks; ++m) ptx::ldmatrix_x4(kept_[step][m], q_at(m, step));
    }
    ptx::barrier_sync(kPair + pair_, 64);
  }

  static __device__ __forceinline__ void clear(Scores &s) {
#pragma unroll
    for (int m = 0; m < C::kPairBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][n][i] = 0;
      }
    }
  }

  // Fragments of a step.
  using Queries = uint32_t[C::kPairBlocks][4];
  using Keys = uint32_t[C::kKeys / 16][4];
  __device__ __forceinline__ void load_queries(Queries &q, int step) const {
#pragma unroll
    for (int m = 0; m < C::kPairBlocks; ++m) ptx::ldmatrix_x4(q[m], q_at(m, step));
  }
  __device__ __forceinline__ void load_keys(Keys &k, int step) const {
#pragma unroll
    for (int n = 0; n < C::kKeys / 16; ++n) ptx::ldmatrix_x4(k[n], k_at(step) + n * 16 * C::kPitch);
  }

  static __device__ __forceinline__ void multiply(Scores &s, const Queries &q, const Keys &k) {
#pragma unroll
    for (int m = 0; m < C::kPairBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) C::T::mma(s[m][n], q[m], k[n / 2][n % 2 * 2], k[n / 2][n % 2 * 2 + 1]);
    }
  }

  // [2] over records: the sum over the steps of each group times its scales, and the last steps. (Unrolled, the groups would overlap, for
  // which there are no registers.)
  __device__ __forceinline__ void multiply_records(Scores &s) const {
    constexpr int kGroupSteps = rules::kRecordGroup / 32, kLast = kGroupSteps * rules::kRecordGroups;
    static_assert(kGroupSteps % 2 == 0 && kSteps == kLast + 2);
    Queries q[2];
    Keys k[2];
    const auto load = [&](int step) {
      load_keys(k[step % 2], step);
      load_queries(q[step % 2], step);
    };
    clear(s);
    load(0);
#pragma unroll 1
    for (int group = 0; group < rules::kRecordGroups; ++group) {
      Scores part;
      clear(part);
#pragma unroll
      for (int i = 0; i < kGroupSteps; ++i) {
        const int step = group * kGroupSteps + i;
        load_keys(k[(i + 1) % 2], step + 1);
        load_queries(q[(i + 1) % 2], step + 1);
        multiply(part, q[i % 2], k[i % 2]);
      }
      add_scaled(s, part, group);
    }
    load(kLast + 1);
    multiply(s, q[0], k[0]);
    multiply(s, q[1], k[1]);
  }

  // s += part times the scales of a group.
  __device__ __forceinline__ void add_scaled(Scores &s, const Scores &part, int group) const {
    const int key = mma_col(lane_, 0);
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
      const float2 scale = load_scales<C>(k_tile_, group, n * 8 + key);
#pragma unroll
      for (int m = 0; m < C::kPairBlocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][n][i] = fmaf(part[m][n][i], i % 2 == 0 ? scale.x : scale.y, s[m][n][i]);
      }
    }
  }

  // [2] and [4]: S of a tile (kProducts), over this warp's half of the width, and between its steps the weights of the tile before
  // (kWeights), whose scores are in s[0] at the begin. s[0]: rows of this warp; s[1]: of the other one of the pair.
  template <bool kProducts, bool kWeights>
  __device__ __forceinline__ void pass(Scores &s, int parity) {
    float before[kKeyBlocks][4];
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) before[n][i] = kWeights ? s[0][n][i] : 0;
    }
    if (kProducts) clear(s);
    // Of a width that ends in half a line the odd half has two steps less.
    const auto exists = [&](int step) {
      return kProducts && step < kSteps && (C::kQk % 64 == 0 || step < kSteps - 2 || half_ == 0);
    };
    Queries q[2];  // fragments of this step and of the next
    Keys k[2];
    const auto load = [&](int step) {
      if (!exists(step)) return;
      load_keys(k[step % 2], step);
      if (step >= kKept) load_queries(q[step % 2], step);
    };
    load(0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      load(step + 1);
      if (exists(step)) {
        auto &a = step < kKept ? kept_[step % 4] : q[step % 2];
        multiply(s, a, k[step % 2]);
      }
      if (kWeights) softmax_part(step, before, parity);
    }
  }

  __device__ __forceinline__ void products(Scores &s) {
    if constexpr (C::kRecords) {
      multiply_records(s);
    } else {
      pass<true, false>(s, 0);
    }
  }

  // [3] Gives the sums of the other warp's rows away and adds what it has of this warp's rows.
  __device__ __forceinline__ void add_halves(Scores &s) {
    // Four rows of a block's second line for each eight keys.
    const auto at = [&](int block, int n) {
      const int row = block * 16 + n * 4 + lane_ / 8;
      return reinterpret_cast<float4 *>(shared_ + C::kOffsetWeights + row * C::kWeightsPitch + 128 + lane_ % 8 * 16);
    };
    if (C::kPairBlocks == 2 || half_ == 1) {
      const auto &given = s[C::kPairBlocks - 1];
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) *at(other_, n) = {given[n][0], given[n][1], given[n][2], given[n][3]};
    }
    ptx::barrier_sync(kPair + pair_, 64);
    if (!has_rows()) return;
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
      const float4 x = *at(mine_, n);
      s[0][n][0] += x.x;
      s[0][n][1] += x.y;
      s[0][n][2] += x.z;
      s[0][n][3] += x.w;
    }
  }

  // [3] end.
  __device__ __forceinline__ void scale(int32_t first_key, float (&s)[kKeyBlocks][4]) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] *= scale_log2_;
    }
    if (first_key + C::kKeys <= seen_by_all_) return;
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first_key + n * 8 + mma_col(lane_, i) >= limit_[i / 2]) s[n][i] = kMinusInf;
    }
  }

  // [4] in parts, one a step of pass(), so that they can stand between products.
  __device__ __forceinline__ void softmax_part(int part, const float (&s)[kKeyBlocks][4], int parity) {
    constexpr int kFirst = 4;  // part of the first weights
    static_assert(kFirst + kKeyBlocks < kSteps, "a step for each part");
    if (part == kFirst) ptx::barrier_sync(kWeightsRead + parity, C::kThreads);
    if (part == kFirst + kKeyBlocks) ptx::barrier_arrive(kWeightsReady + parity, C::kThreads);
    if (!has_rows()) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = mine_ * 16 + mma_row(lane_, 2 * i);
      if (part == 0) {
        now_[i] = max_[i];
#pragma unroll
        for (int n = 0; n < kKeyBlocks; ++n) now_[i] = fmaxf(now_[i], fmaxf(s[n][2 * i], s[n][2 * i + 1]));
      } else if (part < 3) {
        now_[i] = fmaxf(now_[i], __shfl_xor_sync(~0u, now_[i], part));
      } else if (part == 3) {
        // The reference moves only if weights would grow beyond 2^kSlack. (-inf - -inf is NaN.)
        if (now_[i] - max_[i] <= kSlack) now_[i] = max_[i];
        reference_[i] = now_[i] == kMinusInf ? 0.0f : now_[i];  // no key yet, or all scores -inf: weights 0, not NaN
        factor_[i] = ptx::exp2_approx(max_[i] - reference_[i]);
        max_[i] = now_[i];
        sum_[i] = __fmul_rn(sum_[i], factor_[i]);  // not fused with a sum in some kernels: bits must not depend on kRows
      } else if (part < kFirst + kKeyBlocks) {
        const int n = part - kFirst;
        const float low = ptx::exp2_approx(s[n][2 * i] - reference_[i]),
                    high = ptx::exp2_approx(s[n][2 * i + 1] - reference_[i]);
        sum_[i] += low + high;
        // P: 64 bytes of the row's first line.
        char *to = shared_ + C::kOffsetWeights + swizzled<C::kWeightsPitch>(row, parity * 4 + n) + lane_ % 4 * 4;
        *reinterpret_cast<uint32_t *>(to) = C::T::pack(low, high);
        auto *factors = reinterpret_cast<float *>(shared_ + C::kOffsetFactors) + parity * C::kRows;
        if (n == 0 && lane_ % 4 == 0) factors[row] = factor_[i];
      }
    }
  }

  __device__ __forceinline__ void write_state() {
    auto *max_of = reinterpret_cast<float *>(shared_ + C::kOffsetMax),
         *sum_of = reinterpret_cast<float *>(shared_ + C::kOffsetSum);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = sum_[i];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int row = mine_ * 16 + mma_row(lane_, 2 * i);
      if (lane_ % 4 == 0) {
        max_of[row] = max_[i];
        sum_of[row] = sum;
      }
    }
  }

  // log2 units: weights up to 256 fit f16 and lose nothing in bf16
  static constexpr float kSlack = C::kRecords ? 0.0f : 8.0f;

  const Problem &p_;
  char *shared_;
  const int pair_, half_, lane_ = threadIdx.x % 32;
  int mine_, other_;  // blocks of 16 rows
  float scale_log2_;
  int parity_ = 0;  // of the next item
  Ring<C::kStages> ring_;
  uint32_t k_tile_ = 0;
  uint32_t kept_[4][C::kPairBlocks][4];
  int32_t seen_by_all_ = 0, limit_[2] = {0, 0};
  // Of rows mma_row(lane, 0) and mma_row(lane, 2) of block mine_; maxima in log2 units.
  float max_[2], now_[2], reference_[2], factor_[2];
  float sum_[2];  // of the keys that this lane has
};

}  // namespace mlaverify::cuda
