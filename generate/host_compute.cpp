#include "generate/compute.h"

namespace mlaverify::generate {
namespace {

class HostCompute : public Compute {
 public:
  explicit HostCompute(int threads) : threads_(threads) {}

  mlaverify_device device() const override { return MLAVERIFY_HOST; }
  void *stream() const override { return nullptr; }
  void synchronize() const override {}
  int64_t padded_rows(int64_t rows) const override { return rows; }

  void multiply(const std::vector<Product> &products, int64_t rows) override { generate::multiply(products, rows, threads_); }

  void run(const Norm &norm, int64_t rows) override {
    const auto width = static_cast<int64_t>(norm.weight->size());
    const float *weight = norm.weight->data();
    for (int64_t r = 0; r < rows; ++r) {
      const float *x = norm.x + r * norm.x_stride;
      float *out = norm.out + r * norm.out_stride;
      double squares = 0;
      for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      const float scale = Norm::scale(squares, width, norm.eps);
      for (int64_t i = 0; i < width; ++i) out[i] = Norm::number(x[i], scale, weight[i]);
    }
  }

  void run(const Step &step) override {
    std::visit(
        [](auto s) {  // a copy, which no store can change
          for (int64_t r = 0; r < s.rows(); ++r) {
            for (int32_t c = 0; c < s.columns(); ++c) s(r, c);
          }
        },
        step);
  }

  void repeat(const Key & /*key*/, const std::function<void()> &enqueue) override { enqueue(); }
  void forget() override {}

 private:
  int threads_;
};

}  // namespace

std::unique_ptr<Compute> compute_on_host(int threads) { return std::make_unique<HostCompute>(threads); }

}  // namespace mlaverify::generate
