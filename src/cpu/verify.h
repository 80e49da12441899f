// One call on the CPU with a given instruction set.
#pragma once

#include "cpu/isa.h"

namespace mlaverify::cpu {

// `workspace`: rules::cpu_workspace_bytes(p, threads) bytes. Uses `threads` threads at most. Lengths and page ids are checked.
void verify(const Isa &isa, const Problem &p, int32_t threads, void *workspace);

}  // namespace mlaverify::cpu
