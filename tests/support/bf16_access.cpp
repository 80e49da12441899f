#include "support/bf16_access.h"

#include "cpu/amx_pack.h"

namespace mlaverify::test {

const Bf16Access &bf16_access() {
  using cpu::Bf16Pairs;
  using cpu::Vec;
  static constexpr Bf16Access access = {
      [](const float *from, uint16_t *to) { Bf16Pairs::round(Vec::load(from), Vec::load(from + Vec::width)).store(to); },
      Vec::fp8_to_bf16,
      [](const uint16_t *from, float scale, uint16_t *to) {
        Vec::scaled(Bf16Pairs::load(from), Vec::broadcast(scale)).store(to);
      },
      [](const uint16_t *x, const uint16_t *y, uint16_t *first, uint16_t *last) {
        first_pairs(Bf16Pairs::load(x), Bf16Pairs::load(y)).store(first);
        last_pairs(Bf16Pairs::load(x), Bf16Pairs::load(y)).store(last);
      },
      [](const uint16_t *a, const uint16_t *b, const float *c, float *result) {
        fma(Bf16Pairs::load(a), Bf16Pairs::load(b), Vec::load(c)).store(result);
      },
      cpu::pack_rows,
      [](const char *const *keys, int32_t width, uint32_t *to) {
        cpu::pack_values([=](int32_t k, int32_t c) { return Bf16Pairs::load(reinterpret_cast<const uint16_t *>(keys[k]) + c); },
                         width, to);
      },
      cpu::clear_packed_key,
      cpu::all_finite,
      [](const float *x, const float *y, uint16_t *to) {
        Bf16Pairs{cpu::rounded_pairs(Vec::load(x), Vec::load(y))}.store(to);
      }};
  return access;
}

}  // namespace mlaverify::test
