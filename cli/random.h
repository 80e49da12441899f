// Fast seeded random numbers for test data and simulations: the same seed gives the same data on every machine.
#pragma once

#include <cstdint>

#include "io/tensor_buffer.h"
#include "rules/row.h"

namespace mlaverify::cli {

// splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  // Uniform in [0, n), n > 0. (The bias of the modulus is below 2^-32 for the n used here.)
  uint64_t below(uint64_t n) { return next() % n; }
  // Near normal, mean 0, variance 1: the centred sum of four 16-bit uniforms; bounded by 3.5.
  float normal() {
    const uint64_t z = next();
    const int64_t sum =
        static_cast<int64_t>((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48)) - 2 * int64_t{65535};
    return static_cast<float>(sum) * 2.6428e-5f;  // sqrt(3) / 65536
  }

 private:
  uint64_t state_;
};

// Fills `count` elements of floating-point type `t` with sigma * normal.
inline void fill_normal(Random &random, DType t, void *data, int64_t count, float sigma) {
  for (int64_t i = 0; i < count; ++i) rules::store_float(t, data, i, sigma * random.normal());
}

// The scale of a group of a record whose e4m3 numbers are normal with this sigma, for numbers of about `sigma`: no power of two.
constexpr float kCodeSigma = 16;
inline float random_scale(Random &random, float sigma) {
  return sigma / kCodeSigma * static_cast<float>(0.5 + random.uniform());
}

// Fills a row of a cache of type `t` with sigma * normal; the groups of a record differ a little in theirs.
inline void fill_row(Random &random, DType t, void *row, int32_t width, float sigma) {
  for (int32_t d = 0; d < width;) {
    const rules::RowPart part = rules::row_part(t, width, d);
    char *to = static_cast<char *>(row) + part.at;
    fill_normal(random, part.dtype, to, part.end - part.begin, part.group < 0 ? sigma : kCodeSigma);
    if (part.group >= 0) rules::record_scales(row)[part.group] = random_scale(random, sigma);
    d = part.end;
  }
}

// Fills memory with 0xff: NaN in every floating-point type here, records included.
inline void poison(void *data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) static_cast<unsigned char *>(data)[i] = 0xff;
}

}  // namespace mlaverify::cli
