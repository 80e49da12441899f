#include "generate/product_isa.h"

namespace mlaverify::generate {
namespace {
constexpr int kLanes = 4;
}
}  // namespace mlaverify::generate

#include "generate/product_kernel.h"

namespace mlaverify::generate {

MultiplyPanel panel_product_portable() { return multiply_panel; }

}  // namespace mlaverify::generate
