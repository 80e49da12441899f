// Many rows of normal random numbers, at the price of a copy: each row is a stretch of one random block (of a record: each part is one of
// its own), from an offset drawn for that row. Rows start at any of a million offsets, so that a request of many thousand tokens rarely
// holds a row twice.
#pragma once

#include <cstring>
#include <vector>

#include "io/tensor_buffer.h"
#include "random.h"
#include "rules/row.h"

namespace mlaverify::cli {

class RandomRows {
 public:
  // Rows of `width` numbers of variance 1 (of a record: about that).
  RandomRows(DType dtype, int32_t width, uint64_t seed) : row_bytes_(static_cast<std::size_t>(rules::row_bytes(dtype, width))) {
    Random random(seed);
    for (int32_t d = 0; d < width; d = parts_.back().place.end) {
      const rules::RowPart place = rules::row_part(dtype, width, d);
      io::TensorBuffer block(place.dtype, {kOffsets + place.end - place.begin});
      fill_normal(random, place.dtype, block.data(), block.size(), place.group < 0 ? 1.0f : kCodeSigma);
      parts_.push_back({place, std::move(block)});
    }
  }

  std::size_t row_bytes() const { return row_bytes_; }

  // Writes one row to `to`.
  void copy(Random &random, void *to) const {
    for (const Part &part : parts_) {
      const rules::RowPart &place = part.place;
      const auto element = static_cast<std::size_t>(rules::dtype_bytes(place.dtype));
      std::memcpy(static_cast<unsigned char *>(to) + place.at,
                  part.block.data<unsigned char>() + random.below(kOffsets) * element,
                  static_cast<std::size_t>(place.end - place.begin) * element);
      if (place.group >= 0) rules::record_scales(to)[place.group] = random_scale(random, 1);
    }
  }

 private:
  static constexpr int64_t kOffsets = 1 << 20;
  struct Part {
    rules::RowPart place;
    io::TensorBuffer block;
  };
  std::vector<Part> parts_;
  std::size_t row_bytes_;
};

}  // namespace mlaverify::cli
