// Products of rows with weight matrices on the host, in a fixed order: out[n] = x[0] * w[n][0] + x[1] * w[n][1] + ..., every product and
// every sum rounded to float, from left to right. So a row's result has the same bits whatever rows are computed with it, on any number of
// threads and with any instruction set. (A BLAS promises no such thing: its kernels, and so its order, go by the number of rows.)
#pragma once

#include <cstdint>
#include <vector>

namespace mlaverify::generate {

// A weight matrix of bf16 numbers, or one for each head, laid out for the product: panels of kPanel outputs; within a panel the outputs of an
// input together, in words of two: i in the low half, kPanel / 2 + i in the high one.
class Matrix {
 public:
  static constexpr int64_t kPanel = 32;

  struct Strides {
    int64_t head, output, input;
  };

  Matrix() = default;
  // w[h][n][k] = weights[h * strides.head + n * strides.output + k * strides.input], for h < heads, n < outputs, k < inputs.
  Matrix(int64_t heads, int64_t outputs, int64_t inputs, const uint16_t *weights, const Strides &strides);
  // The usual layout of one: row-major [outputs, inputs].
  Matrix(int64_t outputs, int64_t inputs, const uint16_t *weights) : Matrix(1, outputs, inputs, weights, {0, inputs, 1}) {}

  int64_t heads() const { return heads_; }
  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  int64_t panels() const { return (outputs_ + kPanel - 1) / kPanel; }  // of a head
  const uint32_t *panel(int64_t head, int64_t i) const { return packed_.data() + (head * panels() + i) * kPanel / 2 * inputs_; }
  std::vector<float> widened() const;  // row-major [heads, outputs, inputs]

 private:
  int64_t heads_ = 0, outputs_ = 0, inputs_ = 0;
  std::vector<uint32_t> packed_;
};

// out row r, head h = matrix of the head * x row r, head h. Strides in elements, from row to row and from head to head.
struct Product {
  const Matrix *matrix;
  const float *x;
  int64_t x_stride;
  float *out;
  int64_t out_stride;
  int64_t x_head_stride = 0, out_head_stride = 0;
};

// All of `products`, of `rows` rows each, which do not depend on each other; on at most `threads` >= 1 threads of OpenMP.
void multiply(const std::vector<Product> &products, int64_t rows, int threads);

}  // namespace mlaverify::generate
