// The mask rule, in one place (docs/mask-and-split.md): which keys a query token sees. Everything else about masking (bounds of
// tiles, loop limits) is derived here and nowhere else.
#pragma once

#include "rules/hd.h"
#include "rules/pack.h"
#include "rules/problem.h"

namespace mlaverify::rules {

// Number n of keys that query token `token` (0 <= token < qlen) of a request sees: keys 0 ... n-1.
MLAVERIFY_HD int32_t visible_keys(int32_t seq_len, int32_t real_seq_len, int32_t qlen, int32_t token) {
  const int64_t causal = static_cast<int64_t>(seq_len) - qlen + 1 + token;
  return static_cast<int32_t>(max<int64_t>(min<int64_t>(causal, real_seq_len), 0));
}

// The plain element test. The oracle asks it for every key of the sequence.
MLAVERIFY_HD bool sees(int32_t seq_len, int32_t real_seq_len, int32_t qlen, int32_t token, int64_t key) {
  return key >= 0 && key < real_seq_len && key <= static_cast<int64_t>(seq_len) - qlen + token;
}

// Visible keys grow with the token: what some row of a tile sees is what its last token sees, and below what its first token
// sees no row needs a mask.

// Number of keys that a request needs in the cache: those that its last token sees.
MLAVERIFY_HD int32_t needed_keys(int32_t seq_len, int32_t real_seq_len, int32_t qlen) {
  return visible_keys(seq_len, real_seq_len, qlen, qlen - 1);
}

static_assert(visible_keys(10, 10, 4, 0) == 7 && visible_keys(10, 10, 4, 3) == 10,
              "the last token sees all keys, itself included");
static_assert(visible_keys(2, 2, 4, 0) == 0 && visible_keys(2, 2, 4, 1) == 0 && visible_keys(2, 2, 4, 2) == 1,
              "more queries than keys");
static_assert(visible_keys(40, 38, 4, 3) == 38 && visible_keys(40, 200, 4, 3) == 40 && visible_keys(40, 0, 4, 3) == 0,
              "padded lengths");
static_assert(visible_keys(-2147483647 - 1, 5, 2147483647, 0) == 0 && visible_keys(5, -3, 1, 0) == 0,
              "no overflow, no negative count");
static_assert(sees(10, 10, 4, 0, 6) && !sees(10, 10, 4, 0, 7) && !sees(40, 38, 4, 3, 38));

// The same of a request of a call.

MLAVERIFY_HD int32_t real_seq_len(const Problem &p, int32_t request) {
  return p.real_seq_lens != nullptr ? p.real_seq_lens[request] : p.seq_lens[request];
}

MLAVERIFY_HD int32_t visible_keys(const Problem &p, int32_t request, int32_t token) {
  return visible_keys(p.seq_lens[request], real_seq_len(p, request), query_count(p, request), token);
}

MLAVERIFY_HD bool sees(const Problem &p, int32_t request, int32_t token, int64_t key) {
  return sees(p.seq_lens[request], real_seq_len(p, request), query_count(p, request), token, key);
}

MLAVERIFY_HD int32_t needed_keys(const Problem &p, int32_t request) {
  return needed_keys(p.seq_lens[request], real_seq_len(p, request), query_count(p, request));
}

}  // namespace mlaverify::rules
