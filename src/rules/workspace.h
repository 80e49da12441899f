// The layout of the workspace, in one place: the size query and the carve-up both come from it. Offsets in floats.
//
// CPU: each thread has a region of its own with the query tile, what is converted of a key tile, scores, where bf16 products may be used
// values packed for them, and two lists of partial results: of the row tile whose first chunks another thread has, and of the one whose
// last chunks another thread has. It is the same for every instruction set.
#pragma once

#include "rules/config_table.h"
#include "rules/hd.h"
#include "rules/merge.h"
#include "rules/pack.h"
#include "rules/paging.h"
#include "rules/products.h"
#include "rules/schedule.h"
#include "rules/split.h"

namespace mlaverify::rules {

constexpr int64_t kWorkspaceAlignment = 256;  // bytes

// Leading dimension of a row-major f32 tile: an odd number of 64-byte cache lines, so that a column walks through all sets of a
// set-associative cache (a multiple of 1024 or 2048 bytes would use a few sets only).
MLAVERIFY_HD int32_t tile_ld(int32_t width) { return round_up(width, 32) + 16; }

// One partial result: max and sum of each row, then acc.
struct NodeLayout {
  int32_t rows;  // of a full tile
  int32_t acc_ld;
  int64_t max, sum, acc;  // offsets
  int64_t size;
};

MLAVERIFY_HD NodeLayout node_layout(int32_t rows, int32_t v_dim) {
  const int64_t state = round_up(rows, 16);
  const int32_t ld = tile_ld(v_dim);
  return {rows, ld, 0, state, 2 * state, 2 * state + static_cast<int64_t>(rows) * ld};
}

// Columns of a key tile that the CPU converts for the second product at a time, at most.
constexpr int32_t kCpuValueColumns = 64;

// The same for the first product; queries may lie in blocks of so many columns.
constexpr int32_t kCpuScoreColumns = 64;

static_assert(cpu_config().block_n <= kBf16TileKeys, "values of records, converted, lie where packed ones would");

struct CpuThreadLayout {
  int32_t q_ld, kv_ld, scores_ld;
  int32_t kv_bf16_ld;                                                  // of keys as bf16, in floats
  int64_t q, q_norms, kv, squares, key_scores, scores, values, nodes;  // offsets
  NodeLayout node;
  int32_t nodes_per_list;
  int64_t size;  // a multiple of kWorkspaceAlignment / 4
};

// Rows of a full tile of this call.
MLAVERIFY_HD int32_t cpu_tile_rows(const Problem &p) {
  return static_cast<int32_t>(min<int64_t>(static_cast<int64_t>(p.qlen) * p.num_heads, cpu_config().block_h));
}

MLAVERIFY_HD CpuThreadLayout cpu_thread_layout(const Problem &p) {
  const VerifyConfig c = cpu_config();
  const int32_t rows = cpu_tile_rows(p), padded_rows = round_up(rows, 16);  // whole vectors, of whatever width
  // More keys than the block table holds are refused, so they bound the chunks.
  const int64_t max_chunks = num_chunks(table_keys(p), c.split_align);
  CpuThreadLayout l{};
  l.q_ld = l.kv_ld = tile_ld(p.qk_dim);
  l.scores_ld = c.block_n;
  l.kv_bf16_ld = tile_ld(ceil_div(p.qk_dim, 2));
  l.node = node_layout(rows, p.v_dim);
  l.nodes_per_list = max_waiting_nodes(max_chunks);
  l.q = 0;
  l.q_norms = l.q + static_cast<int64_t>(padded_rows) * max(l.q_ld, round_up(p.qk_dim, kCpuScoreColumns));
  l.kv = l.q_norms + padded_rows;
  const int64_t kv = int64_t{c.block_n} * max(l.kv_ld, max(kCpuValueColumns, kCpuScoreColumns));
  const int64_t kv_bf16 = bf16_products(p) ? int64_t{kBf16TileKeys} * l.kv_bf16_ld : 0;
  l.squares = l.kv + max(kv, kv_bf16);
  l.key_scores = l.squares + static_cast<int64_t>(c.block_n) * 16;
  l.scores = l.key_scores + static_cast<int64_t>(c.block_n) * padded_rows;
  l.values = l.scores + static_cast<int64_t>(padded_rows) * (bf16_products(p) ? kBf16TileKeys : l.scores_ld);
  l.nodes = l.values + (bf16_products(p) ? int64_t{kBf16TileKeys} * (p.v_dim + kBf16Vector) / 2 : 0);
  l.size = round_up<int64_t>(l.nodes + 2 * l.nodes_per_list * l.node.size, kWorkspaceAlignment / 4);
  return l;
}

MLAVERIFY_HD int64_t cpu_workspace_bytes(const Problem &p, int32_t threads) {
  const bool empty = p.batch == 0 || p.num_heads == 0;
  return empty ? 0 : cpu_thread_layout(p).size * 4 * threads;
}

// GPU: the states of all partial results, then their accs. They come in series (schedule.h), of `pieces` places each.
// States of a row lie next to each other in a series: who merges the row reads them at once.
// An acc is made of blocks of 512 bytes: 8 rows x 16 columns in f32, or x 32 columns in f16, those of the same rows one after the other. In a
// block 16 bytes lie together that a thread has which holds two, or four, neighbouring m16n8 fragments: a warp writes a block as it stands in
// its registers. Numbers in f16 are those of acc over the scale of their row and range of columns, a power of two.
struct GpuPartLayout {
  int32_t rows, pieces;
  int32_t numbers;     // in 16 bytes: 4 (f32) or 8 (f16)
  int32_t row_blocks;  // blocks of the same rows
  int32_t acc_size;    // in 16 bytes; a multiple of 32
};

// What a row has beside its acc.
struct alignas(16) PartState {
  float max, sum;  // max in log2 units
  float scale[2];  // f16: of columns below kScaleColumns, and of the others
};
constexpr int32_t kScaleColumns = 256;

constexpr int32_t kAccBlockRows = 8, kAccBlock = 4 * kAccBlockRows;  // a block in 16 bytes

MLAVERIFY_HD GpuPartLayout gpu_part_layout(int32_t rows, int32_t v_dim, int32_t pieces, bool f16) {
  const int32_t numbers = f16 ? 8 : 4, row_blocks = ceil_div(v_dim, 4 * numbers);
  return {rows, pieces, numbers, row_blocks, ceil_div(rows, kAccBlockRows) * row_blocks * kAccBlock};
}

// Of a row's state, counted in states.
MLAVERIFY_HD int64_t state_offset(const GpuPartLayout &l, PartPlace at, int32_t row) {
  return (int64_t{at.series} * l.rows + row) * l.pieces + at.piece;
}

// Of an acc, in 16 bytes.
MLAVERIFY_HD int64_t acc_at(const GpuPartLayout &l, PartPlace at) {
  return (int64_t{at.series} * l.pieces + at.piece) * l.acc_size;
}

// Of the 16 bytes with `row` and `column` in its acc: with columns 2 q, 2 q + 1, 8 + 2 q, 9 + 2 q, ... of their block, q < 4.
MLAVERIFY_HD int32_t acc_vector(const GpuPartLayout &l, int32_t row, int32_t column) {
  return (row / kAccBlockRows * l.row_blocks + column / (4 * l.numbers)) * kAccBlock + row % kAccBlockRows * 4 + column % 8 / 2;
}

// Which of its numbers that is.
MLAVERIFY_HD int32_t acc_number(const GpuPartLayout &l, int32_t column) {
  return column % (4 * l.numbers) / 8 * 2 + column % 2;
}

// Bytes of the states of `series` series, and of their accs.
MLAVERIFY_HD int64_t gpu_states_bytes(const GpuPartLayout &l, int64_t series) {
  return round_up<int64_t>(series * l.rows * l.pieces * int64_t{sizeof(PartState)}, kWorkspaceAlignment);
}
MLAVERIFY_HD int64_t gpu_accs_bytes(const GpuPartLayout &l, int64_t series) { return series * l.pieces * l.acc_size * 16; }

static_assert(tile_ld(576) == 592 && tile_ld(512) == 528 && tile_ld(8) == 48);

}  // namespace mlaverify::rules
