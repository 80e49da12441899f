#include "generate/matrix.h"

#include <algorithm>

#include "generate/product_isa.h"
#include "rules/number.h"
#ifdef MLAVERIFY_X86
#include "cpu/features.h"
#endif

namespace mlaverify::generate {
namespace {

constexpr int64_t kHalf = Matrix::kPanel / 2;
constexpr int64_t kWorkOfAThread = 1 << 19;  // multiply-adds, tens of microseconds: less is not worth waking a thread for

MultiplyPanel fastest_panel_product() {
#ifdef MLAVERIFY_X86
  if (cpu::missing_for(cpu::IsaKind::avx512).empty()) return panel_product_avx512();
  if (cpu::missing_for(cpu::IsaKind::avx2).empty()) return panel_product_avx2();
#endif
  return panel_product_portable();
}

}  // namespace

Matrix::Matrix(int64_t heads, int64_t outputs, int64_t inputs, const uint16_t *weights, const Strides &strides)
    : heads_(heads),
      outputs_(outputs),
      inputs_(inputs),
      packed_(static_cast<std::size_t>(heads * panels() * kPanel / 2 * inputs)) {
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t n = 0; n < outputs; ++n) {
      const uint16_t *from = weights + h * strides.head + n * strides.output;
      uint32_t *column = packed_.data() + (h * panels() + n / kPanel) * kHalf * inputs + n % kHalf;
      const int shift = n % kPanel < kHalf ? 0 : 16;
      for (int64_t k = 0; k < inputs; ++k) column[k * kHalf] |= uint32_t{from[k * strides.input]} << shift;
    }
  }
}

std::vector<float> Matrix::widened() const {
  std::vector<float> out;
  out.reserve(static_cast<std::size_t>(heads_ * outputs_ * inputs_));
  for (int64_t h = 0; h < heads_; ++h) {
    for (int64_t n = 0; n < outputs_; ++n) {
      const uint32_t *column = panel(h, n / kPanel) + n % kHalf;
      const int shift = n % kPanel < kHalf ? 0 : 16;
      for (int64_t k = 0; k < inputs_; ++k)
        out.push_back(rules::bf16_to_float(static_cast<uint16_t>(column[k * kHalf] >> shift)));
    }
  }
  return out;
}

void multiply(const std::vector<Product> &products, int64_t rows, int threads) {
  static const MultiplyPanel multiply_panel = fastest_panel_product();
  int64_t panels = 0, work = 0;
  for (const Product &p : products) {
    panels += p.matrix->heads() * p.matrix->panels();
    work += p.matrix->heads() * p.matrix->outputs() * p.matrix->inputs() * rows;
  }
  [[maybe_unused]] const auto team = static_cast<int>(std::clamp<int64_t>(work / kWorkOfAThread, 1, threads));
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
#endif
  for (int64_t i = 0; i < panels; ++i) {
    int64_t panel = i;
    const Product *p = products.data();
    for (; panel >= p->matrix->heads() * p->matrix->panels(); ++p) panel -= p->matrix->heads() * p->matrix->panels();
    const int64_t head = panel / p->matrix->panels();
    panel %= p->matrix->panels();
    const int64_t first = panel * Matrix::kPanel;
    multiply_panel(p->matrix->inputs(), std::min(Matrix::kPanel, p->matrix->outputs() - first), p->matrix->panel(head, panel),
                   rows, p->x + head * p->x_head_stride, p->x_stride, p->out + head * p->out_head_stride + first,
                   p->out_stride);
  }
}

}  // namespace mlaverify::generate
