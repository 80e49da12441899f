// Which instruction sets of the CPU backend this machine runs, x86-64 only, and which it is to prefer: the one place that asks CPUID and the
// operating system.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace mlaverify::cpu {

enum class IsaKind { avx2, avx512, avx512_bf16, amx_bf16 };

// The processor's maker, as CPUID says it: "GenuineIntel", "AuthenticAMD".
std::string vendor();

// The fastest first. AVX512-BF16 takes 0.6 of the time of AVX-512 on AMD's Zen 5 (docs/notes/2026-11-30-cpu-avx512.md). On Intel its
// products have half the rate of f32 multiply-adds, and it takes 1.36 of that time (Xeon, model 207: docs/notes/2026-11-30-cpu-amx.md).
constexpr std::array<IsaKind, 4> fastest_first(std::string_view vendor) {
  if (vendor == "GenuineIntel") return {IsaKind::amx_bf16, IsaKind::avx512, IsaKind::avx512_bf16, IsaKind::avx2};
  return {IsaKind::amx_bf16, IsaKind::avx512_bf16, IsaKind::avx512, IsaKind::avx2};
}

// What the processor or the operating system lacks for it, for a message: "AVX512-BF16, AMX-TILE". Empty: it runs here. Each kind needs what
// the one before it needs, and more. Where nothing else is missing for amx_bf16, asks Linux to let this process use tile registers.
std::string missing_for(IsaKind kind);

}  // namespace mlaverify::cpu
