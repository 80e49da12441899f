#include "api/check_values.h"

#include "rules/mask.h"
#include "rules/pack.h"
#include "rules/paging.h"

namespace mlaverify {
namespace {

std::string at(const char *name, int64_t i) { return std::string(name) + "[" + std::to_string(i) + "]"; }

}  // namespace

Status check_values(const Problem &p) {
  if (p.num_heads == 0) return {};  // no rows: nothing is looked at
  for (int32_t b = 0; b < p.batch; ++b) {
    const int32_t seq_len = p.seq_lens[b];
    const int32_t real_len = rules::real_seq_len(p, b);
    if (seq_len < 0)
      return {MLAVERIFY_ERR_INVALID_VALUE, at("seq_lens", b) + ": got " + std::to_string(seq_len) + ", must be >= 0"};
    if (real_len < 0) {
      return {MLAVERIFY_ERR_INVALID_VALUE, at("real_seq_lens", b) + ": got " + std::to_string(real_len) + ", must be >= 0"};
    }
    const int32_t keys = rules::needed_keys(p, b);
    const int64_t pages = rules::pages_for(keys, p.page_size);
    if (pages > p.table_width) {
      return {MLAVERIFY_ERR_INVALID_VALUE, "block_table: has " + std::to_string(p.table_width) +
                                               " entries a request, but request " + std::to_string(b) + " needs " +
                                               std::to_string(pages) + " for its " + std::to_string(keys) + " keys"};
    }
    for (int64_t e = 0; e < pages; ++e) {
      const int32_t page = rules::page_id(p, b, e);
      if (page < 0 || page >= p.num_pages) {
        return {MLAVERIFY_ERR_INVALID_VALUE, "block_table[" + std::to_string(b) + "][" + std::to_string(e) + "]: got page " +
                                                 std::to_string(page) + ", must be in 0 ... " +
                                                 std::to_string(p.num_pages - 1)};
      }
    }
  }
  return {};
}

std::string host_only_refusal(const Call &call) {
  return call.device == MLAVERIFY_HOST ? ""
                                       : "tensors are on CUDA device " + std::to_string(call.device) + ", not in host memory";
}

}  // namespace mlaverify
