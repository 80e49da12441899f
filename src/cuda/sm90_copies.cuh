// The copying warpgroup of verify_sm90.cuh, and what it shares with the computing ones: sizes, the layout of shared memory, barriers.
#pragma once

#include "cuda/item_slots.cuh"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "cuda/schedule.cuh"
#include "rules/config_table.h"
#include "rules/workspace.h"

namespace mlaverify::cuda {

template <class Type, int qk_dim, int v_dim>
struct Sm90Config {
  using T = Type;
  static constexpr rules::VerifyConfig kTable = rules::hopper_config();
  static constexpr int kQk = qk_dim, kV = v_dim, kRows = kTable.block_h, kKeys = kTable.block_n, kStages = kTable.num_stages;
  static constexpr int kGroup = 128, kThreads = 3 * kGroup;  // threads
  static constexpr int kGroupValues = 256;                   // columns of a computing group
  static_assert(kGroupValues == rules::kScaleColumns, "a group scales its own columns");
  static constexpr int kBlocks = kQk / 64, kBlockBytes = 64 * 128;
  static constexpr int kGroupBlocks = kGroupValues / 64, kValueBlocks = 2 * kGroupBlocks, kRopeBlocks = kBlocks - kValueBlocks;

  static constexpr int kTileBytes = kBlocks * kBlockBytes;  // of Q too
  static constexpr int kOffsetK = kTileBytes, kOffsetP = kOffsetK + kStages * kTileBytes;
  static constexpr int kOffsetReference = kOffsetP + kBlockBytes, kOffsetSum = kOffsetReference + 2 * kRows * 4;
  static constexpr int kOffsetItems = kOffsetSum + 2 * kRows * 4;
  static constexpr int kOffsetBarriers = kOffsetItems + 2 * static_cast<int>(sizeof(Item));

  // A tile has three parts, which become free and are filled each for itself: 0 the blocks that are no values, 1 and 2 the values of
  // computing groups 0 and 1. These arrive in halves.
  static constexpr int kParts = 3, kArrivals = 5;
  static constexpr int kTileBarriers = kStages * (kArrivals + kParts);
  static constexpr int kSharedBytes = kOffsetBarriers + 8 * (kTileBarriers + 8);
  static MLAVERIFY_HD int first_block(int part) { return part == 0 ? kValueBlocks : (part - 1) * kGroupBlocks; }
  static MLAVERIFY_HD int blocks(int part) { return part == 0 ? kRopeBlocks : kGroupBlocks; }

  static constexpr int kComputeRegisters = 216, kCopyRegisters = 72;
  static_assert(2 * kComputeRegisters + kCopyRegisters <= 3 * (65536 / kThreads / 8 * 8), "what the launch gives");
  static_assert(kQk % 64 == 0 && kV == 2 * kGroupValues && kQk >= kV && kGroupBlocks == 4);
  static_assert(kRows == 64 && kKeys == 64 && kStages == 2 && kThreads == 32 * kTable.num_warps,
                "what the schedule is made for");
  static_assert(kSharedBytes <= 227 * 1024);
};

// The barriers of a block.
template <class C>
struct Sm90Barriers {
  uint32_t base;  // shared address
  // Half `half` of a part (of part 0 there is one).
  __device__ __forceinline__ uint32_t full(int stage, int part, int half) const {
    return at(stage * C::kArrivals + (part == 0 ? 0 : part * 2 - 1 + half));
  }
  __device__ __forceinline__ uint32_t empty(int stage, int part) const {
    return at(C::kStages * C::kArrivals + stage * C::kParts + part);
  }
  __device__ __forceinline__ uint32_t weights(int owner) const { return at(C::kTileBarriers + owner); }
  __device__ __forceinline__ uint32_t reference(int owner) const { return at(C::kTileBarriers + 2 + owner); }
  __device__ __forceinline__ uint32_t item_full(int slot) const { return at(C::kTileBarriers + 4 + slot); }
  __device__ __forceinline__ uint32_t item_empty(int slot) const { return at(C::kTileBarriers + 6 + slot); }

  __device__ __forceinline__ void init(bool boxes, int pair) const {
    for (int i = 0; i < C::kStages * C::kArrivals; ++i) ptx::mbarrier_init(at(i), boxes ? 1 : C::kGroup);
    for (int i = C::kStages * C::kArrivals; i < C::kTileBarriers; ++i) ptx::mbarrier_init(at(i), 4 * pair);
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(weights(i), 4);
      ptx::mbarrier_init(reference(i), 4);
      ptx::mbarrier_init(item_full(i), 1);
      ptx::mbarrier_init(item_empty(i), 8);
    }
    ptx::mbarrier_init_fence();
  }

 private:
  __device__ __forceinline__ uint32_t at(int i) const { return base + 8 * i; }
};

template <class C>
__device__ __forceinline__ int tiles_of(int32_t key_begin, int32_t key_end) {
  return (key_end - key_begin + C::kKeys - 1) / C::kKeys;
}

// Copies `blocks` blocks of `rows` rows by a warp: lane j has the address of row j, null for zeros, of which they begin at `from_byte`. A
// warp copies 128 * blocks bytes of 4 / blocks rows at a time.
template <int rows, int blocks>
__device__ __forceinline__ void copy_columns(const char *mine, uint32_t to, int from_byte) {
  static_assert(blocks == 1 || blocks == 4);
  const int lane = threadIdx.x % 32;
  const auto address = reinterpret_cast<unsigned long long>(mine);
  to += lane / 8 % blocks * (64 * 128);
  from_byte += lane % (8 * blocks) * 16;
#pragma unroll 1
  for (int j = 0; j < rows; j += 4 / blocks) {
    const int row = j + lane / (8 * blocks);
    const auto from = reinterpret_cast<const char *>(__shfl_sync(~0u, address, row));
    ptx::cp_async_16(to + row * 128 + ((lane % 8 ^ row % 8) << 4), from + from_byte, from != nullptr);
  }
}

template <class C>
class Sm90Copies {
 public:
  __device__ __forceinline__ Sm90Copies(const Launch &l, char *shared, Sm90Barriers<C> barriers)
      : l_(l),
        p_(l.p),
        shared_(ptx::shared_address(shared)),
        barriers_(barriers),
        boxes_(l.box_keys > 0 ? C::kKeys / l.box_keys : 0),
        rank_(blockIdx.x % l.pair),
        policy_(ptx::cache_policy(l.pair == l.row_group)),
        sender_(reinterpret_cast<Item *>(shared + C::kOffsetItems), barriers) {}

  __device__ __forceinline__ void run(const Item &item) {
    const int tiles = tiles_of<C>(item.key_begin, item.key_end);
    if (warp_ == 0) sender_.send(item, lane_);
    if (l_.box_keys > 0) {
      if constexpr (C::kRopeBlocks > 0) {
        if (warp_ == 0) copy_boxes<C::kRopeBlocks>(item, tiles, 0);
      }
      if (warp_ == 1 || warp_ == 2) copy_boxes<C::kGroupBlocks>(item, tiles, warp_);
    } else {
      fetch_page(item, 0);
#pragma unroll 1
      for (int t = 0; t < tiles; ++t) gather(item, t);
    }
    uses_[0] += (tiles + 1) / 2;
    uses_[1] += tiles / 2;
  }

  // Tells the computing groups that there is no more. Copies must not outlive their threads.
  __device__ __forceinline__ void finish() {
    if (warp_ == 0) sender_.finish(lane_);
    ptx::cp_async_wait_all();
  }

 private:
  // Until part `part` of the stage of tile t may be overwritten.
  __device__ __forceinline__ void wait_for_room(int t, int part) const {
    const int stage = t % 2;
    const uint32_t uses = (stage == 0 ? uses_[0] : uses_[1]) + t / 2;
    ptx::mbarrier_wait(barriers_.empty(stage, part), uses % 2 ^ 1);
  }

  // Where a box of an item begins.
  struct Box {
    int32_t page, key;  // key: its place in the page
  };
  // Box `i` of an item. Page -1, which is outside the cache and reads as zeros, where there is none or the table ends.
  __device__ __forceinline__ Box box_of(const Item &item, int32_t i) const {
    const int64_t key = item.key_begin + int64_t{i} * l_.box_keys;
    const bool used = key < item.key_end;
    const rules::Slot slot = rules::slot_of(used ? static_cast<int32_t>(key) : 0, p_.page_size);
    return {used && slot.entry < p_.table_width ? rules::page_id(p_, item.request, slot.entry) : -1, slot.offset};
  }

  // A part of all tiles of an item, by the copy engine; by one warp. Each lane looks up one of the next 32 boxes while the 32 before are
  // copied: a division and a read from memory for each box would take longer than the copies.
  template <int blocks>
  __device__ __forceinline__ void copy_boxes(const Item &item, int tiles, int part) {
    constexpr int kHalves = blocks > 1 ? 2 : 1, kHalf = blocks / kHalves;
    const int first = C::first_block(part), box_bytes = l_.box_keys * 128;
    const uint32_t to = shared_ + C::kOffsetK + first * C::kBlockBytes;
    Box boxes = box_of(item, lane_), next = box_of(item, lane_ + 32);
    int looked_up = 0;  // boxes before those of `boxes`
#pragma unroll 1
    for (int t = 0, i = 0; t < tiles; ++t, i += boxes_) {
      if (i - looked_up == 32) {
        looked_up = i;
        boxes = next;
        next = box_of(item, looked_up + 32 + lane_);
      }
      const int stage = t % 2, keys = item.key_end - item.key_begin - t * C::kKeys;
      const int used = keys >= C::kKeys ? boxes_ : (keys + l_.box_keys - 1) / l_.box_keys;
      wait_for_room(t, part);
      const bool one = ptx::elect();
      if (one) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
          ptx::mbarrier_arrive_expect(barriers_.full(stage, part, half), used * kHalf * box_bytes);
      }
#pragma unroll 1
      for (int j = 0; j < used; ++j) {
        const int32_t page = __shfl_sync(~0u, boxes.page, i - looked_up + j);
        const int32_t key = __shfl_sync(~0u, boxes.key, i - looked_up + j);
        if (one) {
          const uint32_t there = to + stage * C::kTileBytes + j * box_bytes;
          if (l_.pair == 1) {
#pragma unroll
            for (int b = 0; b < blocks; ++b)
              ptx::copy_box(there + b * C::kBlockBytes, l_.kv_map.bytes, (first + b) * 64, key, page,
                            barriers_.full(stage, part, b / kHalf), policy_);
          } else if (kHalves == 2 || rank_ == stage) {
#pragma unroll
            for (int i = 0; i < kHalf; ++i) {
              const int b = kHalves == 2 ? rank_ * kHalf + i : 0;
              ptx::copy_box_to(3, there + b * C::kBlockBytes, l_.kv_map.bytes, (first + b) * 64, key, page,
                               barriers_.full(stage, part, kHalves == 2 ? rank_ : 0), policy_);
            }
          }
        }
      }
      __syncwarp();
    }
  }

  static constexpr int kWarpKeys = C::kKeys / 4;
  static_assert(kWarpKeys == 16);

  // Lane j < 16 of a warp looks up the page of key j of the warp's keys of tile t, one tile ahead of the copies.
  __device__ __forceinline__ void fetch_page(const Item &item, int t) {
    const int lane = ptx::lane();
    const int64_t key = item.key_begin + static_cast<int64_t>(t) * C::kKeys + warp_ * kWarpKeys + lane;
    const rules::Slot slot = rules::slot_of(static_cast<int32_t>(key), p_.page_size);
    offset_ = slot.offset;
    page_ = -1;
    if (lane < kWarpKeys && key < item.key_end && slot.entry < p_.table_width)
      page_ = rules::page_id(p_, item.request, slot.entry);
  }

  // All parts of tile t, those of the owner first; by all warps, 16 bytes a thread.
  __device__ __forceinline__ void gather(const Item &item, int t) {
    const char *mine = slot_address(p_, page_, offset_);
    fetch_page(item, t + 1);
    const int stage = t % 2;
    const uint32_t to = shared_ + C::kOffsetK + stage * C::kTileBytes + warp_ * kWarpKeys * 128;
    if constexpr (C::kRopeBlocks > 0) {
      wait_for_room(t, 0);
      copy_columns<kWarpKeys, C::kRopeBlocks>(mine, to + C::kValueBlocks * C::kBlockBytes, C::kValueBlocks * 128);
      ptx::mbarrier_arrive_after_copies(barriers_.full(stage, 0, 0));
    }
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const int group = stage ^ i, first = group * C::kGroupBlocks;
      wait_for_room(t, 1 + group);
      copy_columns<kWarpKeys, C::kGroupBlocks>(mine, to + first * C::kBlockBytes, first * 128);
      for (int half = 0; half < 2; ++half) ptx::mbarrier_arrive_after_copies(barriers_.full(stage, 1 + group, half));
    }
  }

  const Launch &l_;
  const Problem &p_;
  const uint32_t shared_;
  const Sm90Barriers<C> barriers_;
  const int warp_ = threadIdx.x / 32 % 4, lane_ = threadIdx.x % 32;
  const int boxes_;  // of a tile
  const int rank_;   // in the pair
  // Keys that no other block copies go first from the L2 cache: partial results stay there until they are merged.
  const unsigned long long policy_;
  int32_t page_ = -1, offset_ = 0;
  uint32_t uses_[2] = {0, 0};  // of the stages; so far
  ItemSender<Sm90Barriers<C>> sender_;
};

}  // namespace mlaverify::cuda
