// What both kinds of warps of verify_sm80.cuh share: sizes, the layout of shared memory, barriers, copies.
#pragma once

#include "cuda/ptx.cuh"
#include "cuda/schedule.cuh"
#include "cuda/widen.cuh"
#include "rules/row.h"

namespace mlaverify::cuda {

// Of the 16 hardware barriers of a block.
enum NamedBarrier : int { kItem = 0, kValues, kWeightsReady, kWeightsRead = kWeightsReady + 2, kPair = kWeightsRead + 2 };

// `arch`: the architecture that the code is compiled for, so that each one has kernels of its own name.
template <int arch, class Type, int qk_dim, int v_dim, int rows, int keys, int stages, int warps, bool records>
struct Sm80Config {
  using T = Type;
  static constexpr int kQk = qk_dim, kV = v_dim, kRows = rows, kKeys = keys, kStages = stages, kWarps = warps;
  static constexpr bool kRecords = records;
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
  static constexpr int kStageBytes =
      kTileBytes + (kRecords ? 4 * rules::kRecordGroups * kKeys : 0);  // of records: scales [group][key]
  // P and sums: two lines of each row, those of Q or, where no registers are left to keep that in, lines of their own.
  static constexpr int kWeightsPitch = kRecords ? 256 : kPitch;
  static constexpr int kOffsetK = kQBytes, kOffsetBehindK = kOffsetK + kStages * kStageBytes;
  static constexpr int kOffsetWeights = kRecords ? kOffsetBehindK : 0;
  static constexpr int kOffsetFactors = kOffsetBehindK + (kRecords ? kRows * kWeightsPitch : 0);
  static constexpr int kOffsetMax = kOffsetFactors + 2 * 4 * kRows, kOffsetSum = kOffsetMax + 4 * kRows;
  static constexpr int kOffsetItems = kOffsetSum + 4 * kRows, kOffsetCursors = kOffsetItems + 2 * sizeof(Item);
  static constexpr int kOffsetFull = kOffsetCursors + kScoreWarps * sizeof(ItemCursor);
  static constexpr int kOffsetRaw = (kOffsetFull + 8 * kStages + 15) / 16 * 16;

  // Blocks of a multiprocessor: two of small tiles of narrow rows, where one would leave it waiting for its own steps. (Compiled for sm_80, the
  // registers do not suffice.)
  static constexpr int kSharedPerSm = (arch == 90   ? 228
                                       : arch == 80 ? 164
                                                    : 100) *
                                      1024,
                       kReserved = 1024;  // the latter of a block, by the driver
  // Records of the next tile, 84 bytes a thread of the value warps, where there is room: they arrive meanwhile.
  static constexpr int kRawRoom = kSharedPerSm - kReserved - kOffsetRaw, kRawNeed = 84 * 32 * kValueWarps;
  static constexpr int kRawBytes = kRecords && kRawNeed <= kRawRoom ? kRawNeed : 0;
  static constexpr int kSharedBytes = kOffsetRaw + kRawBytes;
  static constexpr int kResident =
      arch == 90 && kRows == 16 && kV <= 256 && 2 * (kSharedBytes + kReserved) <= kSharedPerSm ? 2 : 1;

  static_assert(kSharedBytes + kReserved <= kSharedPerSm, "the tile fits");
  static_assert(kRows % (16 * kPairBlocks) == 0 && kKeys == 32 && kStages >= 2);
  static_assert(kPitch >= 256, "P and the sums that a pair exchanges take the first two lines of Q");
  static_assert(kBlocks * (kWarpValues / 8) * 4 <= 128 && (kResident == 2 || 65536 / kThreads >= 168),
                "accumulators and what else they need");
  static_assert(kPair + kScoreWarps / 2 <= 16, "hardware barriers");
  static_assert(kOffsetItems % 8 == 0 && kOffsetCursors % 8 == 0 && kOffsetFull % 8 == 0, "alignment of Item and of mbarriers");
  static_assert(!kRecords || (kQk == rules::kRecordWidth && kV == rules::kRecordScaled && rules::kRecordGroup == 128),
                "two lines a group, and one without a scale");
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

// The scales behind a tile of records, at shared address `tile`, of a group of columns: of keys key and key + 1.
template <class C>
__device__ __forceinline__ float2 load_scales(uint32_t tile, int group, int key) {
  return ptx::load_shared_8(tile + C::kTileBytes + (group * C::kKeys + key) * 4);
}

// What a lane of the eight that have a record needs of it, as it lies in the cache (null: zeros).
struct CachedRecord {
  const char *from;
  __device__ __forceinline__ uint2 numbers(int line) const {
    return from != nullptr ? reinterpret_cast<const uint2 *>(from)[line * 8 + ptx::lane() % 8] : uint2{0, 0};
  }
  __device__ __forceinline__ uint4 tail() const {
    return from != nullptr ? reinterpret_cast<const uint4 *>(from + rules::kRecordTailAt)[ptx::lane() % 8] : uint4{0, 0, 0, 0};
  }
  __device__ __forceinline__ float scale(int group) const { return from != nullptr ? rules::record_scales(from)[group] : 0.0f; }
};

// The same in shared memory, where the lane has copied it to.
template <class C>
struct RawRecord {
  char *raw;
  int thread;  // of the value warps
  static constexpr int kThreads = 32 * C::kValueWarps, kLines = rules::kRecordScaled / 64;
  static constexpr int kOffsetTail = kLines * 8 * kThreads, kOffsetScale = kOffsetTail + 16 * kThreads;
  static_assert(C::kRawBytes == 0 || C::kRawBytes == kOffsetScale + 4 * kThreads);

  __device__ __forceinline__ char *numbers_at(int line) const { return raw + (line * kThreads + thread) * 8; }
  __device__ __forceinline__ char *tail_at() const { return raw + kOffsetTail + thread * 16; }
  __device__ __forceinline__ char *scale_at() const { return raw + kOffsetScale + thread * 4; }

  // Completes with the thread's cp.async copies.
  __device__ __forceinline__ void copy(const char *from) const {
    const int chunk = ptx::lane() % 8;
    const bool valid = from != nullptr;
#pragma unroll
    for (int line = 0; line < kLines; ++line)
      ptx::cp_async<8>(ptx::shared_address(numbers_at(line)), from + line * 64 + chunk * 8, valid);
    ptx::cp_async<16>(ptx::shared_address(tail_at()), from + rules::kRecordTailAt + chunk * 16, valid);
    if (chunk < rules::kRecordGroups)
      ptx::cp_async<4>(ptx::shared_address(scale_at()), from + rules::kRecordScalesAt + chunk * 4, valid);
  }

  __device__ __forceinline__ uint2 numbers(int line) const { return *reinterpret_cast<const uint2 *>(numbers_at(line)); }
  __device__ __forceinline__ uint4 tail() const { return *reinterpret_cast<const uint4 *>(tail_at()); }
  __device__ __forceinline__ float scale(int /*group*/) const { return *reinterpret_cast<const float *>(scale_at()); }
};

// The same from records: numbers without their scales, which go behind the tile. Those beyond kRecordMostScale multiply the numbers here,
// and are 1 then. Complete at once.
template <class C, class Record>
__device__ __forceinline__ void widen_records(char *tile, int row, const Record &record) {
  constexpr int kLines = rules::kRecordScaled / 64;
  const int chunk = ptx::lane() % 8;
  char *to = tile + swizzled<C::kPitch>(row, chunk);
  uint2 bytes[kLines];
#pragma unroll
  for (int line = 0; line < kLines; ++line) bytes[line] = record.numbers(line);
  uint4 tail = record.tail();
  // The first lanes of the eight have a scale each.
  const float scale = chunk < rules::kRecordGroups ? record.scale(chunk) : 0.0f;
  const bool usual = fabsf(scale) <= rules::kRecordMostScale, all_usual = __all_sync(~0u, usual);
#pragma unroll
  for (int line = 0; line < kLines; ++line) {
    uint4 numbers = widen<typename C::T>(bytes[line], true);
    if (!all_usual) {
      const float s = __shfl_sync(~0u, usual ? 1.0f : scale, line / 2, 8);
      numbers = scaled<typename C::T>(numbers, s);
    }
    *reinterpret_cast<uint4 *>(to + line * 128) = numbers;
  }
  *reinterpret_cast<uint4 *>(to + kLines * 128) = from_bf16<typename C::T>(tail);
  if (chunk < rules::kRecordGroups)
    reinterpret_cast<float *>(tile + C::kTileBytes)[chunk * C::kKeys + row] = usual ? scale : 1.0f;
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
