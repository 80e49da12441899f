#include "cpu/features.h"

#include <cpuid.h>

#include <cstdint>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace mlaverify::cpu {
namespace {

struct CpuidRegisters {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidRegisters cpuid(unsigned leaf) {
  CpuidRegisters r;
  if (__get_cpuid_count(leaf, 0, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

// The registers that the operating system saves (XCR0; Intel SDM vol. 1, 13.3): bit 17 tile configuration, bit 18 tile data.
bool saves_tiles() {
  if ((cpuid(1).ecx & bit_OSXSAVE) == 0) return false;
  uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr uint32_t tiles = 1u << 17 | 1u << 18;
  return (low & tiles) == tiles;
}

// Linux gives the tile data registers to a process that asks for them (arch_prctl(2), Documentation/arch/x86/xstate.rst).
bool may_use_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

}  // namespace

std::string vendor() {
  const CpuidRegisters r = cpuid(0);
  std::string name;
  for (const unsigned part : {r.ebx, r.edx, r.ecx}) {
    for (int byte = 0; byte < 4; ++byte) name += static_cast<char>(part >> (8 * byte) & 0xff);
  }
  return name;
}

std::string missing_for(IsaKind kind) {
  std::string missing;
  const auto need = [&](const char *name, bool there) {
    if (!there) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  need("AVX2", __builtin_cpu_supports("avx2"));
  need("FMA", __builtin_cpu_supports("fma"));
  need("F16C", (cpuid(1).ecx & bit_F16C) != 0);  // (not every compiler's __builtin_cpu_supports knows it, nor the tiles)
  if (kind == IsaKind::avx2) return missing;
  need("AVX512F", __builtin_cpu_supports("avx512f"));
  need("AVX512BW", __builtin_cpu_supports("avx512bw"));
  need("AVX512DQ", __builtin_cpu_supports("avx512dq"));
  need("AVX512VL", __builtin_cpu_supports("avx512vl"));
  if (kind == IsaKind::avx512) return missing;
  need("AVX512-VBMI", __builtin_cpu_supports("avx512vbmi"));
  need("AVX512-BF16", __builtin_cpu_supports("avx512bf16"));
  if (kind == IsaKind::avx512_bf16) return missing;
  const unsigned edx = cpuid(7).edx;
  need("AMX-TILE", (edx & 1u << 24) != 0);
  need("AMX-BF16", (edx & 1u << 22) != 0);
  need("tile registers saved by the operating system (XCR0)", saves_tiles());
  if (missing.empty()) need("Linux's permission to use tile registers", may_use_tiles());
  return missing;
}

}  // namespace mlaverify::cpu
