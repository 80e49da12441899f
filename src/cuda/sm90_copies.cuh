// The copying warpgroup of verify_sm90.cuh, and what it shares with the computing ones: sizes, the layout of shared memory, barriers.
#pragma once

#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "cuda/schedule.cuh"
#include "rules/config_table.h"

namespace mlaverify::cuda {

template <class Type, int qk_dim, int v_dim>
struct Sm90Config {
  using T = Type;
  static constexpr rules::VerifyConfig kTable = rules::hopper_config();
  static constexpr int kQk = qk_dim, kV = v_dim, kRows = kTable.block_h, kKeys = kTable.block_n, kStages = kTable.num_stages;
  static constexpr int kGroup = 128, kThreads = 3 * kGroup;  // threads
  static constexpr int kGroupValues = 256;                   // columns of a computing group
  static constexpr int kBlocks = kQk / 64, kBlockBytes = 64 * 128;

  static constexpr int kTileBytes = kBlocks * kBlockBytes;  // of Q too
  static constexpr int kOffsetK = kTileBytes, kOffsetP = kOffsetK + kStages * kTileBytes;
  static constexpr int kOffsetReference = kOffsetP + kBlockBytes, kOffsetSum = kOffsetReference + kRows * 4;
  static constexpr int kOffsetItems = kOffsetSum + 2 * kRows * 4;
  static constexpr int kOffsetAnswer = kOffsetItems + 2 * static_cast<int>(sizeof(Item));
  static constexpr int kOffsetBarriers = kOffsetAnswer + 8;
  static constexpr int kSharedBytes = kOffsetBarriers + 8 * (4 * kStages + 5);

  static constexpr int kComputeRegisters = 216, kCopyRegisters = 72;
  static_assert(2 * kComputeRegisters + kCopyRegisters <= 3 * (65536 / kThreads / 8 * 8), "what the launch gives");
  static_assert(kQk % 64 == 0 && kV == 2 * kGroupValues && kQk >= kV);
  static_assert(kRows == 64 && kKeys == 64 && kStages == 2 && kThreads == 32 * kTable.num_warps,
                "what the schedule is made for");
  static_assert(kSharedBytes <= 227 * 1024);
};

// The barriers of a block.
template <class C>
struct Sm90Barriers {
  uint32_t base;  // shared address
  __device__ __forceinline__ uint32_t full(int stage) const { return base + 8 * stage; }
  __device__ __forceinline__ uint32_t keys_empty(int stage) const { return base + 8 * (C::kStages + stage); }
  __device__ __forceinline__ uint32_t values_empty(int stage, int group) const {
    return base + 8 * (2 * C::kStages + 2 * stage + group);
  }
  __device__ __forceinline__ uint32_t q_full() const { return base + 8 * (4 * C::kStages); }
  __device__ __forceinline__ uint32_t q_empty() const { return base + 8 * (4 * C::kStages + 1); }
  __device__ __forceinline__ uint32_t item() const { return base + 8 * (4 * C::kStages + 2); }
  __device__ __forceinline__ uint32_t weights(int owner) const { return base + 8 * (4 * C::kStages + 3 + owner); }

  __device__ __forceinline__ void init(bool boxes) const {
    for (int s = 0; s < C::kStages; ++s) {
      ptx::mbarrier_init(full(s), boxes ? 1 : C::kGroup);
      ptx::mbarrier_init(keys_empty(s), 4);
      for (int g = 0; g < 2; ++g) ptx::mbarrier_init(values_empty(s, g), 4);
    }
    for (int g = 0; g < 2; ++g) ptx::mbarrier_init(weights(g), C::kGroup);
    ptx::mbarrier_init(q_full(), C::kGroup);
    ptx::mbarrier_init(q_empty(), 8);
    ptx::mbarrier_init(item(), 1);
    ptx::mbarrier_init_fence();
  }
};

template <class C>
__device__ __forceinline__ int tiles_of(int32_t key_begin, int32_t key_end) {
  return (key_end - key_begin + C::kKeys - 1) / C::kKeys;
}

template <class C>
class Sm90Copies {
 public:
  __device__ __forceinline__ Sm90Copies(const Launch &l, char *shared, Sm90Barriers<C> barriers)
      : l_(l),
        p_(l.p),
        items_at_(reinterpret_cast<Item *>(shared + C::kOffsetItems)),
        shared_(ptx::shared_address(shared)),
        barriers_(barriers) {}

  __device__ __forceinline__ void run(const Item &item) {
    const int tiles = tiles_of<C>(item.key_begin, item.key_end);
    if (l_.box_keys == 0) fetch_page(item, 0);
    hand_over(item);
    if (tiles == 0) return;
    copy_queries(item);
    ptx::mbarrier_arrive_after_copies(barriers_.q_full());
    if (l_.box_keys > 0) {
      if (warp_ == 0) copy_boxes(item, tiles);
      tiles_ += tiles;
      return;
    }
    for (int t = 0; t < tiles; ++t, ++tiles_) {
      const int stage = static_cast<int>(tiles_ % C::kStages);
      const uint32_t parity = tiles_ / C::kStages % 2 ^ 1;
      ptx::mbarrier_wait(barriers_.keys_empty(stage), parity);
      for (int g = 0; g < 2; ++g) ptx::mbarrier_wait(barriers_.values_empty(stage, g), parity);
      copy_tile(item, t, shared_ + C::kOffsetK + stage * C::kTileBytes);
      ptx::mbarrier_arrive_after_copies(barriers_.full(stage));
    }
  }

  // Tells the computing groups that there is no more. Copies must not outlive their threads.
  __device__ __forceinline__ void finish() {
    hand_over(Item{kNoMore, 0, 0, 0, 0});
    ptx::cp_async_wait_all();
  }

  static constexpr int32_t kNoMore = -1;  // request of the item behind the last

 private:
  __device__ __forceinline__ void hand_over(const Item &item) {
    ptx::mbarrier_wait(barriers_.q_empty(), items_ % 2 ^ 1);
    if (threadIdx.x % C::kGroup == 0) {
      items_at_[items_ % 2] = item;
      ptx::mbarrier_arrive(barriers_.item());
    }
    ++items_;
  }

  // Box `lane` of a tile.
  struct Box {
    int32_t page, key;  // key: the first one's place in the page
    bool used;
  };
  __device__ __forceinline__ Box box_of(const Item &item, int t) const {
    const int64_t key = int64_t{item.key_begin} + int64_t{t} * C::kKeys + lane_ * l_.box_keys;
    const bool used = lane_ < C::kKeys / l_.box_keys && key < item.key_end;
    const rules::Slot slot = rules::slot_of(used ? static_cast<int32_t>(key) : 0, p_.page_size);
    const bool known = used && slot.entry < p_.table_width;
    return {known ? rules::page_id(p_, item.request, slot.entry) : -1, slot.offset, used};
  }

  // All tiles of an item, by the copy engine; by one warp. The parts of a stage are filled as they become free: first the blocks
  // that are no values, then those of the tile's owner.
  __device__ __forceinline__ void copy_boxes(const Item &item, int tiles) {
    Box now = box_of(item, 0), next = box_of(item, 1);
    for (int t = 0; t < tiles; ++t, now = next, next = box_of(item, t + 1)) {
      const uint32_t tile = tiles_ + t;
      const int stage = static_cast<int>(tile % C::kStages);
      const uint32_t parity = tile / C::kStages % 2 ^ 1, full = barriers_.full(stage);
      const uint32_t to = shared_ + C::kOffsetK + stage * C::kTileBytes + lane_ * l_.box_keys * 128;
      const int count = __popc(__ballot_sync(~0u, now.used));
      ptx::mbarrier_wait(barriers_.keys_empty(stage), parity);
      if (lane_ == 0) ptx::mbarrier_arrive_expect(full, count * l_.box_keys * C::kQk * 2);
      __syncwarp();
      if (now.used) {
#pragma unroll
        for (int b = C::kV / 64; b < C::kBlocks; ++b)
          ptx::copy_box(to + b * C::kBlockBytes, l_.kv_map.bytes, b * 64, now.key, now.page, full);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int g = (t + i) % 2;
        ptx::mbarrier_wait(barriers_.values_empty(stage, g), parity);
        if (now.used) {
#pragma unroll
          for (int j = 0; j < C::kGroupValues / 64; ++j) {
            const int b = g * (C::kGroupValues / 64) + j;
            ptx::copy_box(to + b * C::kBlockBytes, l_.kv_map.bytes, b * 64, now.key, now.page, full);
          }
        }
      }
    }
  }

  static constexpr int kWarpRows = C::kRows / 4;
  static_assert(kWarpRows == C::kKeys / 4 && kWarpRows == 16);

  // Lane j < 16 of a warp looks up the page of key j of the warp's keys of tile t, one tile ahead of the copies.
  __device__ __forceinline__ void fetch_page(const Item &item, int t) {
    const int64_t key = item.key_begin + static_cast<int64_t>(t) * C::kKeys + warp_ * kWarpRows + lane_;
    const rules::Slot slot = rules::slot_of(static_cast<int32_t>(key), p_.page_size);
    offset_ = slot.offset;
    page_ = -1;
    if (lane_ < kWarpRows && key < item.key_end && slot.entry < p_.table_width)
      page_ = rules::page_id(p_, item.request, slot.entry);
  }

  __device__ __forceinline__ void copy_tile(const Item &item, int t, uint32_t tile) {
    const char *mine = slot_address(p_, page_, offset_);
    fetch_page(item, t + 1);
    copy_rows(mine, tile);
  }

  __device__ __forceinline__ void copy_queries(const Item &item) {
    const int64_t row = item.row_tile * static_cast<int64_t>(C::kRows) + warp_ * kWarpRows + lane_;
    const char *mine = nullptr;
    if (lane_ < kWarpRows && row < rules::request_rows(p_, item.request))
      mine = static_cast<const char *>(p_.q) + rules::q_offset(p_, item.request, rules::unpack_row(row, p_.num_heads)) * 2;
    copy_rows(mine, shared_);
  }

  // The warp's 16 rows; lane j has the address of row j, null for zeros. A warp copies 512 bytes of a row at a time, then
  // the last block of four rows.
  __device__ __forceinline__ void copy_rows(const char *mine, uint32_t tile) const {
    const auto address = reinterpret_cast<unsigned long long>(mine);
    const uint32_t to = tile + warp_ * kWarpRows * 128;
#pragma unroll 4
    for (int j = 0; j < kWarpRows; ++j) {
      const auto from = reinterpret_cast<const char *>(__shfl_sync(~0u, address, j));
      const uint32_t at = to + lane_ / 8 * C::kBlockBytes + j * 128 + ((lane_ % 8 ^ j % 8) << 4);
#pragma unroll
      for (int b = 0; b + 4 <= C::kBlocks; b += 4)
        ptx::cp_async_16(at + b * C::kBlockBytes, from + b * 128 + lane_ * 16, from != nullptr);
    }
    static_assert(C::kBlocks % 4 <= 1);
    if constexpr (C::kBlocks % 4 == 1) {
      constexpr int b = C::kBlocks - 1;
#pragma unroll
      for (int j = 0; j < kWarpRows; j += 4) {
        const int row = j + lane_ / 8;
        const auto from = reinterpret_cast<const char *>(__shfl_sync(~0u, address, row));
        ptx::cp_async_16(to + b * C::kBlockBytes + row * 128 + ((lane_ % 8 ^ row % 8) << 4), from + b * 128 + lane_ % 8 * 16,
                         from != nullptr);
      }
    }
  }

  const Launch &l_;
  const Problem &p_;
  Item *const items_at_;
  const uint32_t shared_;
  const Sm90Barriers<C> barriers_;
  const int warp_ = threadIdx.x / 32 % 4, lane_ = threadIdx.x % 32;
  int32_t page_ = -1, offset_ = 0;
  uint32_t items_ = 0, tiles_ = 0;  // so far
};

}  // namespace mlaverify::cuda
