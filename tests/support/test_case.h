// A small call described by a few numbers, from which everything else follows: so one line of text repeats it.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "rules/problem.h"

namespace mlaverify::test {

struct TestCase {
  int32_t heads = 3, qlen = 2, lk = 48, lv = 32, page_size = 4;
  std::vector<int32_t> lens = {9};  // one a request
  std::vector<int32_t> real_lens;   // empty: absent
  std::vector<int32_t> streams;     // requests with the same number have the same keys and queries; empty: 0, 1, 2 ...
  DType q_dtype = DType::bf16, kv_dtype = DType::bf16;
  std::optional<float> k_scale;  // none: absent
  float sm_scale = 0.2f;
  float q_sigma = 1, kv_sigma = 0.5;  // of the random numbers
  int32_t num_kv_splits = 0;

  // Layout. Paddings are in elements (of records: bytes, multiples of 4; shift, too).
  bool flat = false;                   // a 3-D cache; without page_pad
  int32_t slot_pad = 0, page_pad = 0;  // between tokens, between pages
  int32_t spare_pages = 3;             // pages that no request owns
  int32_t table_extra = 2;             // garbage entries past the need of the longest request
  int32_t table_pad = 0;               // between rows of the block table
  int32_t q_pad = 0, out_pad = 0;      // between heads
  bool heads_outer = false;            // q, out and lse as [heads, rows, ...] in memory
  int32_t shift = 0;                   // of q, cache and out from an aligned address

  uint64_t seed = 1;

  int32_t batch() const { return static_cast<int32_t>(lens.size()); }
  int32_t rows() const { return batch() * qlen; }
};

// "heads=3 qlen=2 ...", and back. Throws std::invalid_argument for a word it does not know.
std::string to_text(const TestCase &c);
TestCase from_text(const std::string &text);

// The command that repeats a case.
std::string repeat_command(const TestCase &c);

// Prints repeat_command().
std::ostream &operator<<(std::ostream &out, const TestCase &c);

}  // namespace mlaverify::test
