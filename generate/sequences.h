// The sequences of one call of the model, and where their tokens lie in the paged caches.
#pragma once

#include <cstdint>

#include "rules/paging.h"

namespace mlaverify::generate {

// Each sequence has `qlen` new tokens, the last ones of its seq_lens[b] tokens. Their latents go to the pages that the block table
// names; those of the tokens before lie there.
struct Sequences {
  int32_t batch;
  int32_t qlen;
  const int32_t *block_table;  // [batch, table_width]
  int64_t table_width;
  const int32_t *seq_lens;  // [batch]

  MLAVERIFY_HD int64_t rows() const { return static_cast<int64_t>(batch) * qlen; }
  MLAVERIFY_HD int32_t request(int64_t row) const { return static_cast<int32_t>(row / qlen); }
  MLAVERIFY_HD int32_t position(int64_t row) const { return seq_lens[request(row)] - qlen + static_cast<int32_t>(row % qlen); }
  // Where the latent of a row's token lies: an index of cached rows.
  MLAVERIFY_HD int64_t slot(int64_t row, int32_t page_size) const {
    const rules::Slot slot = rules::slot_of(position(row), page_size);
    const int64_t page = block_table[request(row) * table_width + slot.entry];
    return page * page_size + slot.offset;
  }
};

}  // namespace mlaverify::generate
