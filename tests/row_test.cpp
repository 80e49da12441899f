// Rows of the cache: sizes, and the numbers of a record against its definition, read byte by byte.
#include "rules/row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "random.h"

namespace mlaverify::rules {
namespace {

constexpr DType kRecord = DType::f8_ds_mla;

TEST(Row, Sizes) {
  EXPECT_EQ(row_elements(DType::bf16, 320), 320);
  EXPECT_EQ(row_bytes(DType::bf16, 320), 640);
  EXPECT_EQ(row_bytes(DType::f32, 8), 32);
  EXPECT_EQ(row_elements(kRecord, 576), 656);
  EXPECT_EQ(row_bytes(kRecord, 576), 656);
  EXPECT_EQ(row_alignment(kRecord), 4);
  EXPECT_EQ(row_alignment(DType::f8_e5m2), 1);
  EXPECT_EQ(row_alignment(DType::f16), 2);
}

// The parts of a row follow each other, with each number in one of them and each byte at most in one.
TEST(Row, PartsAreTheRow) {
  for (const DType t : {DType::f32, DType::bf16, DType::f8_e4m3, kRecord}) {
    std::vector<int> used(static_cast<std::size_t>(row_bytes(t, 576)), 0);
    for (int32_t d = 0; d < 576;) {
      const RowPart part = row_part(t, 576, d);
      ASSERT_EQ(part.begin, d);
      ASSERT_GT(part.end, d);
      for (int32_t i = part.begin; i < part.end; ++i) EXPECT_EQ(row_part(t, 576, i).begin, part.begin);
      for (int32_t i = 0; i < (part.end - part.begin) * dtype_bytes(part.dtype); ++i)
        ++used[static_cast<std::size_t>(part.at + i)];
      d = part.end;
    }
    for (std::size_t i = 0; i < used.size(); ++i) EXPECT_EQ(used[i], t == kRecord && i >= 512 && i < 528 ? 0 : 1) << i;
  }
}

// Every code in every group, with scales of all kinds.
TEST(Row, NumbersOfARecord) {
  const float inf = std::numeric_limits<float>::infinity();
  const float scales[] = {1, 0x1p-10f, 7.3f, 0.0123f, -2.5f, 0, -0.0f, 1e-40f, 3e38f, inf, -inf, std::nanf("")};
  alignas(4) unsigned char row[kRecordBytes];
  for (std::size_t s = 0; s < std::size(scales); ++s) {
    for (int first = 0; first < 256; ++first) {  // of 128 codes in a group: each code in each place
      for (int i = 0; i < 512; ++i) row[i] = static_cast<unsigned char>(first + i);
      for (std::size_t g = 0; g < 4; ++g) std::memcpy(row + 512 + 4 * g, &scales[(s + g) % std::size(scales)], 4);
      for (int32_t d = 0; d < 512; ++d) {
        const float scale = scales[(s + static_cast<std::size_t>(d) / 128) % std::size(scales)];
        const float want = e4m3_to_float(static_cast<uint8_t>(first + d)) * scale, got = row_number(kRecord, row, d);
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(got)) << first << " " << d;
        } else {
          ASSERT_EQ(bits_from_float(got), bits_from_float(want)) << first << " " << d;
        }
      }
    }
  }
  for (int i = 0; i < 64; ++i) {
    const uint16_t bits = float_to_bf16(static_cast<float>(i) - 30.5f);
    std::memcpy(row + 528 + 2 * i, &bits, 2);
  }
  for (int32_t d = 512; d < 576; ++d) EXPECT_EQ(row_number(kRecord, row, d), static_cast<float>(d - 512) - 30.5f);
}

TEST(Row, NumbersOfOtherTypes) {
  alignas(4) unsigned char row[kRecordBytes];
  for (const DType t : {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2}) {
    for (int32_t d = 0; d < 8; ++d) store_float(t, row, d, static_cast<float>(d) - 3);
    for (int32_t d = 0; d < 8; ++d) EXPECT_EQ(row_number(t, row, d), static_cast<float>(d) - 3);
  }
}

// Random rows, as tests and benchmarks make them: numbers of about the size asked for, all finite.
TEST(Row, RandomRecords) {
  alignas(4) unsigned char row[kRecordBytes];
  cli::Random random(3);
  for (const float sigma : {1.0f, 0x1p-10f, 7.3f}) {
    double squares = 0;
    for (int i = 0; i < 50; ++i) {
      cli::poison(row, sizeof row);
      cli::fill_row(random, kRecord, row, kRecordWidth, sigma);
      for (int32_t d = 0; d < kRecordWidth; ++d)
        squares += std::pow(static_cast<double>(row_number(kRecord, row, d) / sigma), 2);
    }
    EXPECT_NEAR(squares / 50 / kRecordWidth, 1.08, 0.2);
  }
}

}  // namespace
}  // namespace mlaverify::rules
