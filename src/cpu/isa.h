// What the CPU backend needs from an instruction set: the arithmetic on one row tile. kernel.h implements it once over a vector
// type; isa_*.cpp compile it with their own flags.
#pragma once

#include "rules/problem.h"
#include "rules/split.h"
#include "rules/workspace.h"

namespace mlaverify::cpu {

// Rows [first_row, first_row + rows) of a request (pack.h), and the keys that some of them sees: 0 ... keys-1.
struct RowTile {
  int32_t request;
  int64_t first_row;
  int32_t rows;
  int32_t keys;
};

// A partial result of a row tile (merge.h), laid out by rules::NodeLayout.
struct Node {
  float *max;  // [rows]
  float *sum;  // [rows]
  float *acc;  // [rows, acc_ld], v_dim used
};

// Converted tiles of one thread, laid out by rules::CpuThreadLayout.
struct Scratch {
  float *q;           // [qk_dim, rows in whole vectors]; or [rows, columns] blocks; or bf16 [rows, 2 * q_ld]; or tiles (amx.h)
  float *q_norms;     // [rows]; f32 queries only
  float *kv;          // of a key tile, [block_n, kv_ld] or [kColumns, scores_ld]; or bf16 [kBf16TileKeys, 2 * kv_bf16_ld]
  float *squares;     // [block_n, numbers of a vector]; f32 queries only
  float *key_scores;  // [block_n, rows in whole vectors]; not bf16 products
  float *scores;      // [rows, scores_ld]; or tiles
  float *values;      // bf16 products only: tiles; or of records bf16 [block_n, Lv]
};

struct Isa {
  const char *name;
  // Converts the queries of a row tile.
  void (*load_queries)(const Problem &, const rules::CpuThreadLayout &, const RowTile &, const Scratch &);
  // Partial result over a chunk of keys; the queries are loaded.
  void (*chunk)(const Problem &, const rules::CpuThreadLayout &, const RowTile &, rules::KeyRange, const Scratch &,
                const Node &);
  // left = merge of left and right.
  void (*merge)(const Problem &, const rules::CpuThreadLayout &, int32_t rows, const Node &left, const Node &right);
  // Writes out and lse of a row tile. `node` is not looked at for rows that see no key.
  void (*finish)(const Problem &, const rules::CpuThreadLayout &, const RowTile &, const Node &node);
};

const Isa &isa_scalar();
#if defined(MLAVERIFY_X86)
const Isa &isa_avx2();
const Isa &isa_avx512();
const Isa &isa_avx512_bf16();
const Isa &isa_amx_bf16();
#endif

}  // namespace mlaverify::cpu
