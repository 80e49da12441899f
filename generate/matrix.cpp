#include "generate/matrix.h"

#include <algorithm>

#include "generate/product_isa.h"
#ifdef MLAVERIFY_X86
#include "cpu/features.h"
#endif

namespace mlaverify::generate {
namespace {

constexpr int64_t kWorkOfAThread = 1 << 19;  // multiply-adds, tens of microseconds: less is not worth waking a thread for

MultiplyPanel fastest_panel_product() {
#ifdef MLAVERIFY_X86
  if (cpu::missing_for(cpu::IsaKind::avx512).empty()) return panel_product_avx512();
  if (cpu::missing_for(cpu::IsaKind::avx2).empty()) return panel_product_avx2();
#endif
  return panel_product_portable();
}

}  // namespace

Matrix::Matrix(int64_t outputs, int64_t inputs, const uint16_t *weights, int64_t output_stride, int64_t input_stride)
    : outputs_(outputs), inputs_(inputs), packed_(static_cast<std::size_t>(panels() * kPanel / 2 * inputs)) {
  constexpr int64_t half = kPanel / 2;
  for (int64_t n = 0; n < outputs; ++n) {
    uint32_t *column = packed_.data() + n / kPanel * half * inputs + n % half;
    const int shift = n % kPanel < half ? 0 : 16;
    for (int64_t k = 0; k < inputs; ++k) column[k * half] |= uint32_t{weights[n * output_stride + k * input_stride]} << shift;
  }
}

void multiply(const std::vector<Product> &products, int64_t rows, int threads) {
  static const MultiplyPanel multiply_panel = fastest_panel_product();
  int64_t panels = 0, work = 0;
  for (const Product &p : products) {
    panels += p.matrix->panels();
    work += p.matrix->outputs() * p.matrix->inputs() * rows;
  }
  [[maybe_unused]] const auto team = static_cast<int>(std::clamp<int64_t>(work / kWorkOfAThread, 1, threads));
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
#endif
  for (int64_t i = 0; i < panels; ++i) {
    int64_t panel = i;
    const Product *p = products.data();
    for (; panel >= p->matrix->panels(); ++p) panel -= p->matrix->panels();
    const int64_t first = panel * Matrix::kPanel;
    multiply_panel(p->matrix->inputs(), std::min(Matrix::kPanel, p->matrix->outputs() - first), p->matrix->panel(panel), rows,
                   p->x, p->x_stride, p->out + first, p->out_stride);
  }
}

}  // namespace mlaverify::generate
