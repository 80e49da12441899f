#include "generate/product_isa.h"

namespace mlaverify::generate {
namespace {
constexpr int kLanes = 16;
}
}  // namespace mlaverify::generate

#include "generate/product_kernel.h"

namespace mlaverify::generate {

MultiplyPanel panel_product_avx512() { return multiply_panel; }

}  // namespace mlaverify::generate
