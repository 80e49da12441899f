// The product of one panel, for the instruction set that the including file is compiled for: it defines kLanes, the floats of a
// vector register. Everything here has internal linkage, so that no function compiled for one machine is linked for another.
#pragma once

#include <cstdint>
#include <cstring>

namespace mlaverify::generate {
namespace {

constexpr int kPanelColumns = 32;
constexpr int kHalf = kPanelColumns / 2;
constexpr int kRows = 4;  // with two vectors of outputs each: sums enough to hide the latency of an addition

using Floats = float __attribute__((vector_size(kLanes * 4)));
using Words = uint32_t __attribute__((vector_size(kLanes * 4)));

// `rows` rows by kLanes outputs of either half of the panel. A word holds the weights of outputs i and kHalf + i, its low and high half:
// a bf16 number is the high half of a float.
template <int rows>
void block(int64_t inputs, const float *x, int64_t x_stride, const uint32_t *weights, float *out) {
  Floats low[rows], high[rows];
  for (int r = 0; r < rows; ++r) low[r] = high[r] = Floats{};
  for (int64_t k = 0; k < inputs; ++k) {
    Words pairs;
    std::memcpy(&pairs, weights + k * kHalf, sizeof pairs);
    const Words low_bits = pairs << 16, high_bits = pairs & 0xffff0000u;
    Floats low_weights, high_weights;
    std::memcpy(&low_weights, &low_bits, sizeof low_bits);
    std::memcpy(&high_weights, &high_bits, sizeof high_bits);
    for (int r = 0; r < rows; ++r) {
      low[r] = low[r] + x[r * x_stride + k] * low_weights;
      high[r] = high[r] + x[r * x_stride + k] * high_weights;
    }
  }
  for (int r = 0; r < rows; ++r) {
    std::memcpy(out + r * kPanelColumns, &low[r], sizeof low[r]);
    std::memcpy(out + r * kPanelColumns + kHalf, &high[r], sizeof high[r]);
  }
}

// `rows` rows of the panel to out[rows][kPanelColumns].
template <int rows>
void columns(int64_t inputs, const float *x, int64_t x_stride, const uint32_t *panel, float *out) {
  for (int c = 0; c < kHalf; c += kLanes) block<rows>(inputs, x, x_stride, panel + c, out + c);
}

// out[r][n] for all rows and the `outputs` first outputs of the panel.
void multiply_panel(int64_t inputs, int64_t outputs, const uint32_t *panel, int64_t rows, const float *x, int64_t x_stride,
                    float *out, int64_t out_stride) {
  constexpr decltype(&columns<1>) kernels[kRows] = {columns<1>, columns<2>, columns<3>, columns<4>};
  float result[kRows][kPanelColumns];
  for (int64_t first = 0; first < rows; first += kRows) {
    const int64_t count = rows - first < kRows ? rows - first : kRows;
    kernels[count - 1](inputs, x + first * x_stride, x_stride, panel, result[0]);
    for (int64_t r = 0; r < count; ++r) {
      std::memcpy(out + (first + r) * out_stride, result[r], static_cast<size_t>(outputs) * sizeof(float));
    }
  }
}

}  // namespace
}  // namespace mlaverify::generate
