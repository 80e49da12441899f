// The rules that are pure functions of sizes: mask, split, row packing, paging, planning, launch configurations, workspace
// layout.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "rules/config_table.h"
#include "rules/mask.h"
#include "rules/pack.h"
#include "rules/paging.h"
#include "rules/planning.h"
#include "rules/schedule.h"
#include "rules/split.h"
#include "rules/workspace.h"

namespace mlaverify::rules {
namespace {

constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();

int32_t any_int() { return *rc::gen::arbitrary<int32_t>(); }
int32_t between(int32_t lo, int32_t hi) { return static_cast<int32_t>(*rc::gen::inRange<int64_t>(lo, int64_t{hi} + 1)); }

// ---- Mask -----------------------------------------------------------------------------------------------------------

// The element test is the definition: key <= position of the token, and below the true length.
TEST(Mask, ElementTestIsTheDefinition) {
  for (int32_t len = 0; len <= 7; ++len) {
    for (int32_t real = 0; real <= 9; ++real) {
      for (int32_t qlen = 1; qlen <= 9; ++qlen) {
        for (int32_t t = 0; t < qlen; ++t) {
          for (int32_t key = -2; key < 12; ++key) {
            const int32_t n = std::max(std::min(len - qlen + 1 + t, real), 0);
            EXPECT_EQ(sees(len, real, qlen, t, key), key >= 0 && key < n) << len << real << qlen << t << key;
          }
        }
      }
    }
  }
}

TEST(Mask, BoundsAreTheElementTestByBruteForce) {
  for (int32_t len = -1; len <= 8; ++len) {
    for (int32_t real = -1; real <= 9; ++real) {
      for (int32_t qlen = 1; qlen <= 6; ++qlen) {
        const auto count = [&](int32_t t) {
          int32_t n = 0;
          for (int32_t key = 0; key < 12; ++key) n += sees(len, real, qlen, t, key) ? 1 : 0;
          return n;
        };
        for (int32_t first = 0; first < qlen; ++first) {
          EXPECT_EQ(visible_keys(len, real, qlen, first), count(first));
          for (int32_t last = first; last < qlen; ++last) {
            int32_t any = 0, all = kMaxInt;
            for (int32_t t = first; t <= last; ++t) {
              any = std::max(any, count(t));
              all = std::min(all, count(t));
            }
            EXPECT_EQ(visible_keys(len, real, qlen, last), any);
            EXPECT_EQ(visible_keys(len, real, qlen, first), all);
          }
        }
        EXPECT_EQ(needed_keys(len, real, qlen), count(qlen - 1));
      }
    }
  }
}

RC_GTEST_PROP(Mask, GrowsWithTokenAndLengths, ()) {
  const int32_t len = any_int(), real = any_int(), qlen = between(1, kMaxInt), t = between(0, qlen - 1);
  const int32_t n = visible_keys(len, real, qlen, t);
  RC_ASSERT(n >= 0);
  RC_ASSERT(n <= std::max(len, 0));
  RC_ASSERT(n <= std::max(real, 0));
  if (t + 1 < qlen) {
    const int32_t next = visible_keys(len, real, qlen, t + 1);
    RC_ASSERT(next == n || next == n + 1);
  }
  if (len < kMaxInt) RC_ASSERT(visible_keys(len + 1, real, qlen, t) >= n);
  if (real < kMaxInt) RC_ASSERT(visible_keys(len, real + 1, qlen, t) >= n);
  // Count and element test agree at the border, for any sizes.
  RC_ASSERT(n == 0 || sees(len, real, qlen, t, n - 1));
  RC_ASSERT(!sees(len, real, qlen, t, n));
}

RC_GTEST_PROP(Mask, ATokenSeesTheSameInACallOfItsOwn, ()) {
  const int32_t qlen = between(1, 64), t = between(0, qlen - 1), len = between(qlen - 1 - t, 1 << 30);
  RC_ASSERT(visible_keys(len, len, qlen, t) == visible_keys(len - qlen + 1 + t, kMaxInt, 1, 0));
}

// ---- Split ----------------------------------------------------------------------------------------------------------

RC_GTEST_PROP(Split, IsAnAlignedPartitionInOrder, ()) {
  const int64_t len = between(0, 100000);
  const int32_t splits = between(1, 300), min_len = between(0, 2000), align = between(1, 600);
  const int64_t step = split_len(len, splits, min_len, align);
  RC_ASSERT(step % align == 0);
  RC_ASSERT(step >= min_len);
  RC_ASSERT(step >= 1);
  int64_t at = 0;
  for (int32_t s = 0; s < splits; ++s) {
    const KeyRange r = split_range(len, splits, min_len, align, s);
    RC_ASSERT(r.begin <= r.end);
    RC_ASSERT(r.begin == at);
    RC_ASSERT(r.begin == r.end || r.begin % align == 0);
    RC_ASSERT(r.end == len || r.end - r.begin == step);  // only the last is shorter
    at = r.end;
  }
  RC_ASSERT(at == len);  // the cap serves every length
}

RC_GTEST_PROP(Split, IsTheSmallestThatTheRuleAllows, ()) {
  const int64_t len = between(0, 1 << 20);
  const int32_t splits = between(1, 300), min_len = between(1, 2000), align = between(1, 600);
  const int64_t step = split_len(len, splits, min_len, align);
  RC_ASSERT(step - align < min_len || (step - align) * splits < len);
}

TEST(Split, ExamplesOfTheManual) {
  EXPECT_EQ(split_len(1000, 4, 64, 64), 256);
  EXPECT_EQ(split_len(1000, 3, 64, 64), 384);
  EXPECT_EQ(split_len(1000, 1, 64, 64), 1024);
  EXPECT_EQ(split_len(100, 8, 64, 64), 64);
  EXPECT_EQ(split_len(0, 4, 64, 64), 64);
  EXPECT_EQ(split_range(1000, 3, 64, 64, 2).begin, 768);
  EXPECT_EQ(split_range(1000, 3, 64, 64, 2).end, 1000);
  EXPECT_EQ(split_len(-5, 4, 64, 64), 64);
  EXPECT_EQ(split_range(-5, 4, 64, 64, 3).end, 0);
}

TEST(Split, LargestSizesDoNotOverflow) {
  const KeyRange last = split_range(kMaxInt, kMaxInt, kMaxInt, kMaxInt, kMaxInt - 1);
  EXPECT_EQ(last.begin, kMaxInt);
  EXPECT_EQ(last.end, kMaxInt);
}

RC_GTEST_PROP(Split, ChunksArePlacedWhateverTheLength, ()) {
  const int64_t keys = between(0, 5000);
  const int32_t chunk = between(1, 700);
  const int64_t n = num_chunks(keys, chunk);
  int64_t at = 0;
  for (int64_t c = 0; c < n; ++c) {
    const KeyRange r = chunk_range(keys, chunk, c);
    RC_ASSERT(r.begin == c * chunk);
    RC_ASSERT(r.begin == at);
    RC_ASSERT(r.end > r.begin);
    RC_ASSERT(r.end - r.begin == chunk || c == n - 1);
    at = r.end;
  }
  RC_ASSERT(at == keys);
}

// ---- Row packing ----------------------------------------------------------------------------------------------------

TEST(Pack, IsABijectionTokenMajor) {
  for (int32_t heads = 1; heads <= 9; ++heads) {
    int64_t row = 0;
    for (int32_t t = 0; t < 7; ++t) {
      for (int32_t h = 0; h < heads; ++h, ++row) {
        EXPECT_EQ(pack_row({t, h}, heads), row);
        EXPECT_EQ(unpack_row(row, heads).token, t);
        EXPECT_EQ(unpack_row(row, heads).head, h);
      }
    }
  }
}

RC_GTEST_PROP(Pack, IsABijectionForLargeSizes, ()) {
  const int32_t heads = between(1, kMaxInt);
  const Row r = {between(0, kMaxInt), between(0, heads - 1)};
  const Row back = unpack_row(pack_row(r, heads), heads);
  RC_ASSERT(back.token == r.token);
  RC_ASSERT(back.head == r.head);
}

TEST(Pack, OffsetsAre64Bit) {
  Problem p = {};
  p.qlen = 4;
  p.num_heads = 128;
  p.q_row_stride = p.out_row_stride = int64_t{1} << 33;
  p.q_head_stride = p.out_head_stride = -(int64_t{1} << 32);
  p.lse_row_stride = 1;
  p.lse_head_stride = int64_t{1} << 40;
  EXPECT_EQ(q_offset(p, 1000, {3, 100}), 4003 * p.q_row_stride + 100 * p.q_head_stride);
  EXPECT_EQ(out_offset(p, 1000, {3, 100}), 4003 * p.out_row_stride + 100 * p.out_head_stride);
  EXPECT_EQ(lse_offset(p, 1000, {3, 100}), 4003 + 100 * p.lse_head_stride);
  EXPECT_EQ(num_row_tiles(0, 64), 0);
  EXPECT_EQ(num_row_tiles(64, 64), 1);
  EXPECT_EQ(num_row_tiles(65, 64), 2);
}

// ---- Paging ---------------------------------------------------------------------------------------------------------

RC_GTEST_PROP(Paging, EachKeyHasOneSlot, ()) {
  const int32_t page_size = between(1, 5000);
  const int64_t key = between(0, kMaxInt);
  const Slot s = slot_of(key, page_size);
  RC_ASSERT(s.entry * page_size + s.offset == key);
  RC_ASSERT(s.offset >= 0);
  RC_ASSERT(s.offset < page_size);
  RC_ASSERT(pages_for(key + 1, page_size) == s.entry + 1);
  const Slot narrow = slot_of(static_cast<int32_t>(key), page_size);
  RC_ASSERT(narrow.entry == s.entry && narrow.offset == s.offset);
}

TEST(Paging, OffsetsAre64Bit) {
  const int32_t table[] = {-1, -1, 7, 3000000, -1};
  Problem p = {};
  p.page_size = 3;
  p.block_table = table;
  p.table_row_stride = 2;
  p.kv_page_stride = 3 * 577 + 1;
  p.kv_slot_stride = 577;
  EXPECT_EQ(key_offset(p, 1, 5), int64_t{3000000} * p.kv_page_stride + 2 * 577);
  EXPECT_EQ(key_offset(p, 1, 0), 7 * p.kv_page_stride);
}

// ---- Planning -------------------------------------------------------------------------------------------------------

TEST(Planning, ReproducesTheWorkedValues) {
  std::ifstream file(MLAVERIFY_PLANNING_JSON);
  const nlohmann::json rows = nlohmann::json::parse(file);
  ASSERT_EQ(rows.size(), 780u);
  for (const auto &r : rows) {
    EXPECT_EQ(verify_num_kv_splits(r.at("max_seq_len"), r.at("batch"), r.at("qlen"), r.at("num_heads"), r.at("sm_count"),
                                   r.at("block_h"), r.value("occupancy", 1.0), r.value("min_work_per_split", 64),
                                   r.value("max_splits", 8)),
              r.at("expect").get<int32_t>())
        << r;
  }
}

// The bound of the loop over split counts that keeps it short must not change the result: here it is taken out.
RC_GTEST_PROP(Planning, IsTheDocumentedFormula, ()) {
  const int64_t len = between(0, 300000), batch = between(0, 300);
  const int32_t qlen = between(1, 9), heads = between(0, 130), sms = between(1, 40), block_h = between(1, 128);
  const int32_t work = between(-1, 300), max_splits = between(-1, 200);
  const double occupancy = 0.25 * between(0, 8);
  const int64_t programs = std::max<int64_t>(1, batch) * ((qlen * heads + block_h - 1) / block_h);
  const int64_t unit = std::max(1, work), ideal = (std::max<int64_t>(1, len) + unit - 1) / unit;
  const int64_t slots = std::max<int64_t>(1, static_cast<int64_t>(occupancy * sms));
  int64_t n = 0;
  if (programs <= slots) {
    n = programs == 0 ? slots : slots / programs;
  } else {
    std::vector<double> cost;
    for (int64_t k = 1; k <= std::max<int64_t>(1, std::min<int64_t>(ideal, max_splits)); ++k)
      cost.push_back(static_cast<double>((k * programs + slots - 1) / slots) / static_cast<double>(k));
    const double best = *std::min_element(cost.begin(), cost.end());
    n = std::find_if(cost.begin(), cost.end(), [=](double c) { return c <= best * 1.05; }) - cost.begin() + 1;
  }
  RC_ASSERT(verify_num_kv_splits(len, batch, qlen, heads, sms, block_h, occupancy, work, max_splits) ==
            std::max<int64_t>(1, std::min({ideal, n, int64_t{2} * sms})));
}

// ---- Launch configurations ------------------------------------------------------------------------------------------

TEST(ConfigTable, Mi300xSwitchesAfter640Rows) {
  const VerifyConfig few = verify_config(Arch::gfx942, 1, 1, 640), many = verify_config(Arch::gfx942, 1, 1, 641);
  EXPECT_EQ(few.block_h, 32);
  EXPECT_EQ(few.q_split, 0);
  EXPECT_EQ(many.block_h, 64);
  EXPECT_EQ(many.q_split, 1);
  EXPECT_EQ(verify_config(Arch::gfx942, 5, 8, 16).block_h, 32);
  EXPECT_EQ(verify_config(Arch::gfx942, 640 / (8 * 16) + 1, 8, 16).block_h, 64);
  EXPECT_EQ(verify_config(Arch::gfx942, kMaxInt, kMaxInt, kMaxInt).block_h, 64);
  EXPECT_EQ(verify_config(Arch::gfx942, 0, 1, 0).block_h, 32);
}

TEST(ConfigTable, HopperHasTwoTiles) {
  EXPECT_EQ(verify_config(Arch::sm_90, 7, 1, 16).block_h, 16);
  EXPECT_EQ(verify_config(Arch::sm_90, 7, 1, 17).block_h, 64);
}

TEST(ConfigTable, TheLastGpuRowOfAnArchitectureIsForAllCalls) {
  for (const Arch arch : {Arch::sm_80, Arch::sm_86, Arch::sm_90, Arch::sm_100}) {
    const GpuRow *last = nullptr;
    for (const GpuRow &row : gpu_rows()) {
      if (row.arch == arch) last = &row;
    }
    ASSERT_NE(last, nullptr);
    EXPECT_TRUE(*last == (GpuRow{arch, 0, kMostRows, kAnyTypes, kAnyPages, GpuKernel::generic, 16}));
  }
}

TEST(ConfigTable, GpuRowsFitByRowsTypesAndPages) {
  const GpuRow row = {Arch::sm_90, 17, 64, TypeClass::fp8_cache, PageClass::boxes, GpuKernel::hopper, 8};
  const GpuRowKey key = {Arch::sm_90, 17, TypeClass::fp8_cache, PageClass::boxes};
  EXPECT_TRUE(fits(row, key));
  EXPECT_TRUE(fits(row, {Arch::sm_90, 64, key.types, key.pages}));
  EXPECT_FALSE(fits(row, {Arch::sm_90, 16, key.types, key.pages}));
  EXPECT_FALSE(fits(row, {Arch::sm_90, 65, key.types, key.pages}));
  EXPECT_FALSE(fits(row, {Arch::sm_100, 17, key.types, key.pages}));
  EXPECT_FALSE(fits(row, {Arch::sm_90, 17, TypeClass::same_16_bit, key.pages}));
  EXPECT_FALSE(fits(row, {Arch::sm_90, 17, key.types, PageClass::gathered}));
  EXPECT_TRUE(fits({Arch::sm_90, 17, 64, kAnyTypes, kAnyPages, row.kernel, 8}, key));
}

TEST(ConfigTable, ClassesOfTypesAndPages) {
  EXPECT_EQ(type_class(DType::bf16, DType::bf16), TypeClass::same_16_bit);
  EXPECT_EQ(type_class(DType::f16, DType::f8_e5m2), TypeClass::fp8_cache);
  EXPECT_EQ(type_class(DType::f16, DType::f8_ds_mla), TypeClass::record_cache);
  EXPECT_EQ(type_class(DType::f32, DType::f8_ds_mla), TypeClass::other);
  EXPECT_EQ(type_class(DType::f16, DType::bf16), TypeClass::other);
  EXPECT_EQ(type_class(DType::bf16, DType::f32), TypeClass::other);
  EXPECT_EQ(type_class(DType::f32, DType::f8_e4m3), TypeClass::other);
  for (const int32_t size : {8, 16, 32, 64, 128, 1024}) EXPECT_EQ(page_class(size), PageClass::boxes) << size;
  for (const int32_t size : {1, 4, 48, 100}) EXPECT_EQ(page_class(size), PageClass::gathered) << size;
}

TEST(ConfigTable, EveryRowCanBeUsed) {
  for (const Arch arch : {Arch::cpu, Arch::gfx942}) {
    for (const int32_t batch : {0, 1, 1000}) {
      const VerifyConfig c = verify_config(arch, batch, 4, 16);
      EXPECT_GE(c.block_h, 1);
      EXPECT_GE(c.block_n, 1);
      EXPECT_GE(c.split_align, 1);
      EXPECT_GE(c.min_split_len, 1);
      EXPECT_EQ(c.split_align % c.block_n, 0);
    }
  }
}

// ---- Workspace ------------------------------------------------------------------------------------------------------

Problem problem_of(int32_t qlen, int32_t heads, int32_t qk_dim, int32_t v_dim, int32_t page_size, int64_t table_width) {
  Problem p = {};
  p.batch = 1;
  p.qlen = qlen;
  p.num_heads = heads;
  p.qk_dim = qk_dim;
  p.v_dim = v_dim;
  p.page_size = page_size;
  p.table_width = table_width;
  return p;
}

RC_GTEST_PROP(Workspace, SectionsAreApartAndAligned, ()) {
  const int32_t v_dim = 8 * between(1, 128), qk_dim = between(v_dim / 8, 128) * 8;
  Problem p = problem_of(between(1, 300), between(1, 300), qk_dim, v_dim, between(1, 5000), between(0, 100000));
  if (between(0, 1) == 1) p.q_dtype = p.kv_dtype = DType::bf16;
  const CpuThreadLayout l = cpu_thread_layout(p);
  const int32_t rows = cpu_tile_rows(p), keys = cpu_config().block_n;
  const int64_t pair_keys = bf16_products(p) ? kBf16TileKeys : 0;
  const std::vector<std::pair<int64_t, int64_t>> sections = {
      {l.q, int64_t{round_up(rows, 16)} * max(l.q_ld, round_up(qk_dim, kCpuScoreColumns))},
      {l.kv, max(int64_t{keys} * max(l.kv_ld, max(kCpuValueColumns, kCpuScoreColumns)), pair_keys * l.kv_bf16_ld)},
      {l.squares, int64_t{keys} * 16},
      {l.key_scores, int64_t{keys} * round_up(rows, 16)},
      {l.scores, round_up(rows, 16) * max<int64_t>(l.scores_ld, pair_keys)},
      {l.values, pair_keys * (v_dim + kBf16Vector) / 2},
      {l.nodes, 2 * l.nodes_per_list * l.node.size}};
  int64_t end = 0;
  for (const auto &[begin, size] : sections) {
    RC_ASSERT(begin >= end);
    RC_ASSERT(begin % 16 == 0);  // a cache line
    end = begin + size;
  }
  RC_ASSERT(l.size >= end);
  RC_ASSERT(l.size * 4 % kWorkspaceAlignment == 0);
  RC_ASSERT(l.q_ld >= qk_dim);
  RC_ASSERT(l.kv_ld >= qk_dim);
  RC_ASSERT(2 * l.kv_bf16_ld >= qk_dim);
  RC_ASSERT(l.scores_ld >= keys);
  RC_ASSERT(l.node.acc_ld >= v_dim);
  RC_ASSERT(l.node.sum >= l.node.max + rows);
  RC_ASSERT(l.node.acc >= l.node.sum + rows);
  RC_ASSERT(l.node.acc % 16 == 0);
  RC_ASSERT(l.node.size % 16 == 0);
  RC_ASSERT(l.node.size >= l.node.acc + int64_t{rows} * l.node.acc_ld);
  RC_ASSERT(cpu_workspace_bytes(p, 3) == 3 * l.size * 4);
}

TEST(Schedule, RowGroupsLeaveFewPlacesIdle) {
  EXPECT_EQ(row_group(0), 1);
  for (int32_t tiles = 1; tiles < 200; ++tiles) {
    const int32_t g = row_group(tiles);
    ASSERT_GE(g, 1);
    ASSERT_LE(g, 4);
    EXPECT_EQ(g == 1, tiles == 1) << tiles;
    const int32_t idle = ceil_div(tiles, g) * g - tiles;
    EXPECT_LE(idle, 1) << tiles;  // 2 and 4 leave none of an even number, 2 leaves one of an odd one
  }
}

RC_GTEST_PROP(Schedule, SharesArePartsOfTheLine, ()) {
  const auto total = *rc::gen::inRange(0, 100000), shares = std::min(*rc::gen::inRange(1, 300), std::max(total, 1));
  RC_ASSERT(share_begin(total, shares, 0) == 0);
  RC_ASSERT(share_begin(total, shares, shares) == total);
  for (int32_t s = 0; s < shares; ++s) {
    const int32_t n = share_begin(total, shares, s + 1) - share_begin(total, shares, s);
    RC_ASSERT(n >= total / shares);
    RC_ASSERT(n <= total / shares + 1);
  }
}

// By brute force: all borders inside the row tile that a share begins in.
RC_GTEST_PROP(Schedule, ACutTileKnowsItsBorders, ()) {
  const auto tiles = *rc::gen::inRange<int32_t>(1, 300);  // of each row tile
  const int32_t total = tiles * *rc::gen::inRange(1, 40), shares = std::min(*rc::gen::inRange(1, 140), total);
  const auto share = *rc::gen::inRange<int32_t>(0, shares);
  const int32_t begin = share_begin(total, shares, share);
  const TilePosition at = {0, begin / tiles, begin % tiles};
  int32_t first = 0, borders = 0;
  for (int32_t s = 1; s < shares; ++s) {
    const int32_t border = share_begin(total, shares, s);
    if (at.key_tile == 0 || border % tiles == 0 || border / tiles != at.row_tile) continue;
    if (borders++ == 0) first = s;
  }
  const CutTile cut = cut_tile(total, shares, begin, at, tiles);
  RC_ASSERT(cut.borders == borders);
  RC_ASSERT((borders == 0 || (cut.first_border == first && cut.row_tile == at.row_tile)));
}

// All borders that cut are among those that may, and no others where jobs and shares are equal and one is a multiple of the other.
RC_GTEST_PROP(Schedule, BordersThatCutAreFound, ()) {
  const auto jobs = *rc::gen::inRange<int32_t>(1, 40), tiles = *rc::gen::inRange<int32_t>(0, 60);
  const int32_t total = jobs * tiles, shares = std::min(*rc::gen::inRange(1, 140), std::max(total, 1));
  for (const bool equal : {false, true}) {
    const CuttingBorders borders = cutting_borders(jobs, total, shares, equal);
    std::set<int32_t> found;
    for (int32_t i = 0; i < borders.count; ++i) found.insert(borders.at(i));
    RC_ASSERT(static_cast<int32_t>(found.size()) == borders.count);
    RC_ASSERT(found.empty() || (*found.begin() >= 1 && *found.rbegin() < shares));
    for (int32_t s = 1; s < shares; ++s) {
      const bool cuts = share_begin(total, shares, s) % tiles != 0;
      if (cuts) RC_ASSERT(found.count(s) == 1);
      if (borders.of_job > 0 && !cuts) RC_ASSERT(found.count(s) == 0);
    }
  }
}

RC_GTEST_PROP(Schedule, SharesOfEqualJobsCutThemAlike, ()) {
  const auto jobs = *rc::gen::inRange(1, 5000);
  const auto most = *rc::gen::inRange<int32_t>(1, 200);
  const int32_t total = jobs * *rc::gen::inRange(0, 3000);
  const ShareChoice choice = {most, whole_shares(most, jobs), *rc::gen::inRange(1, 20), jobs};
  for (const bool equal : {false, true}) {
    const int32_t shares = num_shares(choice, total, equal);
    RC_ASSERT((1 <= shares && shares <= most && shares <= std::max<int64_t>(total, 1)));
    if (equal && shares < most && shares < total) RC_ASSERT((jobs % shares == 0 || shares % jobs == 0));
  }
}

TEST(Schedule, FewSharesForLittleWork) {
  const auto shares = [](int32_t jobs, int32_t tiles_of_each) {
    return num_shares({132, whole_shares(132, jobs), shares_squared_per_tile(32, 1), jobs}, jobs * tiles_of_each, true);
  };
  EXPECT_EQ(shares(128, 128), 128);  // a request a block: nothing to merge
  EXPECT_EQ(shares(100, 2), 100);
  EXPECT_EQ(shares(100, 200), 132);  // more than a twentieth would be idle
  EXPECT_EQ(shares(256, 2), 128);
  EXPECT_EQ(shares(1, 128), 64);
  EXPECT_EQ(shares(8, 128) % 8, 0);
  EXPECT_GE(shares(1, 20000), 132);
}

TEST(Schedule, TheLineFits31Bits) {
  EXPECT_EQ(line_tile_log2(6, 128, 131072), 6);
  for (const int64_t row_groups : {int64_t{1}, int64_t{4096}, int64_t{1} << 28}) {
    for (const int64_t keys : {int64_t{0}, int64_t{1} << 20, int64_t{INT32_MAX}}) {
      const int32_t log2 = line_tile_log2(4, row_groups, keys);
      EXPECT_LT(row_groups * ((keys >> log2) + 1), int64_t{1} << 30);
      if (log2 > 4) {
        EXPECT_GE(row_groups * ((keys >> (log2 - 1)) + 1), int64_t{1} << 30);
      }
    }
  }
}

TEST(Schedule, EveryPartOfAShareHasAPlaceOfItsOwn) {
  for (const int32_t group : {1, 2, 3, 4}) {
    std::set<std::pair<int32_t, int32_t>> places;
    for (int32_t share = 0; share < 33; ++share) {
      for (const bool begins : {false, true}) {
        for (int32_t member = 0; member < group; ++member) {
          const PartPlace at = share_place(share, begins, group, member);
          EXPECT_LT(at.series, 2 * group);
          EXPECT_EQ(at.piece, share);
          places.insert({at.series, at.piece});
        }
      }
    }
    EXPECT_EQ(places.size(), 2u * 33 * static_cast<std::size_t>(group));
  }
}

TEST(Schedule, EveryRowTileHasASeriesOfPieces) {
  for (const int32_t group : {1, 2, 3, 4}) {
    std::set<int32_t> series;
    for (int32_t request = 0; request < 6; ++request) {
      for (int32_t row_tile = 0; row_tile < 5 * group; ++row_tile) {
        EXPECT_EQ(piece_place(request, 5, group, row_tile, 3).piece, 3);
        series.insert(piece_place(request, 5, group, row_tile, 3).series);
      }
    }
    EXPECT_EQ(series.size(), 6u * 5 * static_cast<std::size_t>(group));
    EXPECT_EQ(*series.begin(), 0);
    EXPECT_EQ(*series.rbegin(), 6 * 5 * group - 1);
  }
}

TEST(Schedule, BoxesCoverATileAndStayInAPage) {
  for (int32_t page = 1; page <= 300; ++page) {
    const int32_t box = box_keys(page, 64);
    if (box == 0) continue;
    EXPECT_GE(box, 8);
    EXPECT_EQ(64 % box, 0);
    EXPECT_EQ(page % box, 0) << page;
  }
  for (const int32_t page : {8, 16, 32, 64, 128, 192, 256}) EXPECT_GT(box_keys(page, 64), 0) << page;
  for (const int32_t page : {1, 2, 4, 24, 48, 63, 65, 96, 100}) EXPECT_EQ(box_keys(page, 64), 0) << page;
}

TEST(Workspace, EveryNumberOfAPartHasItsOwnPlace) {
  for (const auto &[rows, f16] : {std::pair{8, false}, {16, false}, {64, false}, {64, true}}) {
    for (const int32_t width : {8, 24, 256, 512}) {
      const GpuPartLayout l = gpu_part_layout(rows, width, 3, f16);
      std::set<int32_t> places;
      for (int32_t r = 0; r < rows; ++r) {
        for (int32_t c = 0; c < width; ++c) {
          const int32_t vector = acc_vector(l, r, c), number = acc_number(l, c);
          EXPECT_LT(number, l.numbers);
          places.insert(vector * l.numbers + number);
          // Lane r % 8 * 4 + q of a warp has columns 2 q and 2 q + 1 of each fragment: those of neighbouring ones lie together.
          EXPECT_EQ(vector % kAccBlock, r % 8 * 4 + c % 8 / 2);
          EXPECT_EQ(number % 2, c % 2);
          if (number >= 2) {
            EXPECT_EQ(vector, acc_vector(l, r, c - 8));
          }
        }
      }
      EXPECT_EQ(places.size(), static_cast<std::size_t>(rows * width));
      EXPECT_LT(*places.rbegin(), l.acc_size * l.numbers);
      EXPECT_EQ(l.acc_size % 32, 0);
      std::set<int64_t> states, accs;
      for (int32_t series = 0; series < 4; ++series) {
        for (int32_t piece = 0; piece < l.pieces; ++piece) {
          accs.insert(acc_at(l, {series, piece}));
          for (int32_t r = 0; r < rows; ++r) states.insert(state_offset(l, {series, piece}, r));
          if (piece > 0) {
            EXPECT_EQ(state_offset(l, {series, piece}, 1), state_offset(l, {series, piece - 1}, 1) + 1);
          }
        }
      }
      EXPECT_EQ(states.size(), static_cast<std::size_t>(4 * l.pieces * rows));
      EXPECT_LE((*states.rbegin() + 1) * 16, gpu_states_bytes(l, 4));
      EXPECT_EQ(accs.size(), static_cast<std::size_t>(4 * l.pieces));
      EXPECT_EQ((*accs.rbegin() + l.acc_size) * 16, gpu_accs_bytes(l, 4));
    }
  }
}

TEST(Workspace, NothingToDoNeedsNone) {
  Problem p = problem_of(4, 16, 576, 512, 64, 10);
  EXPECT_GT(cpu_workspace_bytes(p, 1), 0);
  p.num_heads = 0;
  EXPECT_EQ(cpu_workspace_bytes(p, 1), 0);
  p.num_heads = 16;
  p.batch = 0;
  EXPECT_EQ(cpu_workspace_bytes(p, 1), 0);
}

// Partial results that wait at once have room in each list, for every number of keys that the table can hold.
RC_GTEST_PROP(Workspace, ListsHoldWhatCanWait, ()) {
  const int32_t page_size = between(1, kMaxInt);
  const int64_t width = *rc::gen::inRange<int64_t>(0, int64_t{1} << 40);
  const CpuThreadLayout l = cpu_thread_layout(problem_of(1, 1, 8, 8, page_size, width));
  const int64_t keys = width > kMaxInt / page_size ? kMaxInt : width * page_size;
  RC_ASSERT(l.nodes_per_list >= max_waiting_nodes(num_chunks(keys, cpu_config().split_align)));
  RC_ASSERT(l.nodes_per_list <= max_waiting_nodes(num_chunks(int64_t{2} * kMaxInt, cpu_config().split_align)));
}

// Sizes at the limits: a request can have at most 2^31 - 1 keys, however wide its table is.
TEST(Workspace, WideTablesDoNotOverflow) {
  const int32_t most = max_waiting_nodes(num_chunks(kMaxInt, cpu_config().split_align));
  constexpr int64_t wide = std::numeric_limits<int64_t>::max();
  for (const int64_t width : {int64_t{kMaxInt}, wide}) {
    for (const int32_t page_size : {1, 2, 3, 64, 4096}) {
      EXPECT_GE(cpu_thread_layout(problem_of(8, 128, 1024, 1024, page_size, width)).nodes_per_list, most) << page_size;
    }
  }
  EXPECT_LT(cpu_workspace_bytes(problem_of(8, 128, 1024, 1024, kMaxInt, wide), 1), int64_t{1} << 26);
}

}  // namespace
}  // namespace mlaverify::rules
