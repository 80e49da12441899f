// A row of the cache, in one place: how many bytes it has, and how number `d` of it is read.
//
// A row of most types is an array of their numbers. A record (DType::f8_ds_mla) has 656 bytes for 576 numbers: 512 e4m3 numbers in four
// groups of 128, then the f32 scale of each group, then 64 bf16 numbers. Number d < 512 is the f32 product of e4m3 number d and the scale
// of its group; number d >= 512 is bf16 number d - 512. The element of such a tensor is a byte.
#pragma once

#include "rules/hd.h"
#include "rules/number.h"
#include "rules/problem.h"

namespace mlaverify::rules {

constexpr int32_t kRecordBytes = 656, kRecordScalesAt = 512, kRecordTailAt = 528;
constexpr int32_t kRecordWidth = 576, kRecordScaled = 512;  // Lk; the first numbers, which have scales: Lv
constexpr int32_t kRecordGroup = 128, kRecordGroups = kRecordScaled / kRecordGroup;
constexpr int32_t kRecordAlignment = 4;  // bytes: that of its scales

// Scales up to this size may multiply a sum of products with the numbers of their group instead of these, and give numbers that are finite
// in bf16. With others, infinity and NaN among them, that is not the same.
constexpr float kRecordMostScale = 0x1p119f;

MLAVERIFY_HD bool is_record(DType t) { return t == DType::f8_ds_mla; }

// The last dimension of a cache, in elements of its type, whose rows have `width` numbers.
MLAVERIFY_HD int32_t row_elements(DType t, int32_t width) { return is_record(t) ? kRecordBytes : width; }

MLAVERIFY_HD int64_t row_bytes(DType t, int32_t width) { return int64_t{row_elements(t, width)} * dtype_bytes(t); }

// Bytes that addresses of rows are a multiple of.
MLAVERIFY_HD int32_t row_alignment(DType t) { return is_record(t) ? kRecordAlignment : dtype_bytes(t); }

// The row at an offset in elements (paging.h).
MLAVERIFY_HD const char *row_at(const Problem &p, int64_t offset) {
  return static_cast<const char *>(p.kv) + offset * dtype_bytes(p.kv_dtype);
}

// Numbers [begin, end) of a row that lie in it as an array, from byte `at` on; with a scale of their own, or with none.
struct RowPart {
  DType dtype;  // of the array
  int32_t begin, end;
  int32_t at;
  int32_t group;  // which scale of a record; negative: none
};

// The one with number d of a row of `width` numbers.
MLAVERIFY_HD RowPart row_part(DType t, int32_t width, int32_t d) {
  if (!is_record(t)) return {t, 0, width, 0, -1};
  if (d >= kRecordScaled) return {DType::bf16, kRecordScaled, kRecordWidth, kRecordTailAt, -1};
  const int32_t group = d / kRecordGroup, begin = group * kRecordGroup;
  return {DType::f8_e4m3, begin, begin + kRecordGroup, begin, group};
}

// The scales of a record, one a group.
MLAVERIFY_HD const float *record_scales(const void *row) {
  return static_cast<const float *>(static_cast<const void *>(static_cast<const char *>(row) + kRecordScalesAt));
}
MLAVERIFY_HD float *record_scales(void *row) {
  return static_cast<float *>(static_cast<void *>(static_cast<char *>(row) + kRecordScalesAt));
}

// Number d of a row of a cache of type `t`, but for the scale of an FP8 cache (Problem::k_scale).
MLAVERIFY_HD float row_number(DType t, const void *row, int32_t d) {
  if (!is_record(t)) return load_float(t, row, d);
  if (d >= kRecordScaled) return load_float(DType::bf16, static_cast<const char *>(row) + kRecordTailAt, d - kRecordScaled);
  return load_float(DType::f8_e4m3, row, d) * record_scales(row)[d / kRecordGroup];
}

static_assert(kRecordScaled % kRecordGroup == 0 && kRecordScalesAt == kRecordScaled &&
              kRecordTailAt == kRecordScalesAt + 4 * kRecordGroups &&
              kRecordBytes == kRecordTailAt + 2 * (kRecordWidth - kRecordScaled));
static_assert(row_bytes(DType::bf16, 576) == 1152 && row_bytes(DType::f8_e4m3, 576) == 576 &&
              row_bytes(DType::f8_ds_mla, 576) == 656);
static_assert(row_part(DType::f8_ds_mla, 576, 127).end == 128 && row_part(DType::f8_ds_mla, 576, 128).group == 1 &&
              row_part(DType::f8_ds_mla, 576, 575).at == 528 && row_part(DType::f16, 576, 575).end == 576);

}  // namespace mlaverify::rules
