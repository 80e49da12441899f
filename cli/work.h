// What a step must move and compute at least, and the time that takes on a machine with given ceilings: the floor.
#pragma once

#include <cstdint>
#include <vector>

#include "rules/problem.h"

namespace mlaverify::cli {

struct Shape {
  int32_t num_heads = 16;
  int32_t qlen = 1;
  int32_t qk_dim = 576;
  int32_t v_dim = 512;
  int32_t page_size = 64;
  DType q_dtype = DType::bf16;
  DType kv_dtype = DType::bf16;
  std::vector<int32_t> seq_lens;  // one a request
};

struct Work {
  double bytes = 0;  // sum over requests of L*Lk*sizeof(cache), plus q and out
  double flops = 0;  // sum over rows of 2*(Lk+Lv)*visible keys
  Work &operator+=(const Work &other);
};

Work work_of(const Shape &shape);

struct Ceilings {
  double bytes_per_second = 0;
  double flops_per_second = 0;       // CPU: f32 multiply-adds
  double bf16_flops_per_second = 0;  // CPU: products of bf16 numbers, where the cpu backend has them; 0 elsewhere
};

// Those of a shape: where bf16 products compute it, flops_per_second is theirs.
Ceilings ceilings_of(const Shape &shape, const Ceilings &machine);

// max(bytes / bandwidth, flops / arithmetic), seconds.
double floor_seconds(const Work &work, const Ceilings &ceilings);

// Measures memory read bandwidth and the arithmetic of this CPU with `threads` threads (about half a second).
Ceilings measure_cpu_ceilings(int threads);

}  // namespace mlaverify::cli
