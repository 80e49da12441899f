// What both kinds of warps of verify_sm80.cuh share: sizes, the layout of shared memory, barriers, copies.
#pragma once

#include "cuda/ptx.cuh"
#include "cuda/schedule.cuh"
#include "cuda/widen.cuh"
#include "rules/number.h"

namespace mlaverify::cuda {

// Of the 16 hardware barriers of a block.
enum NamedBarrier : int { kItem = 0, kValues, kWeightsReady, kWeightsRead = kWeightsReady + 2, kPair = kWeightsRead + 2 };

// `arch`: the architecture that the code is compiled for, so that each one has kernels of its own name.
template <int arch, class Type, int qk_dim, int v_dim, int rows, int keys, int stages, int warps>
struct Sm80Config {
  using T = Type;
  static constexpr int kQk = qk_dim, kV = v_dim, kRows = rows, kKeys = keys, kStages = stages, kWarps = warps;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocks = kRows / 16;                     // blocks of 16 rows
  static constexpr int kPairBlocks = kBlocks < 2 ? kBlocks : 2;  // of a pair of score warps
  static constexpr int kScoreWarps = 2 * kBlocks / kPairBlocks;
  static constexpr int kValueWarps = kWarps - kScoreWarps;
  static constexpr int kWarpLoads = 4;                        // rows that a value warp copies at a time
  static constexpr int kWarpValues = kV / kValueWarps;        // columns of a value warp's part of acc
  static constexpr int kChunks = kQk / 8;                     // 16-byte chunks of a row
  static constexpr int kPitch = (kQk * 2 + 127) / 128 * 128;  // bytes of a row in shared memory

  static constexpr int kQBytes = kRows * kPitch, kTileBytes = kKeys * kPitch;
  static constexpr int kOffsetK = kQBytes, kOffsetFactors = kOffsetK + kStages * kTileBytes;
  static constexpr int kOffsetMax = kOffsetFactors + 2 * 4 * kRows, kOffsetSum = kOffsetMax + 4 * kRows;
  static constexpr int kOffsetItems = kOffsetSum + 4 * kRows, kOffsetCursors = kOffsetItems + 2 * sizeof(Item);
  static constexpr int kOffsetFull = kOffsetCursors + kScoreWarps * sizeof(ItemCursor);
  static constexpr int kSharedBytes = kOffsetFull + 8 * kStages;

  // Blocks of a multiprocessor: two of small tiles of narrow rows, where one would leave it waiting for its own steps. (Compiled for sm_80, the
  // registers do not suffice.)
  static constexpr int kSharedPerSm = (arch == 90   ? 228
                                       : arch == 80 ? 164
                                                    : 100) *
                                      1024,
                       kReserved = 1024;  // the latter of a block, by the driver
  static constexpr int kResident =
      arch == 90 && kRows == 16 && kV <= 256 && 2 * (kSharedBytes + kReserved) <= kSharedPerSm ? 2 : 1;

  static_assert(kSharedBytes + kReserved <= kSharedPerSm, "the tile fits");
  static_assert(kRows % (16 * kPairBlocks) == 0 && kKeys == 32 && kStages >= 2);
  static_assert(kPitch >= 256, "P and the sums that a pair exchanges take the first two lines of Q");
  static_assert(kBlocks * (kWarpValues / 8) * 4 <= 128 && (kResident == 2 || 65536 / kThreads >= 168),
                "accumulators and what else they need");
  static_assert(kPair + kScoreWarps / 2 <= 16, "hardware barriers");
  static_assert(kOffsetItems % 8 == 0 && kOffsetCursors % 8 == 0 && kOffsetFull % 8 == 0, "alignment of Item and of mbarriers");
  static_assert(kQk % 32 == 0 && kV % (16 * kValueWarps) == 0, "whole ldmatrix_x4 loads");
  static_assert(kWarpValues <= 64 && 64 % kWarpValues == 0, "the columns of a value warp are in one line");
  static_assert(kKeys == kWarpLoads * kValueWarps, "a value warp copies a key with each eight lanes");
};

// Where a block is in the circle of stages.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t phase = 0;  // of the stage's mbarrier
  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// Rows of a tile are lines of 128 bytes, each of 8 chunks of 16 bytes. Byte offset of chunk `chunk` of row `row`; chunks further
// along the row keep their place in the line: add 128 a line.
template <int kPitchBytes>
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  static_assert(kPitchBytes % 128 == 0);
  return static_cast<uint32_t>(row * kPitchBytes + ((chunk ^ (row & 7)) << 4));
}

// Copies four rows into a tile: a row by each eight lanes, which pass its address (null: zeros) and its row of the tile.
// Completes with the thread's cp.async copies.
template <class C>
__device__ __forceinline__ void copy_rows(char *tile, int row, const char *from) {
  const int chunk = ptx::lane() % 8;  // of each line
  const uint32_t to = ptx::shared_address(tile + swizzled<C::kPitch>(row, chunk));
#pragma unroll
  for (int line = 0; line < C::kPitch / 128; ++line) {
    if (line * 8 + 8 <= C::kChunks || line * 8 + chunk < C::kChunks)
      ptx::cp_async_16(to + line * 128, from + line * 128 + chunk * 16, from != nullptr);
  }
}

// The same from FP8; complete at once.
template <class C>
__device__ __forceinline__ void widen_rows(char *tile, int row, const char *from, bool e4m3) {
  constexpr int kLines = C::kPitch / 128;
  const int chunk = ptx::lane() % 8;
  char *to = tile + swizzled<C::kPitch>(row, chunk);
  const auto inside = [&](int line) { return line * 8 + 8 <= C::kChunks || line * 8 + chunk < C::kChunks; };
  uint2 bytes[kLines];
#pragma unroll
  for (int line = 0; line < kLines; ++line) {
    bytes[line] = {0, 0};
    if (from != nullptr && inside(line)) bytes[line] = reinterpret_cast<const uint2 *>(from)[line * 8 + chunk];
  }
#pragma unroll
  for (int line = 0; line < kLines; ++line)
    if (inside(line)) *reinterpret_cast<uint4 *>(to + line * 128) = widen<typename C::T>(bytes[line], e4m3);
}

// The current item and the one before or after it, each in its turn.
template <class C>
__device__ __forceinline__ Item *shared_items(char *shared) {
  return reinterpret_cast<Item *>(shared + C::kOffsetItems);
}

template <class C>
__device__ __forceinline__ int num_tiles(const Item &item) {
  return (item.key_end - item.key_begin + C::kKeys - 1) / C::kKeys;
}

}  // namespace mlaverify::cuda
