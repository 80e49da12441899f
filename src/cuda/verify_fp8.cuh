// The Hopper kernel for FP8 caches (sm_90a): wgmma with the operands swapped, so that FP8 is widened in registers on its way to the
// matrix units. docs/hopper-kernel.md says why it is so.
//
// A block of three warpgroups takes one tile of 16, 32 or 64 packed rows over one range of keys at a time (schedule.cuh), 128 keys a
// tile. Warpgroup 2 walks the schedule and copies keys as they are, a row of the cache a lane (fp8_copies.cuh); 0 and 1 compute. With
// keys and columns as the 64-wide side of products (S^T = K Q^T, O^T = V^T P^T) and rows as the other, whose length is free, few rows cost
// less, and K and V are the operand that may come from registers. There they are f16, exactly, whatever the type of the queries.
// Queries are f16 too, scaled by a power of two for each row, and so are weights, at most 2^15: nothing that matters is lost.
//
//   tile t, both groups               [1] S = Q K^T of the group's 64 keys: 64 columns at a time are loaded (ldmatrix) and widened while
//                                         the products of the 64 before run
//                                     [2] mask in boundary tiles; whether some score is beyond where its row's reference moves ("both",
//                                         a vote)
//                                     [3] if so, references move there, and O is rescaled. P = exp2(scale * S - reference), row sums; P to
//                                         shared memory ("both")
//                                     [4] O += P V of the group's 256 columns, all keys: 32 keys x 32 columns at a time, as in [1], loaded
//                                         transposed
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
//   both             named, 256   groups 0, 1          per tile: largest scores written before read; P and references written before read
//                                                      (and what [3] read, before the next tile's [2] writes). Per item: what is per
//                                                      row, and queries, written before read, and read before written again
//   group 0, 1       named, 128   a group              largest numbers of partial results written before read
//
// Shared memory: Q (64-column blocks, swizzled), P (two blocks of 64 keys), stages of 32 keys (rows of Lk + 16 bytes), what is per row,
// items, barriers. With Lk 576: 16 rows 10 stages, 32 rows 9, 64 rows 7; one block a multiprocessor.
// Registers: the launch gives 168 a thread; 224 a computing one (64 rows: O 128, S 32, A twice 16, bytes 8, sums 8), 56 a copying one.
#pragma once

#include "cuda/fp8_copies.cuh"
#include "cuda/fp8_queries.cuh"
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

// One of the computing warpgroups. In accumulators, lane 4 g + i has of rows 8 j + 2 i + {0, 1}: of S^T keys g and g + 8 of its warp's
// sixteen; of O^T columns 2 g and 2 g + 1 of sixteen.
template <class C>
class Fp8Products {
 public:
  __device__ __forceinline__ Fp8Products(const Launch &l, char *shared) : l_(l), p_(l.p), shared_(shared) {}

  // Until there are no more items.
  __device__ __forceinline__ void run() {
    receive_items(
        shared_ + C::kOffsetItems, barriers(), [this](const volatile Item &item) { run(item); },
        [this](uint32_t barrier) { release(barrier); });
  }

 private:
  static constexpr int kRowBlocks = C::kRows / 8;    // of eight rows
  static constexpr int kS = 4 * kRowBlocks, kO = 4;  // registers of S, or of 64 columns of O; times 64 columns of a group
  // Rows that a lane has numbers of; sums of weights that it keeps (with 64 rows behind a step of reduce(): no registers for more);
  // rows of which it gets what is reduced over a warp.
  static constexpr int kLaneRows = 2 * kRowBlocks, kSums = rules::min(kLaneRows, 8), kHeld = C::kRows > 32 ? 2 : 1;
  // Loads of 16 x 32 bytes a warp that are widened at a time, into two sets of registers in turn: one under the products of the other. As
  // many as there are registers for.
  static constexpr int kScoreLoads = C::kRows > 32 ? 2 : C::kQk / 32 % 3 == 0 ? 3 : 4, kValueLoads = C::kRows > 32 ? 2 : 4;
  static_assert(C::kQk / 32 % kScoreLoads == 0 && kO % kValueLoads == 0);
  static constexpr int kBarrierBoth = 1, kBarrierGroup = 2;  // named; of both groups, and 2 and 3 of one group
  // Logarithms of weights, to base 2: of the largest one when the reference has moved, and the most there are.
  static constexpr float kLift = 7.0f, kTop = 15.0f;
  static_assert(C::kGroupValues == 64 * kO);

  __device__ __forceinline__ Fp8Barriers<C> barriers() const { return {ptx::shared_address(shared_) + C::kOffsetBarriers}; }
  __device__ __forceinline__ float *of_rows(int offset) const { return reinterpret_cast<float *>(shared_ + offset); }
  // What there is per row of the two rows of eight that this lane has numbers of: rows().of(offset, j).
  struct LaneRows {
    const char *first;
    __device__ __forceinline__ float2 of(int offset, int j) const {
      return *reinterpret_cast<const float2 *>(first + offset + 32 * j);
    }
  };
  __device__ __forceinline__ LaneRows rows() const { return {shared_ + ptx::lane() % 4 * 8}; }
  __device__ __forceinline__ int group() const { return static_cast<int>(ptx::not_hoisted(threadIdx.x) / C::kGroup); }
  // Of the group. (Like the lane, found where it is needed: there is no register to keep it in.)
  __device__ __forceinline__ int thread() const { return static_cast<int>(ptx::not_hoisted(threadIdx.x) % C::kGroup); }
  __device__ __forceinline__ int warp() const { return thread() / 32; }
  // Whether this thread is the one of its group that does what is to be done once for row thread().
  __device__ __forceinline__ bool has_row() const { return thread() < C::kRows; }

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
      issue_scores(s);
      wgmma_wait<0>();
      wgmma_done(s);
      mask(item.key_begin + t * C::kKeys, s);
      take_weights(s, o);
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
      reinterpret_cast<int32_t *>(shared_ + C::kOffsetLimit)[thread()] =
          inside ? rules::visible_keys(p_, item.request, r.token) : 0;
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
#pragma unroll
      for (int k = 0; k < 2 * kScoreLoads; ++k) {  // keys g, and g + 8
        widen_two<C::kCache, false>(bytes[k / 2][k % 2 * 2], now[4 * k], now[4 * k + 2]);
        widen_two<C::kCache, false>(bytes[k / 2][k % 2 * 2 + 1], now[4 * k + 1], now[4 * k + 3]);
      }
      wgmma_ready(now);
      if (i + 1 < kBatches) {
#pragma unroll
        for (int k = 0; k < kScoreLoads; ++k) ptx::ldmatrix_x4(bytes[k], keys + ((i + 1) * kScoreLoads + k) * 32);
      }
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 2 * kScoreLoads; ++k) {
        const int step = i * 2 * kScoreLoads + k;  // of 16 columns
        WgmmaOfRegisters<C::kRows>::multiply(s, now + 4 * k, q + (step / 4 * C::kBlockBytes + step % 4 * 32 >> 4), step == 0);
      }
      wgmma_commit();
    }
  }

  // First of the sixteen columns that this warp has of 64 columns `b` of its group: neighbours in what it writes.
  __device__ __forceinline__ int column_of(int b) const { return group() * C::kGroupValues + warp() * 64 + b * 16; }

  // [4], and on to the next tile's stages.
  __device__ __forceinline__ void issue_values(float (&o)[kO][kS]) {
    const uint32_t p = k_major(ptx::not_hoisted(ptx::shared_address(shared_)) + C::kOffsetP);
    const uint32_t mine = ptx::lane() * C::kPitch + column_of(0);
    constexpr int kStageBatches = kO / kValueLoads, kBatches = kStageBatches * C::kTileStages;
    uint32_t bytes[kValueLoads][4], a[2][8 * kValueLoads];
    uint32_t keys = stage_at(ring_) + mine;
#pragma unroll
    for (int k = 0; k < kValueLoads; ++k) ptx::ldmatrix_x4_trans(bytes[k], keys + k * 16);
#pragma unroll
    for (int i = 0; i < kBatches; ++i) {
      uint32_t(&now)[8 * kValueLoads] = a[i % 2];
      const int stage = i / kStageBatches, first = i % kStageBatches * kValueLoads;  // of the 64 columns
      const bool last = first + kValueLoads == kO;
      wgmma_wait<1>();
#pragma unroll
      for (int k = 0; k < 2 * kValueLoads; ++k) {  // 16 keys each
        widen_two<C::kCache, true>(bytes[k / 2][k % 2 * 2], now[4 * k], now[4 * k + 1]);
        widen_two<C::kCache, true>(bytes[k / 2][k % 2 * 2 + 1], now[4 * k + 2], now[4 * k + 3]);
      }
      wgmma_ready(now);
      if (last) {
        __syncwarp();
        release(barriers().empty(ring_.stage()));
        ring_.go_on(1);
      }
      if (i + 1 < kBatches) {
        if (last) keys = stage_at(ring_) + mine;
#pragma unroll
        for (int k = 0; k < kValueLoads; ++k)
          ptx::ldmatrix_x4_trans(bytes[k], keys + (last ? k : first + kValueLoads + k) * 16);
      }
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 2 * kValueLoads; ++k)
        WgmmaOfRegisters<C::kRows>::multiply(o[first + k / 2], now + 4 * k,
                                             p + (stage / 2 * C::kBlockBytes + (stage % 2 * 2 + k % 2) * 32 >> 4), false);
      wgmma_commit();
    }
  }

  // ---- Softmax ----

  // What lanes have of `count` rows they share (number 2 j + i: row 8 j + 2 * (lane % 4) + i), reduced over lanes that are `lanes` apart: of
  // several rows each lane keeps half.
  template <int lanes, int count, int n, class Op>
  static __device__ __forceinline__ void reduce_step(float (&x)[n], Op op) {
    if constexpr (count > 1) {
      const bool second = (ptx::lane() & lanes) != 0;
#pragma unroll
      for (int k = 0; k < count / 2; ++k) {
        const float other = __shfl_xor_sync(~0u, second ? x[k] : x[k + count / 2], lanes);
        x[k] = op(second ? x[k + count / 2] : x[k], other);
      }
    } else {
      x[0] = op(x[0], __shfl_xor_sync(~0u, x[0], lanes));
    }
  }
  // Over the warp, from `lanes` on: each lane then has kHeld rows, held_row(k).
  template <int lanes, int n, class Op>
  static __device__ __forceinline__ void reduce(float (&x)[n], Op op) {
    constexpr int count = kLaneRows * lanes / 16;
    reduce_step<lanes, (count > 1 ? count : 1)>(x, op);
    if constexpr (lanes > 4) reduce<lanes / 2>(x, op);
  }
  __device__ __forceinline__ int held_row(int k) const {
    const int lane = ptx::lane(), number = kLaneRows >= 8 ? lane / 4 * kHeld + k : lane / 8;
    return number / 2 * 8 + lane % 4 * 2 + number % 2;
  }

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
  // The largest score whose weight is no more than 2^kTop. (What rounding may add to an exponent is taken off.)
  static __device__ __forceinline__ float top_score(float2 scale) {
    const float top = __fdiv_rn(kTop - scale.y, scale.x);
    return top - fminf(fabsf(top), 0x1p127f) * 0x1p-21f;  // (infinite stays infinite)
  }

  // [3]
  __device__ __forceinline__ void take_weights(float (&s)[kS], float (&o)[kO][kS]) {
    const LaneRows rows = this->rows();
    bool beyond[2] = {false, false};  // of every second block of rows: short chains
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      const float2 top = rows.of(C::kOffsetTop, j);
#pragma unroll
      for (int i = 0; i < 4; ++i) beyond[j % 2] |= s[4 * j + i] > (i % 2 == 0 ? top.x : top.y);
    }
    // (This is also where both groups have done their products with the weights before.)
    if (ptx::barrier_or(kBarrierBoth, 2 * C::kGroup, beyond[0] || beyond[1])) move_references(s, o);
    const auto *scales = reinterpret_cast<const float4 *>(shared_ + C::kOffsetScale) + ptx::lane() % 4;  // of two rows
    float sums[kLaneRows];
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      const float4 two = scales[4 * j];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[4 * j + i] = ptx::exp2_approx(exponent(s[4 * j + i], i % 2 == 0 ? float2{two.x, two.y} : float2{two.z, two.w}));
      sums[2 * j] = s[4 * j] + s[4 * j + 2];
      sums[2 * j + 1] = s[4 * j + 1] + s[4 * j + 3];
      if (j % 2 == 1) hand_over(s, j - 1);
    }
    if constexpr (kSums < kLaneRows) reduce_step<16, kLaneRows>(sums, [](float a, float b) { return a + b; });
#pragma unroll
    for (int n = 0; n < kSums; ++n) sum_[n] += sums[n];
  }

  // The references of rows that have weights which are too large; these rows alone get other bits by it.
  __device__ __forceinline__ void move_references(const float (&s)[kS], float (&o)[kO][kS]) {
    float largest[kLaneRows];
#pragma unroll
    for (int n = 0; n < kLaneRows; ++n) largest[n] = fmaxf(s[n / 2 * 4 + n % 2], s[n / 2 * 4 + n % 2 + 2]);
    reduce<16>(largest, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int k = 0; k < kHeld; ++k) ptx::shared_max(ptx::shared_address(of_rows(C::kOffsetLargest) + held_row(k)), largest[k]);
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
    if (group() == 0 && has_row()) {
      float &largest_of_row = of_rows(C::kOffsetLargest)[thread()], &top = of_rows(C::kOffsetTop)[thread()];
      float2 &scale = reinterpret_cast<float2 *>(shared_ + C::kOffsetScale)[thread()];
      float factor = 1.0f;
      if (largest_of_row > top) {
        const float by = exponent(largest_of_row, scale) - kLift;
        if (top != kMinusInf) factor = ptx::exp2_approx(-by);  // (else nothing is summed up yet)
        scale.y -= by;
        top = top_score(scale);
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

  // P of rows 8 j ... 8 j + 15 as rows of keys: 8 x 8 weights at a time, whose rows lanes have as columns.
  __device__ __forceinline__ void hand_over(const float (&p)[kS], int j) const {
    const int lane = ptx::lane(), chunk = 2 * warp() + lane / 8 % 2, row = lane % 8;
    const uint32_t to = ptx::shared_address(shared_) + C::kOffsetP + group() * C::kBlockBytes + (lane / 16 * 8 + row) * 128 +
                        ((chunk ^ row) << 4);
    ptx::stmatrix_x4_trans(to + j * 8 * 128, F16::pack(p[4 * j], p[4 * j + 1]), F16::pack(p[4 * j + 2], p[4 * j + 3]),
                           F16::pack(p[4 * j + 4], p[4 * j + 5]), F16::pack(p[4 * j + 6], p[4 * j + 7]));
  }

  // The state of each row.
  __device__ __forceinline__ void finish_rows() {
    reduce<kLaneRows == kSums ? 16 : 8>(sum_, [](float a, float b) { return a + b; });
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

  // From finish_rows() on, of row thread(), in group 0. (There is no register to keep it in.)
  __device__ __forceinline__ rules::SoftmaxState state() const {
    return {of_rows(C::kOffsetTop)[thread()], of_rows(C::kOffsetLargest)[thread()]};
  }

  // ---- Results ----

  __device__ __forceinline__ Part part(const volatile Item &item, int32_t piece, bool f16 = false) const {
    return {l_, rules::gpu_part_layout(C::kRows, C::kV, l_.part.pieces, f16), {item.series, piece}};
  }

  // Of the tile. Rows that only fill it have no partial results.
  __device__ __forceinline__ int32_t used_rows(const volatile Item &item) const {
    return rows_of(p_, item.request) - item.row_tile * C::kRows;
  }

  // Of the 2 x 2 numbers that a lane has of two rows and two columns, and lane ^ 16 of the same rows and the columns eight further on, each
  // gets those of one row: the second, if `second_row()`. (And back.)
  __device__ __forceinline__ bool second_row() const { return ptx::lane() >= 16; }
  template <class T>
  __device__ __forceinline__ void to_row(T &first, T &second) const {
    const T other = __shfl_xor_sync(~0u, second_row() ? first : second, 16);
    if (second_row()) {
      first = other;
    } else {
      second = other;
    }
  }
  // Of the first eight rows the one, and of the group's first eight columns the first of two, that a lane has then.
  __device__ __forceinline__ int first_row() const { return ptx::lane() % 4 * 2 + (second_row() ? 1 : 0); }
  __device__ __forceinline__ int first_column() const { return column_of(0) + ptx::lane() / 4 % 4 * 2; }
  // How far its 16 bytes of rows 8 j ... and columns 16 b ... lie behind those.
  static __device__ __forceinline__ int behind(int j, int b, bool f16) {
    return rules::acc_vector(rules::gpu_part_layout(C::kRows, C::kV, 1, f16), 8 * j, 16 * b);
  }

  __device__ __forceinline__ void write_state(const volatile Item &item, int32_t piece, bool keys) const {
    if (group() == 0 && has_row() && thread() < used_rows(item))
      part(item, piece).set_state(thread(), keys ? state() : rules::SoftmaxState(kNoKeys));
  }

  __device__ __forceinline__ void write_part(const volatile Item &item, int32_t piece, const float (&o)[kO][kS]) const {
    if (!C::kChunks || l_.chunks == 0) return write_part_f16(item, piece, o);
    write_state(item, piece, true);
    const int row = first_row(), used = used_rows(item);
    float4 *to = part(item, piece).vector(row, first_column());
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
#pragma unroll
      for (int b = 0; b < kO; ++b) {
        float4 x = {o[b][4 * j], o[b][4 * j + 2], o[b][4 * j + 1], o[b][4 * j + 3]};
        to_row(x.x, x.z);
        to_row(x.y, x.w);
        if (8 * j + row < used) to[behind(j, b, false)] = x;
      }
    }
  }

  // As the other Hopper kernel does (verify_sm90.cuh).
  __device__ __forceinline__ void write_part_f16(const volatile Item &item, int32_t piece, const float (&o)[kO][kS]) const {
    float *sizes_of_rows = of_rows(C::kOffsetFactor) + group() * C::kRows;
    if (has_row()) sizes_of_rows[thread()] = 0.0f;
    float largest[kLaneRows];
#pragma unroll
    for (int n = 0; n < kLaneRows; ++n) {
      largest[n] = 0.0f;
#pragma unroll
      for (int b = 0; b < kO; ++b) {
        const int i = n / 2 * 4 + n % 2;
        largest[n] = fmaxf(largest[n], fmaxf(finite_size(o[b][i]), finite_size(o[b][i + 2])));
      }
    }
    reduce<16>(largest, [](float a, float b) { return fmaxf(a, b); });
    ptx::barrier_sync(kBarrierGroup + group(), C::kGroup);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) ptx::shared_max(ptx::shared_address(sizes_of_rows + held_row(k)), largest[k]);
    ptx::barrier_sync(kBarrierGroup + group(), C::kGroup);
    const LaneRows rows = this->rows();
    const int row = first_row(), used = used_rows(item);
    const Part part = this->part(item, piece, true);
    float4 *to = part.vector(row, first_column());
    if (has_row() && thread() < used) part.set_state(thread(), state(), group(), f16_scale(sizes_of_rows[thread()]).back);
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      const float2 sizes = rows.of(C::kOffsetFactor + group() * C::kRows * 4, j);
      const float x = f16_scale(sizes.x).factor, y = f16_scale(sizes.y).factor;
#pragma unroll
      for (int b = 0; b < kO; b += 2) {
        uint32_t word[4];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          word[2 * k] = F16::pack(o[b + k][4 * j] * x, o[b + k][4 * j + 2] * x);
          word[2 * k + 1] = F16::pack(o[b + k][4 * j + 1] * y, o[b + k][4 * j + 3] * y);
          to_row(word[2 * k], word[2 * k + 1]);
        }
        if (8 * j + row < used) *reinterpret_cast<uint4 *>(to + behind(j, b, true)) = {word[0], word[1], word[2], word[3]};
      }
    }
  }

  // Merges what lies in the place of a piece and `o`.
  __device__ __forceinline__ void merge_part(const volatile Item &item, int32_t piece, float (&o)[kO][kS]) {
    const Part part = this->part(item, piece);
    float *a = of_rows(C::kOffsetFactor), *b = a + C::kRows;
    if (group() == 0 && has_row()) {
      const rules::SoftmaxState left = thread() < used_rows(item) ? part.state(thread()) : rules::SoftmaxState(kNoKeys);
      const rules::MergeStep m = merge_in_log2(left, state());
      a[thread()] = m.a, b[thread()] = m.b;
      of_rows(C::kOffsetTop)[thread()] = m.merged.max;
      of_rows(C::kOffsetLargest)[thread()] = m.merged.sum;
    }
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
    const LaneRows rows = this->rows();
    const float4 *from = part.vector(first_row(), first_column());
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      const float2 left = rows.of(C::kOffsetFactor, j), right = rows.of(C::kOffsetFactor + C::kRows * 4, j);
      const rules::MergeStep first = {left.x, right.x, {}}, second = {left.y, right.y, {}};
#pragma unroll
      for (int b = 0; b < kO; ++b) {
        float4 x = ptx::load_global_16(from + behind(j, b, false), (second_row() ? second : first).a != 0.0f);
        to_row(x.x, x.z);
        to_row(x.y, x.w);
        o[b][4 * j] = merged(first, x.x, o[b][4 * j]);
        o[b][4 * j + 1] = merged(second, x.z, o[b][4 * j + 1]);
        o[b][4 * j + 2] = merged(first, x.y, o[b][4 * j + 2]);
        o[b][4 * j + 3] = merged(second, x.w, o[b][4 * j + 3]);
      }
      __syncwarp();  // no more reads at a time than there are registers for
    }
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
  }

  __device__ __forceinline__ int32_t merge_chunk(const volatile Item &item, float (&o)[kO][kS]) {
    return cuda::merge_chunk(
        item, [&](int32_t left) { merge_part(item, left, o); }, [&](int32_t piece) { write_state(item, piece, false); });
  }

  // 32 bytes of a row at a time, of sixteen columns.
  __device__ __forceinline__ void write_result(const volatile Item &item, const float (&o)[kO][kS]) const {
    const auto *places = reinterpret_cast<const int64_t *>(shared_ + C::kOffsetOut);
    if (group() == 0 && has_row()) {
      const bool inside = places[thread()] >= 0;
      const RowState state = {this->state(),
                              inside && reinterpret_cast<const int32_t *>(shared_ + C::kOffsetLimit)[thread()] > 0};
      of_rows(C::kOffsetFactor)[thread()] = row_scale(state, fp8_scale(p_));
      if (inside) {
        const rules::Row row = rules::unpack_row(item.row_tile * C::kRows + thread(), p_.num_heads);
        p_.lse[rules::lse_offset(p_, item.request, row)] = lse_of(state);
      }
    }
    ptx::barrier_sync(kBarrierBoth, 2 * C::kGroup);
    const LaneRows rows = this->rows();
    const int column = column_of(0) + ptx::lane() / 4 * 2;
#pragma unroll
    for (int j = 0; j < kRowBlocks; ++j) {
      const float2 factors = rows.of(C::kOffsetFactor, j);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t place = places[8 * j + ptx::lane() % 4 * 2 + i];
        if (place < 0) continue;
        const float factor = i == 0 ? factors.x : factors.y;
        uint16_t *to = static_cast<uint16_t *>(p_.out) + place + column;
#pragma unroll
        for (int b = 0; b < kO; ++b) {
          const float x = o[b][4 * j + i] * factor, y = o[b][4 * j + i + 2] * factor;
          *reinterpret_cast<uint32_t *>(to + 16 * b) = p_.q_dtype == DType::bf16 ? Bf16::pack(x, y) : F16::pack(x, y);
        }
      }
    }
  }

  const Launch &l_;
  const Problem &p_;
  char *const shared_;
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
