// The panel product of each instruction set; all give the same bits.
#pragma once

#include <cstdint>

namespace mlaverify::generate {

using MultiplyPanel = void (*)(int64_t inputs, int64_t outputs, const uint32_t *panel, int64_t rows, const float *x,
                               int64_t x_stride, float *out, int64_t out_stride);

MultiplyPanel panel_product_portable();
#ifdef MLAVERIFY_X86
MultiplyPanel panel_product_avx2();
MultiplyPanel panel_product_avx512();
#endif

}  // namespace mlaverify::generate
