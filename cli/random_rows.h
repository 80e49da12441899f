// Many rows of normal random numbers, at the price of a copy: each row is a stretch of one random block, from an offset drawn
// for that row. Rows start at any of a million offsets, so that a request of many thousand tokens rarely holds a row twice.
#pragma once

#include <cstring>

#include "io/tensor_buffer.h"
#include "random.h"

namespace mlaverify::cli {

class RandomRows {
 public:
  // Rows of `width` numbers of variance 1.
  RandomRows(DType dtype, int32_t width, uint64_t seed)
      : block_(dtype, {kOffsets + width}),
        element_bytes_(static_cast<std::size_t>(rules::dtype_bytes(dtype))),
        row_bytes_(static_cast<std::size_t>(width) * element_bytes_) {
    Random random(seed);
    fill_normal(random, dtype, block_.data(), block_.size(), 1.0f);
  }

  std::size_t row_bytes() const { return row_bytes_; }

  // Writes one row to `to`.
  void copy(Random &random, void *to) const {
    std::memcpy(to, block_.data<unsigned char>() + random.below(kOffsets) * element_bytes_, row_bytes_);
  }

 private:
  static constexpr int64_t kOffsets = 1 << 20;
  io::TensorBuffer block_;
  std::size_t element_bytes_, row_bytes_;
};

}  // namespace mlaverify::cli
