// Causal MLA verify attention put together from matrix products of a library (oneDNN or OpenBLAS), for comparison: pages gathered and
// converted to f32 in blocks of keys, S = Q K^T by sgemm, online softmax, O += P V by sgemm.
//
//   compose_dnnl SHAPE --threads N      SHAPE: the options of `mlaverify bench`, with a bf16 cache and bf16 queries
//
// Prints the median of a call in seconds. The first call is compared with mlaverify; exit code 1 if they differ.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#if defined(MLAVERIFY_COMPOSE_DNNL)
#include <dnnl.h>
#else
#include <cblas.h>
#endif

#include "error.h"
#include "grid.h"
#include "mlaverify/mlaverify.hpp"
#include "timer.h"
#include "work.h"

namespace mlaverify::cli {
namespace {

// Row-major c [m, n] = alpha a b (+ beta c); `transposed`: b is [n, k].
void multiply(bool transposed, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb, float beta,
              float *c, int ldc) {
#if defined(MLAVERIFY_COMPOSE_DNNL)
  if (dnnl_sgemm('N', transposed ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) != dnnl_success)
    throw Failure(kCheckFailed, "dnnl_sgemm failed");
#else
  cblas_sgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans, m, n, k, alpha, a, lda, b, ldb, beta, c,
              ldc);
#endif
}

// Threads that one product uses from here on.
void set_product_threads(int threads) {
#if defined(MLAVERIFY_COMPOSE_DNNL)
  omp_set_num_threads(threads);
#else
  openblas_set_num_threads(threads);
#endif
}

float to_float(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

class Composition {
 public:
  Composition(const Shape &shape, int threads) : s_(shape), threads_(threads), rows_(shape.qlen * shape.num_heads) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal(0.0f, 0.5f);
    int64_t pages = 0;
    for (const int32_t len : s_.seq_lens) pages += (len + s_.page_size - 1) / s_.page_size;
    width_ = (*std::max_element(s_.seq_lens.begin(), s_.seq_lens.end()) + s_.page_size - 1) / s_.page_size;
    const int64_t page_numbers = int64_t{s_.page_size} * s_.qk_dim;
    sets_ = static_cast<int>(std::max<int64_t>(1, (int64_t{64} << 20) / (pages * page_numbers * 2)) + 1);
    cache_.resize(static_cast<std::size_t>(pages * sets_ * page_numbers));
    for (uint16_t &x : cache_) x = to_bf16(normal(generator));
    q_.resize(s_.seq_lens.size() * static_cast<std::size_t>(rows_) * static_cast<std::size_t>(s_.qk_dim));
    for (uint16_t &x : q_) x = to_bf16(normal(generator));
    std::vector<int32_t> order(static_cast<std::size_t>(pages * sets_));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), generator);
    auto next = order.begin();
    for (int set = 0; set < sets_; ++set) {
      std::vector<int32_t> table(s_.seq_lens.size() * static_cast<std::size_t>(width_), -1);
      for (std::size_t b = 0; b < s_.seq_lens.size(); ++b) {
        for (int32_t e = 0; e * s_.page_size < s_.seq_lens[b]; ++e)
          table[b * static_cast<std::size_t>(width_) + static_cast<std::size_t>(e)] = *next++;
      }
      tables_.push_back(std::move(table));
    }
    out_.resize(s_.seq_lens.size() * static_cast<std::size_t>(rows_) * static_cast<std::size_t>(s_.v_dim));
    lse_.resize(s_.seq_lens.size() * static_cast<std::size_t>(rows_));
    for (int t = 0; t < threads_; ++t) scratch_.emplace_back(*this);
    // As many requests as threads: a request a thread. Fewer: the threads of the products.
    by_request_ = static_cast<int>(s_.seq_lens.size()) >= threads_;
    set_product_threads(by_request_ ? 1 : threads_);
  }

  // On the next page set.
  void call() {
    set_ = (set_ + 1) % sets_;
    const auto requests = static_cast<int>(s_.seq_lens.size());
    if (by_request_) {
#pragma omp parallel for num_threads(threads_) schedule(dynamic, 1)
      for (int b = 0; b < requests; ++b) attend(b, scratch_[static_cast<std::size_t>(omp_get_thread_num())]);
    } else {
      for (int b = 0; b < requests; ++b) attend(b, scratch_[0]);
    }
  }

  // The largest difference to mlaverify, of outputs and of LSE.
  float difference() {
    std::vector<bf16> out(out_.size());
    std::vector<float> lse(lse_.size());
    const auto rows = static_cast<int64_t>(s_.seq_lens.size()) * s_.qlen;
    const auto batch = static_cast<int64_t>(s_.seq_lens.size());
    const int64_t pages = static_cast<int64_t>(cache_.size()) / s_.page_size / s_.qk_dim;
    mlaverify_verify_args args = make_args();
    args.q = view(reinterpret_cast<const bf16 *>(q_.data()), {rows, s_.num_heads, s_.qk_dim});
    args.kv_cache = view(reinterpret_cast<const bf16 *>(cache_.data()), {pages, s_.page_size, 1, s_.qk_dim});
    args.out = view(out.data(), {rows, s_.num_heads, s_.v_dim});
    args.lse = view(lse.data(), {rows, s_.num_heads});
    args.block_table = view(tables_[static_cast<std::size_t>(set_)].data(), {batch, width_});
    args.seq_lens = view(s_.seq_lens.data(), {batch});
    args.v_head_dim = s_.v_dim;
    args.qlen = s_.qlen;
    args.page_size = s_.page_size;
    args.sm_scale = scale();
    args.num_threads = threads_;
    std::vector<char> workspace(workspace_size(args) + MLAVERIFY_WORKSPACE_ALIGNMENT);
    void *aligned = workspace.data();
    args.workspace_bytes = workspace.size();
    args.workspace = std::align(MLAVERIFY_WORKSPACE_ALIGNMENT, workspace.size() - MLAVERIFY_WORKSPACE_ALIGNMENT, aligned,
                                args.workspace_bytes);
    decode_attention_fwd_verify(args);
    float worst = 0;
    for (std::size_t i = 0; i < out.size(); ++i) worst = std::max(worst, std::fabs(to_float(out[i].bits) - to_float(out_[i])));
    for (std::size_t i = 0; i < lse.size(); ++i) worst = std::max(worst, std::fabs(lse[i] - lse_[i]));
    return worst;
  }

 private:
  static constexpr int kBlock = 128;  // keys

  struct Scratch {
    explicit Scratch(const Composition &c)
        : q(size(c.rows_, c.s_.qk_dim)),
          k(size(kBlock, c.s_.qk_dim)),
          s(size(c.rows_, kBlock)),
          o(size(c.rows_, c.s_.v_dim)),
          max(size(c.rows_, 1)),
          sum(size(c.rows_, 1)) {}
    static std::size_t size(int rows, int columns) {
      return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
    }
    std::vector<float> q, k, s, o, max, sum;
  };

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(s_.qk_dim)); }

  void attend(int request, Scratch &x) {
    const int lk = s_.qk_dim, lv = s_.v_dim, len = s_.seq_lens[static_cast<std::size_t>(request)];
    const uint16_t *q = q_.data() + static_cast<std::ptrdiff_t>(request) * rows_ * lk;
    const int32_t *table = tables_[static_cast<std::size_t>(set_)].data() + static_cast<std::ptrdiff_t>(request) * width_;
    for (int i = 0; i < rows_ * lk; ++i) x.q[static_cast<std::size_t>(i)] = to_float(q[i]);
    std::fill(x.o.begin(), x.o.end(), 0.0f);
    std::fill(x.sum.begin(), x.sum.end(), 0.0f);
    std::fill(x.max.begin(), x.max.end(), std::numeric_limits<float>::lowest());
    for (int first = 0; first < len; first += kBlock) {
      const int keys = std::min(kBlock, len - first);
      for (int j = 0; j < keys; ++j) {
        const int key = first + j;
        const uint16_t *row =
            cache_.data() + (static_cast<std::ptrdiff_t>(table[key / s_.page_size]) * s_.page_size + key % s_.page_size) * lk;
        float *to = x.k.data() + static_cast<std::ptrdiff_t>(j) * lk;
        for (int d = 0; d < lk; ++d) to[d] = to_float(row[d]);
      }
      multiply(true, rows_, keys, lk, scale(), x.q.data(), lk, x.k.data(), lk, 0.0f, x.s.data(), kBlock);
      for (int r = 0; r < rows_; ++r) softmax(r, first, keys, len, x);
      multiply(false, rows_, lv, keys, 1.0f, x.s.data(), kBlock, x.k.data(), lk, 1.0f, x.o.data(), lv);
    }
    for (int r = 0; r < rows_; ++r) {
      const float factor = 1.0f / x.sum[static_cast<std::size_t>(r)];
      uint16_t *to = out_.data() + (static_cast<std::ptrdiff_t>(request) * rows_ + r) * lv;
      const float *o = x.o.data() + static_cast<std::ptrdiff_t>(r) * lv;
      for (int d = 0; d < lv; ++d) to[d] = to_bf16(o[d] * factor);
      lse_[static_cast<std::size_t>(request * rows_ + r)] =
          x.max[static_cast<std::size_t>(r)] + std::log(x.sum[static_cast<std::size_t>(r)]);
    }
  }

  // Scores of row r become weights; what the row has so far follows a new maximum. A block that the row does not see at all weighs nothing.
  void softmax(int r, int first, int keys, int len, Scratch &x) const {
    const int visible = std::clamp(len - s_.qlen + 1 + r / s_.num_heads - first, 0, keys);
    float *s = x.s.data() + static_cast<std::ptrdiff_t>(r) * kBlock,
          *o = x.o.data() + static_cast<std::ptrdiff_t>(r) * s_.v_dim;
    float &max = x.max[static_cast<std::size_t>(r)], &sum = x.sum[static_cast<std::size_t>(r)];
    float now = max;
    for (int j = 0; j < visible; ++j) now = std::max(now, s[j]);
    const float alpha = std::exp(max - now);
    float added = 0;
    for (int j = 0; j < visible; ++j) {
      s[j] = std::exp(s[j] - now);
      added += s[j];
    }
    for (int j = visible; j < keys; ++j) s[j] = 0;
    if (now > max) {
      for (int d = 0; d < s_.v_dim; ++d) o[d] *= alpha;
    }
    sum = sum * alpha + added;
    max = now;
  }

  const Shape s_;
  const int threads_, rows_;
  int64_t width_ = 0;
  int sets_ = 1, set_ = -1;
  bool by_request_ = true;
  std::vector<uint16_t> cache_, q_, out_;
  std::vector<float> lse_;
  std::vector<std::vector<int32_t>> tables_;  // one a page set
  std::vector<Scratch> scratch_;              // one a thread
};

int run(int argc, char **argv) {
  ShapeOptions options;
  int threads = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--threads") {
      threads = std::stoi(argv[i + 1]);
    } else if (name.rfind("--", 0) == 0) {
      options[name.substr(2)] = argv[i + 1];
    }
  }
  const Shape shape = make_shape(options);
  if (shape.q_dtype != DType::bf16 || shape.kv_dtype != DType::bf16) throw Failure(kBadInput, "queries and cache must be bf16");
  Composition composition(shape, threads);
  composition.call();
  const float difference = composition.difference();
  if (!(difference < 0.02f)) throw Failure(kCheckFailed, "differs from mlaverify by " + std::to_string(difference));
  std::printf("%.9g\n", time_calls([&] { composition.call(); }).median);
  return kOk;
}

}  // namespace
}  // namespace mlaverify::cli

int main(int argc, char **argv) try { return mlaverify::cli::run(argc, argv); } catch (const std::exception &e) {
  std::fprintf(stderr, "compose: %s\n", e.what());
  return 1;
}
