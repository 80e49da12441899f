// Which instruction sets of the CPU backend this machine runs, x86-64 only: the one place that asks CPUID and the operating system.
#pragma once

#include <string>

namespace mlaverify::cpu {

enum class IsaKind { avx2, avx512, avx512_bf16, amx_bf16 };

// What the processor or the operating system lacks for it, for a message: "AVX512-BF16, AMX-TILE". Empty: it runs here. Each kind needs what
// the one before it needs, and more. Where nothing else is missing for amx_bf16, asks Linux to let this process use tile registers.
std::string missing_for(IsaKind kind);

}  // namespace mlaverify::cpu
