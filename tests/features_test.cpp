// Which instruction set the CPU backend prefers.
#include "cpu/features.h"

#include <gtest/gtest.h>

namespace mlaverify::test {
namespace {

using cpu::IsaKind;

TEST(Features, FastestFirst) {
  using Order = std::array<IsaKind, 4>;
  const Order amd = {IsaKind::amx_bf16, IsaKind::avx512_bf16, IsaKind::avx512, IsaKind::avx2};
  const Order intel = {IsaKind::amx_bf16, IsaKind::avx512, IsaKind::avx512_bf16, IsaKind::avx2};
  EXPECT_EQ(cpu::fastest_first("AuthenticAMD"), amd);
  EXPECT_EQ(cpu::fastest_first("GenuineIntel"), intel);
  EXPECT_EQ(cpu::fastest_first(""), amd);
}

}  // namespace
}  // namespace mlaverify::test
