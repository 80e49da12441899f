// Products of rows with weight matrices, in a fixed order: out[n] = x[0] * w[n][0] + x[1] * w[n][1] + ..., every product and every
// sum rounded to float, from left to right. So a row's result has the same bits whatever rows are computed with it, on any number of
// threads and with any instruction set. (A BLAS promises no such thing: its kernels, and so its order, go by the number of rows.)
#pragma once

#include <cstdint>
#include <vector>

namespace mlaverify::generate {

// A weight matrix of bf16 numbers, laid out for the product: panels of kPanel outputs; within a panel the outputs of an input together, in
// words of two: i in the low half, kPanel / 2 + i in the high one.
class Matrix {
 public:
  static constexpr int64_t kPanel = 32;

  Matrix() = default;
  // w[n][k] = weights[n * output_stride + k * input_stride], for n < outputs, k < inputs.
  Matrix(int64_t outputs, int64_t inputs, const uint16_t *weights, int64_t output_stride, int64_t input_stride);
  // The usual layout: row-major [outputs, inputs].
  Matrix(int64_t outputs, int64_t inputs, const uint16_t *weights) : Matrix(outputs, inputs, weights, inputs, 1) {}

  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  int64_t panels() const { return (outputs_ + kPanel - 1) / kPanel; }
  const uint32_t *panel(int64_t i) const { return packed_.data() + i * kPanel / 2 * inputs_; }

 private:
  int64_t outputs_ = 0, inputs_ = 0;
  std::vector<uint32_t> packed_;
};

// out row r = matrix * x row r; strides in elements, from row to row.
struct Product {
  const Matrix *matrix;
  const float *x;
  int64_t x_stride;
  float *out;
  int64_t out_stride;
};

// All of `products`, of `rows` rows each, which do not depend on each other; on at most `threads` >= 1 threads of OpenMP.
void multiply(const std::vector<Product> &products, int64_t rows, int threads);

}  // namespace mlaverify::generate
