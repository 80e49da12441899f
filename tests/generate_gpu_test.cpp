// What a model computes on a GPU beside attention, against the same on the host; and that a row's bits do not depend on the rows that are
// computed with it, which cuBLAS does not promise. Needs a GPU: label gpu.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "generate/buffer.h"
#include "generate/compute.h"
#include "generate/model.h"
#include "io/cublas.h"
#include "random.h"

namespace mlaverify::generate {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

const Weights &weights() {
  static const Weights trained(MLAVERIFY_MODEL);
  return trained;
}

class GpuModel : public testing::Test {
 protected:
  GpuModel() : gpu(compute_on_gpu(weights())), host(compute_on_host(1)) {}

  std::unique_ptr<Compute> gpu, host;
};

std::vector<float> normal_numbers(int64_t count, uint64_t seed) {
  cli::Random random(seed);
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float &number : x) number = random.normal();
  return x;
}

// An array of the host with a copy where `compute` has its arrays.
template <class T>
class Array {
 public:
  Array(const Compute &compute, std::vector<T> numbers)
      : numbers_(std::move(numbers)), device_(compute.device()), buffer_(device_), data_(buffer_.reserve<T>(size())) {
    buffer_.upload(numbers_.data(), bytes());
  }
  T *data() const { return data_; }
  // What is there once `compute` is done.
  std::vector<T> result(const Compute &compute) const {
    compute.synchronize();
    std::vector<T> out(numbers_.size());
    copy_to_host(device_, data_, out.data(), bytes());
    return out;
  }

 private:
  int64_t size() const { return static_cast<int64_t>(numbers_.size()); }
  std::size_t bytes() const { return numbers_.size() * sizeof(T); }

  std::vector<T> numbers_;
  mlaverify_device device_;
  Buffer buffer_;
  T *data_;
};

// Of one matrix, all heads: rows of x and out are [heads, inputs] and [heads, outputs].
std::vector<float> product(Compute &compute, const Matrix &m, const std::vector<float> &x, int64_t rows) {
  const int64_t in = m.heads() * m.inputs(), out = m.heads() * m.outputs();
  std::vector<float> padded = x;
  padded.resize(static_cast<std::size_t>(compute.padded_rows(rows) * in), kNaN);
  const Array<float> from(compute, padded);
  const Array<float> to(compute, std::vector<float>(static_cast<std::size_t>(compute.padded_rows(rows) * out), kNaN));
  compute.multiply({{&m, from.data(), in, to.data(), out, m.inputs(), m.outputs()}}, rows);
  std::vector<float> result = to.result(compute);
  result.resize(static_cast<std::size_t>(rows * out));
  return result;
}

std::vector<std::pair<std::string, const Matrix *>> matrices() {
  const Weights::Layer &layer = weights().layers[0];
  return {{"query", &layer.query},
          {"latent", &layer.latent},
          {"to_latent", &layer.to_latent},
          {"from_latent", &layer.from_latent},
          {"output", &layer.output},
          {"gate", &layer.gate},
          {"up", &layer.up},
          {"down", &layer.down},
          {"head", &weights().head},
          {"projection", &weights().mtp.projection}};
}

TEST_F(GpuModel, ProductsAreThoseOfTheHost) {
  for (const auto &[name, m] : matrices()) {
    for (int64_t rows : {1, 5, 64, 65, 200}) {
      const int64_t in = m->heads() * m->inputs(), out = m->heads() * m->outputs();
      const std::vector<float> x = normal_numbers(rows * in, 1);
      const std::vector<float> got = product(*gpu, *m, x, rows), want = product(*host, *m, x, rows);
      for (int64_t r = 0; r < rows; ++r) {
        double error = 0, norm = 0;
        for (int64_t i = r * out; i < (r + 1) * out; ++i) {
          const double w = want[static_cast<std::size_t>(i)], g = got[static_cast<std::size_t>(i)];
          error += (g - w) * (g - w);
          norm += w * w;
        }
        // Sums of up to 512 products of f32 in two orders; TF32 would be off by 1e-4 and more.
        ASSERT_LT(std::sqrt(error / norm), 2e-6) << name << ", row " << r << " of " << rows;
      }
    }
  }
}

TEST_F(GpuModel, ARowOfAProductDoesNotDependOnTheOthers) {
  for (const auto &[name, m] : matrices()) {
    const int64_t in = m->heads() * m->inputs(), out = m->heads() * m->outputs();
    const std::vector<float> row = normal_numbers(in, 2);
    const std::vector<float> alone = product(*gpu, *m, row, 1);
    for (int64_t rows : {2, 7, 64, 65, 130}) {
      for (const bool infinite : {false, true}) {
        std::vector<float> x =
            infinite ? std::vector<float>(static_cast<std::size_t>(rows * in), kNaN) : normal_numbers(rows * in, 3);
        for (int64_t place = 0; place < rows; place += infinite ? 1 : 3) {
          std::vector<float> at = x;
          std::copy(row.begin(), row.end(), at.begin() + place * in);
          const std::vector<float> got = product(*gpu, *m, at, rows);
          ASSERT_EQ(std::memcmp(got.data() + place * out, alone.data(), alone.size() * sizeof(float)), 0)
              << name << ", row " << place << " of " << rows << (infinite ? ", the others NaN" : "");
        }
      }
    }
  }
}

TEST_F(GpuModel, Norms) {
  const std::vector<float> &weight = weights().layers[0].latent_norm;
  const auto width = static_cast<int64_t>(weight.size());
  const int64_t rows = 70, stride = width + 5;
  const std::vector<float> x = normal_numbers(rows * stride, 4);
  const auto normed = [&](Compute &compute, const std::vector<float> &from, int64_t count) {
    const Array<float> in(compute, from), out(compute, std::vector<float>(static_cast<std::size_t>(count * width), kNaN));
    compute.run(Norm{&weight, 1e-6, in.data(), stride, out.data(), width}, count);
    return out.result(compute);
  };
  const std::vector<float> got = normed(*gpu, x, rows), want = normed(*host, x, rows);
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6 * std::fabs(want[i])) << i;
  for (int64_t r = 0; r < rows; r += 23) {
    const std::vector<float> alone = normed(*gpu, {x.begin() + r * stride, x.begin() + (r + 1) * stride}, 1);
    EXPECT_EQ(std::memcmp(alone.data(), got.data() + r * width, alone.size() * sizeof(float)), 0) << r;
  }
}

// Near, since the compilers may round a turn's two products differently: then by one unit of bf16.
void expect_near(const std::vector<uint16_t> &got, const std::vector<uint16_t> &want) {
  ASSERT_EQ(got.size(), want.size());
  std::size_t different = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const float g = rules::bf16_to_float(got[i]), w = rules::bf16_to_float(want[i]);
    if (std::isnan(w)) {
      ASSERT_TRUE(std::isnan(g)) << i;
      continue;
    }
    different += got[i] != want[i] ? 1 : 0;
    ASSERT_NEAR(g, w, 0.008 * std::fabs(w) + 1e-6) << i;
  }
  EXPECT_LT(different, want.size() / 100);
}

TEST_F(GpuModel, StepsOfALayer) {
  constexpr int32_t heads = 3, rank = 40, nope = 6, rope = 8, page_size = 4, pages = 9, width = 70;
  const std::vector<int32_t> table = {7, 0, 3, -1, 2, 8, 5, 1}, lens = {10, 13};
  const std::vector<Turn> turns = turns_of(rope, 16, 10000);
  const auto run = [&](Compute &compute) {
    const Array<int32_t> block_table(compute, table), seq_lens(compute, lens);
    const Array<Turn> turn(compute, turns);
    const Sequences s = {2, 3, block_table.data(), 4, seq_lens.data()};
    const Array<float> latent(compute, normal_numbers(6 * (rank + rope), 5));
    const Array<uint16_t> cache(compute, std::vector<uint16_t>(pages * page_size * (rank + rope), 0xffff));
    compute.run(StoreLatents{s, page_size, rank, rope, turn.data(), latent.data(), cache.data()});
    const Array<float> latent_query(compute, normal_numbers(6 * heads * rank, 6));
    const Array<float> query(compute, normal_numbers(6 * heads * (nope + rope), 7));
    const Array<uint16_t> q(compute, std::vector<uint16_t>(6 * heads * (rank + rope), 0xffff));
    compute.run(MakeQueries{s, heads, rank, nope, rope, turn.data(), latent_query.data(), query.data(), q.data()});
    const Array<float> sum(compute, normal_numbers(5 * width, 8)), x(compute, normal_numbers(5 * width, 9));
    compute.run(Add{{5, width}, x.data(), sum.data()});
    const Array<float> gate(compute, normal_numbers(5 * width, 10)),
        wide(compute, std::vector<float>(6 * heads * (rank + rope)));
    compute.run(SwiGlu{{5, width}, x.data(), gate.data()});
    compute.run(Widen{{6, heads * (rank + rope)}, q.data(), wide.data()});
    return std::make_tuple(cache.result(compute), q.result(compute), sum.result(compute), gate.result(compute),
                           wide.result(compute));
  };
  const auto [cache, q, sum, gate, wide] = run(*gpu);
  const auto [want_cache, want_q, want_sum, want_gate, want_wide] = run(*host);
  expect_near(cache, want_cache);
  expect_near(q, want_q);
  EXPECT_EQ(sum, want_sum);
  for (std::size_t i = 0; i < gate.size(); ++i) EXPECT_NEAR(gate[i], want_gate[i], 1e-6) << i;
  for (std::size_t i = 0; i < wide.size(); ++i) EXPECT_EQ(wide[i], rules::bf16_to_float(q[i])) << i;
  // Slots of other tokens stay as they were: six of 36 are written.
  int64_t live = 0;
  for (std::size_t i = 0; i < cache.size(); i += rank + rope) live += cache[i] != 0xffff ? 1 : 0;
  EXPECT_EQ(live, 6);
}

// As it comes, captured, replayed, and captured anew: each time with the numbers that are there.
TEST_F(GpuModel, RepeatedWorkTakesNewNumbers) {
  Buffer x(gpu->device(), [this] { gpu->forget(); }), sum(gpu->device());
  int calls = 0;
  const auto add = [&](int64_t count, float number) {
    const std::vector<float> numbers(static_cast<std::size_t>(count), number), zeros(numbers.size());
    auto *from = x.reserve<float>(count), *to = sum.reserve<float>(count);
    x.upload(numbers.data(), numbers.size() * sizeof(float));
    sum.upload(zeros.data(), zeros.size() * sizeof(float));
    gpu->repeat({1, count}, [&] {
      ++calls;
      gpu->run(Add{{1, static_cast<int32_t>(count)}, from, to});
      gpu->run(Add{{1, static_cast<int32_t>(count)}, from, to});
    });
    gpu->synchronize();
    std::vector<float> got(numbers.size());
    copy_to_host(gpu->device(), to, got.data(), got.size() * sizeof(float));
    EXPECT_EQ(got, std::vector<float>(numbers.size(), 2 * number)) << count << ", " << number;
  };
  for (int i = 1; i <= 4; ++i) add(100, static_cast<float>(i));
  EXPECT_EQ(calls, 2);  // as it came, and captured
  sum.reserve<float>(100'000);
  add(100'000, 5);  // x has moved
  for (int i = 6; i <= 9; ++i) add(100, static_cast<float>(i));
  EXPECT_EQ(calls, 5);
}

}  // namespace
}  // namespace mlaverify::generate
