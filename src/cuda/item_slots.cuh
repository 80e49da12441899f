// How the copying warpgroup of a Hopper kernel tells the computing ones what to work on: by two slots in shared memory, in turn. `Barriers`
// has item_full(slot), of one arrival, and item_empty(slot), of one for each computing warp.
#pragma once

#include "cuda/ptx.cuh"
#include "cuda/schedule.cuh"

namespace mlaverify::cuda {

// For one of the copying warps.
template <class Barriers>
class ItemSender {
 public:
  __device__ __forceinline__ ItemSender(Item *slots, Barriers barriers) : slots_(slots), barriers_(barriers) {}

  __device__ __forceinline__ void send(const Item &item, int lane) {
    const int slot = items_ % 2;
    ptx::mbarrier_wait(barriers_.item_empty(slot), items_ / 2 % 2 ^ 1);
    if (lane == 0) {
      slots_[slot] = item;
      ptx::mbarrier_arrive(barriers_.item_full(slot));
    }
    ++items_;
  }

  // There is no more.
  __device__ __forceinline__ void finish(int lane) { send(Item{kNoMore, 0, 0, 0, 0, 0}, lane); }

  static constexpr int32_t kNoMore = -1;  // request of the item behind the last

 private:
  Item *const slots_;
  const Barriers barriers_;
  uint32_t items_ = 0;  // so far
};

// For a computing warp: run(item) for each, and then release(barrier). An item stays in shared memory, where it takes no registers.
template <class Barriers, class Run, class Release>
__device__ __forceinline__ void receive_items(const char *slots, Barriers barriers, Run run, Release release) {
  for (uint32_t items = 0;; ++items) {
    ptx::mbarrier_wait(barriers.item_full(items % 2), items / 2 % 2);
    const volatile Item &item = reinterpret_cast<const volatile Item *>(slots)[items % 2];
    if (item.request == ItemSender<Barriers>::kNoMore) return;
    run(item);
    __syncwarp();
    release(barriers.item_empty(static_cast<int>(ptx::not_hoisted(items) % 2)));
  }
}

}  // namespace mlaverify::cuda
