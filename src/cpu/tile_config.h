// The configuration of AMX's tile registers that this project uses: palette 1 of LDTILECFG (Intel SDM vol. 1, 18.2), all eight registers with 16 rows
// of 64 bytes.
#pragma once

#include <cstdint>

namespace mlaverify::cpu {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

constexpr TileConfig kTileConfig;

}  // namespace mlaverify::cpu
