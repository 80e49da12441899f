// The copying warpgroup of verify_fp8.cuh, and what it shares with the computing ones: sizes, the layout of shared memory, barriers.
#pragma once

#include "cuda/item_slots.cuh"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "cuda/schedule.cuh"
#include "rules/config_table.h"
#include "rules/row.h"
#include "rules/workspace.h"

namespace mlaverify::cuda {

// `kernel`: which says how many rows a tile has. `cache`: an FP8 type.
template <int qk_dim, int v_dim, DType cache, rules::GpuKernel kernel>
struct Fp8Config {
  static constexpr bool kRecords = rules::is_record(cache);
  static constexpr rules::VerifyConfig kTable = rules::hopper_fp8_config(kernel, kRecords);
  static constexpr DType kCache = kRecords ? DType::f8_e4m3 : cache;  // of the numbers that are widened
  static constexpr int kQk = qk_dim, kV = v_dim, kRows = kTable.block_h, kKeys = kTable.block_n, kStages = kTable.num_stages;
  static constexpr int kGroup = 128, kThreads = 3 * kGroup;  // threads
  static constexpr int kGroupKeys = 64, kGroupValues = 256;  // of a tile, of a computing group
  static_assert(kGroupValues == rules::kScaleColumns, "a group scales its own columns");

  // Whether it does the batch-invariant mode, whose merges want registers.
  static constexpr bool kChunks = kernel == rules::invariant_fp8_kernel();

  // A stage has the keys of a copying warp, one a lane.
  static constexpr int kStageKeys = 32, kTileStages = kKeys / kStageKeys;
  // 16 bytes more than the row where that is a multiple of 32 of them: eight rows then begin in eight different groups of banks.
  static constexpr int kRowBytes = static_cast<int>(rules::row_bytes(cache, kQk)), kPitch = kRowBytes + (kRecords ? 0 : 16);
  static constexpr int kStageBytes = kStageKeys * kPitch;

  // Q, and weights, as blocks of 64 columns, or keys. Over records: the last 64 columns of Q twice (fp8_queries.cuh), and weights times the
  // scales of each group of columns.
  static constexpr int kBlocks = kQk / 64 + (kRecords ? 1 : 0), kBlockBytes = kRows * 128;
  static constexpr int kWeights = kRecords ? rules::kRecordGroups : 1;
  static constexpr int kOffsetP = kBlocks * kBlockBytes, kOffsetK = kOffsetP + 2 * kWeights * kBlockBytes;
  // Per row: scale of scores and minus the reference, the score beyond which that moves, keys seen, largest score, sums of eight warps, two
  // factors, where it goes.
  static constexpr int kOffsetScale = kOffsetK + kStages * kStageBytes, kOffsetTop = kOffsetScale + kRows * 8;
  static constexpr int kOffsetLimit = kOffsetTop + kRows * 4, kOffsetLargest = kOffsetLimit + kRows * 4;
  static constexpr int kOffsetSum = kOffsetLargest + kRows * 4, kOffsetFactor = kOffsetSum + 8 * kRows * 4;
  static constexpr int kOffsetOut = kOffsetFactor + 2 * kRows * 4;
  static constexpr int kOffsetItems = kOffsetOut + kRows * 8;
  static constexpr int kOffsetBarriers = rules::round_up(kOffsetItems + 2 * static_cast<int>(sizeof(Item)), 8);
  static constexpr int kSharedBytes = kOffsetBarriers + 8 * (2 * kStages + 4);

  static constexpr int kComputeRegisters = 224, kCopyRegisters = 56;
  static_assert(2 * kComputeRegisters + kCopyRegisters <= 3 * (65536 / kThreads / 8 * 8), "what the launch gives");
  static_assert(kQk % 64 == 0 && kV == 2 * kGroupValues && kQk >= kV && kPitch % 128 % 32 == 16);
  static_assert(kKeys == 2 * kGroupKeys && kTileStages == 4 && kStages > kTileStages && kThreads == 32 * kTable.num_warps);
  static_assert(kRows == 16 || kRows == 32 || kRows == 64, "what there are products for");
  static_assert((rules::is_fp8(cache) || kRecords) && kSharedBytes <= 227 * 1024);
  static_assert(!kRecords || (kRows <= 32 && kQk == rules::kRecordWidth && kV == rules::kRecordScaled), "what records are");
};

// The barriers of a block.
template <class C>
struct Fp8Barriers {
  uint32_t base;  // shared address
  __device__ __forceinline__ uint32_t full(int stage) const { return base + 8 * stage; }
  __device__ __forceinline__ uint32_t empty(int stage) const { return base + 8 * (C::kStages + stage); }
  __device__ __forceinline__ uint32_t item_full(int slot) const { return base + 8 * (2 * C::kStages + slot); }
  __device__ __forceinline__ uint32_t item_empty(int slot) const { return base + 8 * (2 * C::kStages + 2 + slot); }

  __device__ __forceinline__ void init() const {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(full(i), 1);
      ptx::mbarrier_init(empty(i), 8);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(item_full(i), 1);
      ptx::mbarrier_init(item_empty(i), 8);
    }
    ptx::mbarrier_init_fence();
  }
};

// A place in the ring of stages, by which they are gone through: of the stages of two turns.
template <class C>
struct Fp8Ring {
  int place = 0;

  __device__ __forceinline__ int stage() const { return place < C::kStages ? place : place - C::kStages; }
  __device__ __forceinline__ uint32_t turn() const { return place < C::kStages ? 0 : 1; }
  // `i` stages further on.
  __device__ __forceinline__ Fp8Ring at(int i) const {
    return {place + i < 2 * C::kStages ? place + i : place + i - 2 * C::kStages};
  }
  // (What is derived from the place is not made ahead.)
  __device__ __forceinline__ void go_on(int stages) {
    place = static_cast<int>(ptx::not_hoisted(static_cast<uint32_t>(at(stages).place)));
  }
};

template <class C>
__device__ __forceinline__ int fp8_tiles(const volatile Item &item) {
  return (item.key_end - item.key_begin + C::kKeys - 1) / C::kKeys;
}

// Warp w copies keys 32 w ... of each tile, a row of the cache a lane, by the bulk copies of sm_90: they want nothing of pages but
// addresses that are multiples of 16.
template <class C>
class Fp8Copies {
 public:
  __device__ __forceinline__ Fp8Copies(const Launch &l, char *shared, Fp8Barriers<C> barriers)
      : l_(l),
        p_(l.p),
        shared_(shared),
        barriers_(barriers),
        policy_(ptx::cache_policy(l.row_group == 1)),
        sender_(reinterpret_cast<Item *>(shared + C::kOffsetItems), barriers) {}

  __device__ __forceinline__ void run(const Item &item) {
    const int tiles = fp8_tiles<C>(item);
    if (warp_ == 0) sender_.send(item, lane_);
    if (tiles == 0) return;
    fetch_page(item, 0);
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
      const char *const from = slot_address(p_, page_, offset_);
      fetch_page(item, t + 1);
      copy(from);
      ring_.go_on(C::kTileStages);
    }
  }

  // Tells the computing groups that there is no more.
  __device__ __forceinline__ void finish() {
    if (warp_ == 0) sender_.finish(lane_);
  }

 private:
  // Looks up the page of this lane's key of tile t, one tile ahead of the copies.
  __device__ __forceinline__ void fetch_page(const Item &item, int t) {
    const int64_t key = item.key_begin + int64_t{t} * C::kKeys + warp_ * C::kStageKeys + lane_;
    const rules::Slot slot = rules::slot_of(static_cast<int32_t>(key), p_.page_size);
    offset_ = slot.offset;
    page_ = key < item.key_end && slot.entry < p_.table_width ? rules::page_id(p_, item.request, slot.entry) : -1;
  }

  // This lane's key of the next tile.
  __device__ __forceinline__ void copy(const char *from) {
    const Fp8Ring<C> at = ring_.at(warp_);
    char *to = shared_ + C::kOffsetK + at.stage() * C::kStageBytes + lane_ * C::kPitch;
    ptx::mbarrier_wait(barriers_.empty(at.stage()), at.turn() ^ 1);
    // What lies behind the keys that some row sees, and where there is no page, is zeros: 0 * NaN would be NaN.
    if (from == nullptr) {
#pragma unroll 1
      for (int i = 0; i < C::kRowBytes; i += 16) *reinterpret_cast<uint4 *>(to + i) = uint4{0, 0, 0, 0};
    }
    const unsigned copied = __ballot_sync(~0u, from != nullptr);
    if (lane_ == 0) ptx::mbarrier_arrive_expect(barriers_.full(at.stage()), __popc(copied) * C::kRowBytes);
    __syncwarp();
    if (from != nullptr) ptx::copy_bytes(ptx::shared_address(to), from, C::kRowBytes, barriers_.full(at.stage()), policy_);
    __syncwarp();
  }

  const Launch &l_;
  const Problem &p_;
  char *const shared_;
  const Fp8Barriers<C> barriers_;
  const int warp_ = threadIdx.x / 32 % 4, lane_ = threadIdx.x % 32;
  // Keys that no other block copies go first from the L2 cache: partial results stay there until they are merged.
  const unsigned long long policy_;
  int32_t page_ = -1, offset_ = 0;
  ItemSender<Fp8Barriers<C>> sender_;
  Fp8Ring<C> ring_;
};

}  // namespace mlaverify::cuda
