#include "self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "error.h"
#include "random.h"
#include "rules/mask.h"
#include "rules/row.h"

namespace mlaverify::cli {
namespace {

constexpr int32_t kGarbage = 2147480000;  // a block table entry that must never be followed

struct Case {
  const char *name;
  DType q_dtype, kv_dtype;
  int32_t heads, qlen, qk_dim, v_dim, page_size, num_kv_splits;
  float k_scale;  // 0: none
  std::vector<int32_t> lens;
  std::vector<int32_t> real_lens;  // empty: none
};

const std::vector<Case> &cases() {
  constexpr DType bf16 = DType::bf16, f16 = DType::f16, f32 = DType::f32, e4m3 = DType::f8_e4m3, e5m2 = DType::f8_e5m2,
                  record = DType::f8_ds_mla;
  static const std::vector<Case> list = {
      {"common", bf16, bf16, 16, 4, 576, 512, 64, 0, 0, {130, 77}, {}},
      {"decode_page_1", bf16, bf16, 16, 1, 576, 512, 1, 0, 0, {1, 2, 63, 65}, {}},
      {"page_48", bf16, bf16, 8, 2, 288, 256, 48, 0, 0, {47, 48, 49, 97}, {}},
      {"large_page", bf16, bf16, 5, 3, 320, 256, 1000, 0, 0, {999, 1001}, {}},
      {"chunk_borders", bf16, bf16, 4, 4, 288, 256, 16, 0, 0, {511, 512, 513, 1027}, {}},
      {"empty_and_short", bf16, bf16, 16, 8, 576, 512, 16, 0, 0, {0, 1, 3, 7, 8, 9, 0}, {}},
      {"padded_lengths", bf16, bf16, 16, 4, 576, 512, 16, 0, 0, {40, 40, 40, 40}, {200, 38, 36, 0}},
      {"many_heads", bf16, bf16, 128, 2, 576, 512, 64, 0, 0, {65}, {}},
      {"odd_rows_splits_3", bf16, bf16, 20, 7, 288, 256, 32, 3, 0, {150, 31, 0}, {}},
      {"no_rope_part", bf16, bf16, 16, 4, 64, 64, 16, 8, 0, {100, 30}, {}},
      {"f16", f16, f16, 16, 4, 576, 512, 64, 0, 0, {130, 20}, {}},
      {"f32", f32, f32, 8, 3, 288, 256, 16, 0, 0, {75, 20}, {}},
      {"fp8_e4m3", bf16, e4m3, 16, 4, 576, 512, 64, 0, 0.0625f, {130, 77, 3}, {}},
      {"fp8_e5m2", f16, e5m2, 16, 4, 288, 256, 16, 0, 0.0625f, {99}, {}},
      {"records", bf16, record, 16, 4, 576, 512, 64, 0, 0, {130, 77, 0, 3}, {}},
      {"records_f16_page_1", f16, record, 8, 2, 576, 512, 1, 0, 0, {1, 65, 20}, {}},
      {"records_f32_splits_3", f32, record, 5, 3, 576, 512, 16, 3, 0, {75, 20}, {60, 20}},
      {"records_many_heads", bf16, record, 128, 2, 576, 512, 64, 0, 0, {165}, {}},
      // Their first piece has 320 keys, where kernels for FP8 have tiles of 128.
      {"fp8_splits_2", bf16, e4m3, 16, 2, 576, 512, 64, 2, 0.0625f, {513, 640}, {}},
      {"records_splits_2", bf16, record, 16, 1, 576, 512, 64, 2, 0, {513, 640}, {}},
  };
  return list;
}

int32_t real_len(const Case &c, std::size_t request) { return c.real_lens.empty() ? c.lens[request] : c.real_lens[request]; }

io::TensorBuffer int_tensor(const std::vector<int32_t> &values) {
  io::TensorBuffer t(DType::i32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), t.data<int32_t>());
  return t;
}

// The cache and its block table: pages of the requests in random order among spare ones, everything that no row sees poisoned.
void fill_cache(const Case &c, Random &random, io::Step &step) {
  const auto batch = static_cast<int64_t>(c.lens.size());
  std::vector<int64_t> pages_of;
  int64_t num_pages = 3;
  int64_t width = 2;
  for (int32_t len : c.lens) {
    pages_of.push_back(rules::ceil_div(len, c.page_size));
    num_pages += pages_of.back();
    width = std::max(width, pages_of.back() + 2);
  }
  std::vector<int32_t> order(static_cast<std::size_t>(num_pages));
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<int32_t>(i);
    std::swap(order[i], order[random.below(i + 1)]);
  }
  step.block_table = io::TensorBuffer(DType::i32, {batch, width});
  auto *table = step.block_table.data<int32_t>();
  std::fill(table, table + batch * width, kGarbage);
  step.kv_cache = io::TensorBuffer(c.kv_dtype, {num_pages, c.page_size, 1, rules::row_elements(c.kv_dtype, c.qk_dim)});
  poison(step.kv_cache.data(), step.kv_cache.bytes());
  const float sigma = c.k_scale > 0 ? 0.5f / c.k_scale : 0.5f;
  const int64_t slot_bytes = rules::row_bytes(c.kv_dtype, c.qk_dim);
  std::size_t next = 0;
  for (int64_t b = 0; b < batch; ++b) {
    const auto request = static_cast<std::size_t>(b);
    for (int64_t i = 0; i < pages_of[request]; ++i) table[b * width + i] = order[next++];
    const int32_t live = rules::needed_keys(c.lens[request], real_len(c, request), c.qlen);
    for (int32_t key = 0; key < live; ++key) {
      const int64_t slot = int64_t{table[b * width + key / c.page_size]} * c.page_size + key % c.page_size;
      fill_row(random, c.kv_dtype, step.kv_cache.data<char>() + slot * slot_bytes, c.qk_dim, sigma);
    }
  }
}

}  // namespace

std::vector<std::string> self_test_names() {
  std::vector<std::string> names;
  for (const Case &c : cases()) names.emplace_back(c.name);
  return names;
}

io::Step self_test_step(const std::string &name) {
  const auto it = std::find_if(cases().begin(), cases().end(), [&](const Case &c) { return name == c.name; });
  if (it == cases().end()) {
    throw Failure(kBadInput, fmt::format("--case: '{}' is not one of {}", name, fmt::join(self_test_names(), ", ")));
  }
  const Case &c = *it;
  Random random(static_cast<uint64_t>(it - cases().begin()) + 1);
  io::Step step;
  step.qlen = c.qlen;
  step.page_size = c.page_size;
  step.v_head_dim = c.v_dim;
  step.num_kv_splits = c.num_kv_splits;
  step.sm_scale = 1.0f / std::sqrt(static_cast<float>(c.qk_dim));
  fill_cache(c, random, step);
  step.q = io::TensorBuffer(c.q_dtype, {static_cast<int64_t>(c.lens.size()) * c.qlen, c.heads, c.qk_dim});
  fill_normal(random, c.q_dtype, step.q.data(), step.q.size(), 1.0f);
  step.seq_lens = int_tensor(c.lens);
  if (!c.real_lens.empty()) step.real_seq_lens = int_tensor(c.real_lens);
  if (c.k_scale > 0) {
    step.k_scale = io::TensorBuffer(DType::f32, {});
    *step.k_scale.data<float>() = c.k_scale;
  }
  return step;
}

}  // namespace mlaverify::cli
