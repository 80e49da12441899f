// The Hopper kernel for caches of FP8 and of records (sm_90a): wgmma with the operands swapped, so that FP8 is widened in registers on
// its way to the matrix units. docs/hopper-kernel.md says why it is so.
//
// A block of three warpgroups takes one tile of 16, 32 or 64 packed rows over one range of keys at a time (schedule.cuh), 128 keys a
// tile. Warpgroup 2 walks the schedule and copies keys as they are, a row of the cache a lane (fp8_copies.cuh); 0 and 1 compute. With
// keys and columns as the 64-wide side of products (S^T = K Q^T, O^T = V^T P^T) and rows as the other, whose length is free, few rows cost
// less, and K and V are the operand that may come from registers. There they are f16, exactly, whatever the type of the queries.
// Queries are f16 too, scaled by a power of two for each row, and so are weights, at most 2^15: nothing that matters is lost.
//
//   tile t, both groups               [1] S = Q K^T of the group's 64 keys: some columns at a time (kScoreLoads) are loaded (ldmatrix) and
//                                         widened while the products of those before run
//                                     [2] mask in boundary tiles; whether some score is beyond where its row's reference moves ("both",
//                                         a vote)
//                                     [3] if so, references move there, and O is rescaled. P = exp2(scale * S - reference), row sums; P to
//                                         shared memory ("both")
//                                     [4] O += P V of the group's 256 columns, all keys: 32 keys x 32 columns at a time, as in [1], loaded
//                                         transposed
//
// Of records (fp8_records.cuh) [1] has products for each group of columns with a scale, and [3] hands over P times the scales of each.
//
// Operands of 16-bit products from bytes. A lane of a warp has of an 8 x 8 matrix of 16-bit numbers two neighbours; of bytes, four of a
// row (S), which it takes for numbers 2 i, 2 i + 1, 2 i + 8, 2 i + 9 of sixteen along the product, i its place among four lanes: columns
// of Q lie in that order. Transposed (O): two columns of two keys; it takes the even columns for rows 0 ... 7 of sixteen, and the odd ones
// for rows 8 ... 15.
//
// Barriers           kind         arrivals             orders
//   full[stages]     mbarrier     1 + bytes            copies of 32 keys before they are read
//   empty[stages]    mbarrier     8 warps              keys in registers before they are overwritten
//   item full[2]     mbarrier     1 copying            the item's place and keys written before read, in slot i % 2 for item i
//   item empty[2]    mbarrier     8 warps              all warps done with an item before its slot is written again
//   both             named, 256   groups 0, 1          per tile: the vote, behind the products with the P before; P written before read;
//                                                      where references move, largest scores written before read, then references. Per
//                                                      item: what is per row, and queries, written before read, and read before written
//                                                      again
//   group 0, 1       named, 128   a group              largest numbers of partial results written before read
//
// Shared memory: Q (64-column blocks, swizzled), P (two blocks of 64 keys), stages of 32 keys (rows of Lk + 16 bytes), what is per row,
// items, barriers. With Lk 576: 16 rows 10 stages, 32 rows 9, 64 rows 7; one block a multiprocessor. Of records two less: rows of 656
// bytes, one more block of Q, and P four times.
// Registers: the launch gives 168 a thread; 224 a computing one (64 rows: O 128, S 32, A twice 16, bytes 8, sums 8), 56 a copying one.
#pragma once

#include <type_traits>

#include "cuda/fp8_copies.cuh"
#include "cuda/fp8_queries.cuh"
#include "cuda/fp8_records.cuh"
#include "cuda/fp8_results.cuh"
#include "cuda/launch.h"
#include "cuda/mma.cuh"
#include "cuda/part.cuh"
#include "cuda/ptx.cuh"
#include "cuda/result.cuh"
#include "cuda/schedule.cuh"
#include "cuda/wgmma.cuh"
#include "cuda/widen.cuh"
#include "rules/workspace.h"

namespace mlaverify::cuda {

// One of the computing warpgroups.
template <class C>
class Fp8Products : Fp8Results<C> {
 public:
  __device__ __forceinline__ Fp8Products(const Launch &l, char *shared) : Fp8Results<C>(l, shared) {}

  // Until there are no more items.
  __device__ __forceinline__ void run() {
    receive_items(
        shared_ + C::kOffsetItems, barriers(), [this](const volatile Item &item) { run(item); },
        [this](uint32_t barrier) { release(barrier); });
  }

 private:
  using Base = Fp8Results<C>;
  using Base::barriers, Base::of_rows, Base::rows, Base::group, Base::thread, Base::warp, Base::has_row, Base::first_of_warp,
      Base::behind_first, Base::held_row;
  using Base::kRowBlocks, Base::kS, Base::kO, Base::kLaneRows, Base::kSums, Base::kHeld, Base::kBarrierBoth,
      Base::kBarrierGroup;
  using Base::l_, Base::p_, Base::shared_, Base::second_row, Base::merge_chunk, Base::write_part, Base::write_result;
  using typename Base::LaneRows;
  struct NoScales {};
  using Scales = std::conditional_t<C::kRecords, RecordScales<C>, NoScales>;  // of the two keys that a lane has scores of
  // Loads of 16 x 32 bytes a warp that are widened at a time, into two sets of registers in turn: one under the products of the other. As
  // many as there are registers for.
  static constexpr int kScoreLoads = C::kRows > 32 ? 2 : C::kQk / 32 % 3 == 0 ? 3 : 4, kValueLoads = C::kRows > 32 ? 2 : 4;
  static_assert(C::kQk / 32 % kScoreLoads == 0 && kO % kValueLoads == 0);
  // Logarithms of weights, to base 2: of the largest one when the reference has moved, and the most there are.
  static constexpr float kLift = 7.0f, kTop = 15.0f;

  __device__ __forceinline__ void run(const volatile Item &item) {
    const int tiles = fp8_tiles<C>(item);
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);  // both are done with the item before
    begin(item);
    float o[kO][kS];
#pragma unroll
    for (int b = 0; b < kO; ++b) {
#pragma unroll
      for (int i = 0; i < kS; ++i) o[b][i] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < kSums; ++n) sum_[n] = 0.0f;
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
      float s[kS];
      Scales scales;
      if constexpr (C::kRecords) {
        multiply_records(s, scales);
      } else {
        issue_scores(s);
        wgmma_wait<0>();
        wgmma_done(s);
      }
      mask(item.key_begin + t * C::kKeys, s);
      take_weights(s, o, scales);
      ptx::fence_proxy_async();
      ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
      issue_values(o);
      wgmma_wait<0>();
#pragma unroll
      for (int b = 0; b < kO; ++b) wgmma_done(o[b]);
    }
    finish_rows();
    int32_t piece = item.piece;
    if constexpr (C::kChunks) {
      if (is_chunk(l_, item)) piece = merge_chunk(item, o);
    }
    if (piece >= 0) {
      write_part(item, piece, o);
    } else {
      write_result(item, o);
    }
  }

  // ---- The beginning of an item ----

  // As in the item before.
  __device__ __forceinline__ bool same_rows(const volatile Item &item) const { return item.chunk > item.first_chunk; }

  __device__ __forceinline__ void begin(const volatile Item &item) {
    if (group() == 0 && has_row()) {
      of_rows(C::kOffsetScale)[2 * thread() + 1] = 0.0f;
      of_rows(C::kOffsetTop)[thread()] = of_rows(C::kOffsetLargest)[thread()] = kMinusInf;
    }
    if (same_rows(item)) return;
    const int32_t first = item.row_tile * C::kRows;
    if (group() == 0 && has_row()) {
      const int32_t row = first + thread();
      const bool inside = row < rows_of(p_, item.request);
      const rules::Row r = rules::unpack_row(inside ? row : first, p_.num_heads);
      // A forced piece can end inside a tile; what follows is of the next one.
      const int32_t end = l_.splits > 0 ? item.key_end : INT32_MAX;
      reinterpret_cast<int32_t *>(shared_ + C::kOffsetLimit)[thread()] =
          inside ? rules::min(rules::visible_keys(p_, item.request, r.token), end) : 0;
      reinterpret_cast<int64_t *>(shared_ + C::kOffsetOut)[thread()] = inside ? rules::out_offset(p_, item.request, r) : -1;
    }
    if (item.key_begin == item.key_end) return;
    Fp8Queries<C>(p_, shared_).copy(item, group() * 4 + warp());
    ptx::fence_proxy_async();
  }

  // ---- Products ----

  // This warp no longer reads what `barrier` guards.
  __device__ __forceinline__ void release(uint32_t barrier) const {
    if (ptx::elect()) ptx::mbarrier_arrive(barrier);
  }

  __device__ __forceinline__ uint32_t stage_at(Fp8Ring<C> at) const {
    return ptx::shared_address(shared_) + C::kOffsetK + at.stage() * C::kStageBytes;
  }

  // What loads of 16 x 32 bytes have brought, as operands of two products each.
  template <bool transposed, int loads>
  static __device__ __forceinline__ void widen(const uint32_t (&bytes)[loads][4], uint32_t (&a)[8 * loads]) {
#pragma unroll
    for (int k = 0; k < 2 * loads; ++k) {
      const uint32_t first = bytes[k / 2][k % 2 * 2], second = bytes[k / 2][k % 2 * 2 + 1];
      uint32_t *const to = a + 4 * k;
      if (transposed) {  // 16 keys
        widen_two<C::kCache, true>(first, to[0], to[1]);
        widen_two<C::kCache, true>(second, to[2], to[3]);
      } else {  // keys g, and g + 8
        widen_two<C::kCache, false>(first, to[0], to[2]);
        widen_two<C::kCache, false>(second, to[1], to[3]);
      }
    }
    wgmma_ready(a);
  }

  // [1] of the next tile.
  __device__ __forceinline__ void issue_scores(float (&s)[kS]) const {
    const int lane = ptx::lane();
    const Fp8Ring<C> at = ring_.at(2 * group() + warp() / 2);
    ptx::mbarrier_wait(barriers().full(at.stage()), at.turn());  // (for values, all have waited for all stages)
    const uint32_t keys = stage_at(at) + (warp() % 2 * 16 + lane % 16) * C::kPitch + lane / 16 * 16;
    const uint32_t q = k_major(ptx::not_hoisted(ptx::shared_address(shared_)));
    constexpr int kBatches = C::kQk / 32 / kScoreLoads;
    uint32_t bytes[kScoreLoads][4], a[2][8 * kScoreLoads];
#pragma unroll
    for (int k = 0; k < kScoreLoads; ++k) ptx::ldmatrix_x4(bytes[k], keys + k * 32);
#pragma unroll
    for (int i = 0; i < kBatches; ++i) {
      uint32_t(&now)[8 * kScoreLoads] = a[i % 2];
      wgmma_wait<1>();  // of the products that read the same registers
      widen<false>(bytes, now);
      if (i + 1 < kBatches) {
#pragma unroll
        for (int k = 0; k < kScoreLoads; ++k) ptx::ldmatrix_x4(bytes[k], keys + ((i + 1) * kScoreLoads + k) * 32);
      }
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 2 * kScoreLoads; ++k) {
        const int step = i * 2 * kScoreLoads + k;  // of 16 columns
        WgmmaOfRegisters<F16, C::kRows>::multiply(s, now + 4 * k, q + (step / 4 * C::kBlockBytes + step % 4 * 32 >> 4),
                                                  step == 0);
      }
      wgmma_commit();
    }
  }

  // [1] of records: the columns without scales first, which are bf16 and need no widening; then those of each group, of which the sums
  // are multiplied with the scales under the products of the next.
  __device__ __forceinline__ void multiply_records(float (&s)[kS], Scales &scales) const {
    constexpr int kGroups = rules::kRecordGroups, kTail = 2,
                  kBatches = kTail + 2 * kGroups;  // of four times sixteen columns, or of two
    const int lane = ptx::lane();
    const Fp8Ring<C> at = ring_.at(2 * group() + warp() / 2);
    const char *const first = shared_ + C::kOffsetK + at.stage() * C::kStageBytes + (warp() % 2 * 16 + lane / 4) * C::kPitch;
    const uint32_t keys = stage_at(at) + (warp() % 2 * 16 + lane % 16) * C::kPitch + lane / 16 * 16;
    const uint32_t q = k_major(ptx::not_hoisted(ptx::shared_address(shared_)));
    ptx::mbarrier_wait(barriers().full(at.stage()), at.turn());
    scales.read(first);
    uint32_t bytes[2][4], a[2][16];
    float parts[2][kS];
#pragma unroll
    for (int i = 0; i < kBatches; ++i) {
      uint32_t(&now)[16] = a[i % 2];
      wgmma_wait<1>();  // of the products that read the same registers
      const int of_record = (i - kTail) / 2, done = (i - kTail - 3) / 2;
      if (i >= kTail + 3 && (i - kTail) % 2 == 1) add_part(parts[done % 2], done, scales, s);
      if (i < kTail) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          uint32_t(&four)[4] = *reinterpret_cast<uint32_t(*)[4]>(now + 4 * k);
          ptx::ldmatrix_x4(four, keys + rules::kRecordTailAt + (2 * i + k) * 32);
        }
        wgmma_ready(now);
      } else {
        widen<false>(bytes, now);
      }
      if (i + 1 >= kTail && i + 1 < kBatches) {
#pragma unroll
        for (int k = 0; k < 2; ++k) ptx::ldmatrix_x4(bytes[k], keys + ((i + 1 - kTail) * 2 + k) * 32);
      }
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (i < kTail) {  // rounded queries, and what is left of them
          const int block = rules::kRecordScaled / 64 + k / 2, step = 2 * i + k % 2;
          WgmmaOfRegisters<Bf16, C::kRows>::multiply(s, now + 4 * (k % 2), q + (block * C::kBlockBytes + step * 32 >> 4),
                                                     i + k == 0);
        } else {
          const int step = (i - kTail) * 4 + k;  // of 16 columns
          WgmmaOfRegisters<F16, C::kRows>::multiply(parts[of_record % 2], now + 4 * k,
                                                    q + (step / 4 * C::kBlockBytes + step % 4 * 32 >> 4), step % 8 == 0);
        }
      }
      wgmma_commit();
    }
    wgmma_wait<0>();
    add_part(parts[(kGroups - 1) % 2], kGroups - 1, scales, s);
    scales.add_unusual(shared_, first, s);
  }

  static __device__ __forceinline__ void add_part(float (&part)[kS], int of_record, const Scales &scales, float (&s)[kS]) {
    wgmma_done(part);
    wgmma_done(s);
#pragma unroll
    for (int i = 0; i < kS; ++i) s[i] = __fmaf_rn(part[i], scales.of_sum(i % 4 / 2, of_record), s[i]);
  }

  // Where the weights of a tile's first or second 64 keys lie, of a group of a record's columns.
  static __host__ __device__ constexpr int weights_block(int of_record, int half) {
    return C::kRecords ? of_record * 2 + half : half;
  }

  // [4], and on to the next tile's stages.
  __device__ __forceinline__ void issue_values(float (&o)[kO][kS]) {
    const uint32_t p = k_major(ptx::not_hoisted(ptx::shared_address(shared_)) + C::kOffsetP +
                               weights_block(group() * C::kWeights / 2, 0) * C::kBlockBytes);
    const uint32_t mine = ptx::lane() * C::kPitch + first_of_warp();
    constexpr int kStageBatches = kO / kValueLoads, kBatches = kStageBatches * C::kTileStages;
    uint32_t bytes[kValueLoads][4], a[2][8 * kValueLoads];
    uint32_t keys = stage_at(ring_) + mine;
#pragma unroll
    for (int k = 0; k < kValueLoads; ++k) ptx::ldmatrix_x4_trans(bytes[k], keys + behind_first(k));
#pragma unroll
    for (int i = 0; i < kBatches; ++i) {
      uint32_t(&now)[8 * kValueLoads] = a[i % 2];
      const int stage = i / kStageBatches, first = i % kStageBatches * kValueLoads;  // of the 64 columns
      const bool last = first + kValueLoads == kO;
      wgmma_wait<1>();
      widen<true>(bytes, now);
      if (last) {
        __syncwarp();
        release(barriers().empty(ring_.stage()));
        ring_.go_on(1);
      }
      if (i + 1 < kBatches) {
        if (last) keys = stage_at(ring_) + mine;
#pragma unroll
        for (int k = 0; k < kValueLoads; ++k)
          ptx::ldmatrix_x4_trans(bytes[k], keys + behind_first(last ? k : first + kValueLoads + k));
      }
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 2 * kValueLoads; ++k)
        WgmmaOfRegisters<F16, C::kRows>::multiply(
            o[first + k / 2], now + 4 * k,
            p + (weights_block((first + k / 2) / 2, stage / 2) * C::kBlockBytes + (stage % 2 * 2 + k % 2) * 32 >> 4), false);
      wgmma_commit();
    }
  }

  // ---- Softmax ----

  // [2] of the tile that begins at `first_key`.
  __device__ __forceinline__ void mask(int32_t first_key, float (&s)[kS]) const {
    const int32_t seen_by_all =
        reinterpret_cast<const int32_t *>(shared_ + C::kOffsetLimit)[0];  // the first row sees the fewest
    if (first_key + C::kKeys <= seen_by_all) return;
    const LaneRows rows = this->rows();
    const int32_t key = first_key + group() * C::kGroupKeys + warp() * 16 + ptx::lane() / 4;
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      const float2 limits = rows.of(C::kOffsetLimit, j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (key + i / 2 * 8 >= __float_as_int(i % 2 == 0 ? limits.x : limits.y)) s[4 * j + i] = kMinusInf;
      }
    }
  }

  // The logarithm of a weight.
  static __device__ __forceinline__ float exponent(float score, float2 scale) { return __fmaf_rn(score, scale.x, scale.y); }
  // The same with the scales of two rows, of the one that register i of a fragment is of.
  static __device__ __forceinline__ float of_row(float4 two, float score, int i) {
    return exponent(score, i % 2 == 0 ? float2{two.x, two.y} : float2{two.z, two.w});
  }
  // The largest score whose weight is no more than 2^kTop. (What rounding may add to an exponent is taken off.)
  static __device__ __forceinline__ float top_score(float2 scale) {
    const float top = __fdiv_rn(kTop - scale.y, scale.x);
    return top - fminf(fabsf(top), 0x1p127f) * 0x1p-21f;  // (infinite stays infinite)
  }

  // [3]
  __device__ __forceinline__ void take_weights(float (&s)[kS], float (&o)[kO][kS], const Scales &of_keys) {
    const LaneRows rows = this->rows();
    const auto *scales = reinterpret_cast<const float4 *>(shared_ + C::kOffsetScale) + ptx::lane() % 4;  // of two rows
    bool beyond[2] = {false, false};  // of every second block of rows: short chains
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      const float2 top = rows.of(C::kOffsetTop, j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        beyond[j % 2] |= s[4 * j + i] > (i % 2 == 0 ? top.x : top.y);
        if constexpr (C::kRecords) beyond[j % 2] |= of_row(scales[4 * j], s[4 * j + i], i) + of_keys.above(i / 2) > kTop;
      }
    }
    // (This is also where both groups have done their products with the weights before.)
    if (ptx::barrier_or(kBarrierBoth, 2 * C::kGroup, beyond[0] || beyond[1])) move_references(s, o, of_keys);
    float sums[kLaneRows];
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      const float4 two = scales[4 * j];
#pragma unroll
      for (int i = 0; i < 4; ++i) s[4 * j + i] = ptx::exp2_approx(of_row(two, s[4 * j + i], i));
      sums[2 * j] = s[4 * j] + s[4 * j + 2];
      sums[2 * j + 1] = s[4 * j + 1] + s[4 * j + 3];
      if (j % 2 == 0) continue;
#pragma unroll
      for (int w = 0; w < C::kWeights; ++w) hand_over(s, j - 1, w, of_keys);
    }
    if constexpr (kSums < kLaneRows) Base::template reduce_step<16, kLaneRows>(sums, [](float a, float b) { return a + b; });
#pragma unroll
    for (int n = 0; n < kSums; ++n) sum_[n] += sums[n];
  }

  __device__ __forceinline__ float2 &rows_scale(int row) const {
    return reinterpret_cast<float2 *>(shared_ + C::kOffsetScale)[row];
  }

  // The references of rows that have weights which are too large; these rows alone get other bits by it.
  __device__ __forceinline__ void move_references(const float (&s)[kS], float (&o)[kO][kS], const Scales &of_keys) {
    float largest[kLaneRows];  // scores; of records the exponents, which the scales of keys add to
#pragma unroll
    for (int n = 0; n < kLaneRows; ++n) {
      const float x = s[n / 2 * 4 + n % 2], y = s[n / 2 * 4 + n % 2 + 2];
      if constexpr (C::kRecords) {
        const float2 scale = rows_scale(n / 2 * 8 + ptx::lane() % 4 * 2 + n % 2);
        largest[n] = fmaxf(exponent(x, scale) + of_keys.above(0), exponent(y, scale) + of_keys.above(1));
      } else {
        largest[n] = fmaxf(x, y);
      }
    }
    Base::template reduce<16>(largest, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int k = 0; k < kHeld; ++k) ptx::shared_max(ptx::shared_address(of_rows(C::kOffsetLargest) + held_row(k)), largest[k]);
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
    if (group() == 0 && has_row()) {
      float &largest_of_row = of_rows(C::kOffsetLargest)[thread()], &top = of_rows(C::kOffsetTop)[thread()];
      float2 &scale = rows_scale(thread());
      float factor = 1.0f;
      const bool first = top == kMinusInf;  // nothing is summed up yet
      if (largest_of_row > (C::kRecords && !first ? kTop : top)) {
        const float by = (C::kRecords ? largest_of_row : exponent(largest_of_row, scale)) - kLift;
        if (!first) factor = ptx::exp2_approx(-by);
        scale.y -= by;
        top = C::kRecords ? -kMinusInf : top_score(scale);
      }
      of_rows(C::kOffsetFactor)[thread()] = factor;
      largest_of_row = kMinusInf;
    }
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
    const LaneRows rows = this->rows();
    const LaneRows summed = {rows.first + (kSums < kLaneRows && second_row() ? kSums * 16 : 0)};
#pragma unroll
    for (int j = 0; j < kSums / 2; ++j) {
      const float2 factor = summed.of(C::kOffsetFactor, j);
      sum_[2 * j] *= factor.x;
      sum_[2 * j + 1] *= factor.y;
    }
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      const float2 factor = rows.of(C::kOffsetFactor, j);
#pragma unroll
      for (int b = 0; b < kO; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[b][4 * j + i] *= i % 2 == 0 ? factor.x : factor.y;
      }
    }
  }

  // P of rows 8 j ... 8 j + 15 as rows of keys: 8 x 8 weights at a time, whose rows lanes have as columns. Of records times the scales of
  // the group `w`.
  __device__ __forceinline__ void hand_over(const float (&p)[kS], int j, int w, const Scales &of_keys) const {
    const int lane = ptx::lane(), chunk = 2 * warp() + lane / 8 % 2, row = lane % 8;
    const uint32_t to = ptx::shared_address(shared_) + C::kOffsetP + weights_block(w, group()) * C::kBlockBytes +
                        (lane / 16 * 8 + row) * 128 + ((chunk ^ row) << 4);
    uint32_t two[4];  // rows 2 i, 2 i + 1 of keys g, and g + 8; the same of the next eight rows
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = p[4 * j + 2 * i], y = p[4 * j + 2 * i + 1];
      if constexpr (C::kRecords) {
        const float scale = of_keys.of(i % 2, w);
        two[i] = F16::pack(x * scale, y * scale);
      } else {
        two[i] = F16::pack(x, y);
      }
    }
    ptx::stmatrix_x4_trans(to + j * 8 * 128, two[0], two[1], two[2], two[3]);
  }

  // The state of each row.
  __device__ __forceinline__ void finish_rows() {
    Base::template reduce<kLaneRows == kSums ? 16 : 8>(sum_, [](float a, float b) { return a + b; });
#pragma unroll
    for (int k = 0; k < kHeld; ++k) of_rows(C::kOffsetSum)[(group() * 4 + warp()) * C::kRows + held_row(k)] = sum_[k];
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
    if (group() != 0 || !has_row()) return;
    float &max = of_rows(C::kOffsetTop)[thread()], &sum = of_rows(C::kOffsetLargest)[thread()];
    if (max != kMinusInf) max = -of_rows(C::kOffsetScale)[2 * thread() + 1];
    sum = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; ++w) sum += of_rows(C::kOffsetSum)[w * C::kRows + thread()];
  }

  float sum_[kSums];  // of weights that this lane has had
  Fp8Ring<C> ring_;
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) verify_fp8_kernel(const __grid_constant__ Launch l) {
  extern __shared__ __align__(1024) char fp8_shared[];
  const Fp8Barriers<C> barriers = {ptx::shared_address(fp8_shared) + C::kOffsetBarriers};
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();
  ptx::wait_for_previous_grid();
  ptx::launch_dependents();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / C::kGroup, 0);
  if (group < 2) {
    ptx::take_registers<C::kComputeRegisters>();
    Fp8Products<C>(l, fp8_shared).run();
  } else {
    ptx::give_registers<C::kCopyRegisters>();
    Fp8Copies<C> copies(l, fp8_shared, barriers);
    const Items<C::kRows> items(l);
    ItemCursor cursor = items.begin();
    for (Item item; items.next(&cursor, &item);) copies.run(item);
    copies.finish();
  }
}

}  // namespace mlaverify::cuda
