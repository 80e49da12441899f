// One call on the CPU with a given instruction set.
#pragma once

#include "cpu/isa.h"
#include "cpu/threads.h"

namespace mlaverify::cpu {

// `workspace`: rules::cpu_workspace_bytes(p, threads.limit()) bytes. Lengths and page ids are checked.
void verify(const Isa &isa, const Problem &p, const Threads &threads, void *workspace);

}  // namespace mlaverify::cpu
