// Paging, in one place: where key `key` of a request lies in the cache. All offsets are 64-bit.
#pragma once

#include "rules/hd.h"
#include "rules/problem.h"

namespace mlaverify::rules {

// Pages that hold the first `keys` keys of a request.
MLAVERIFY_HD int64_t pages_for(int64_t keys, int32_t page_size) { return ceil_div<int64_t>(max<int64_t>(keys, 0), page_size); }

// Keys that a request's row of the block table can hold; lengths are 32-bit, so no more than these count.
MLAVERIFY_HD int64_t table_keys(const Problem &p) {
  return min<int64_t>(p.table_width, int64_t{INT32_MAX} / p.page_size + 1) * p.page_size;
}

struct Slot {
  int64_t entry;   // index in the request's block table row
  int32_t offset;  // token within the page
};

MLAVERIFY_HD Slot slot_of(int64_t key, int32_t page_size) { return {key / page_size, static_cast<int32_t>(key % page_size)}; }

// The same of a key >= 0 of 32 bits, in 32-bit arithmetic: a fraction of the work on a GPU.
MLAVERIFY_HD Slot slot_of(int32_t key, int32_t page_size) {
  const auto k = static_cast<uint32_t>(key), size = static_cast<uint32_t>(page_size);
  return {k / size, static_cast<int32_t>(k % size)};
}

MLAVERIFY_HD int32_t page_id(const Problem &p, int32_t request, int64_t entry) {
  return p.block_table[request * p.table_row_stride + entry];
}

// Offset in elements of a token of a page.
MLAVERIFY_HD int64_t kv_offset(const Problem &p, int32_t page, int32_t offset) {
  return page * p.kv_page_stride + offset * p.kv_slot_stride;
}

// Offset in elements of key `key` of a request.
MLAVERIFY_HD int64_t key_offset(const Problem &p, int32_t request, int64_t key) {
  const Slot slot = slot_of(key, p.page_size);
  return kv_offset(p, page_id(p, request, slot.entry), slot.offset);
}

static_assert(pages_for(0, 16) == 0 && pages_for(16, 16) == 1 && pages_for(17, 16) == 2 && pages_for(-4, 16) == 0);
static_assert(slot_of(100, 48).entry == 2 && slot_of(int64_t{100}, 48).offset == 4);

}  // namespace mlaverify::rules
