#include "compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "oracle/oracle.h"
#include "oracle/tolerance.h"
#include "progress.h"
#include "rules/number.h"
#include "rules/pack.h"

namespace mlaverify::cli {
namespace {

// The worst rows seen by one thread for one call.
struct Worst {
  double out = 0, lse = 0;
  int64_t bad_row = -1;
  std::string why;

  void add(const RowError &e, int64_t row, const std::string &against) {
    out = std::max(out, e.out);
    lse = std::max(lse, e.lse);
    if (e.ok || (bad_row >= 0 && bad_row <= row)) return;
    bad_row = row;
    why = e.why + against;
  }
  void add(const Worst &other) {
    out = std::max(out, other.out);
    lse = std::max(lse, other.lse);
    if (other.bad_row < 0 || (bad_row >= 0 && bad_row <= other.bad_row)) return;
    bad_row = other.bad_row;
    why = other.why;
  }
};

class Comparison {
 public:
  Comparison(const Problem &problem, const io::Step &step, const std::vector<std::unique_ptr<StepCall>> &calls)
      : problem_(problem), step_(step), calls_(calls), rows_(problem.batch * rules::request_rows(problem, 0)) {}

  int64_t rows() const { return rows_; }

  // Takes rows until none is left. Several threads may do so at once; one of them with a progress bar.
  void work(std::vector<Worst> &worst, Progress *progress, const std::string &name) {
    Oracle oracle(problem_);
    std::vector<double> want(static_cast<std::size_t>(problem_.v_dim));
    for (int64_t i = next_++; i < rows_; i = next_++) {
      const auto request = static_cast<int32_t>(i / rules::request_rows(problem_, 0));
      const rules::Row row = rules::unpack_row(i % rules::request_rows(problem_, 0), problem_.num_heads);
      const double want_lse = oracle.row(request, row.token, row.head, want.data());
      // Outputs here are contiguous and rows of a request token-major: row i is the i-th of out and lse.
      for (std::size_t c = 0; c < calls_.size(); ++c) {
        worst[c].add(compare(*calls_[c], i, want.data(), want_lse), i, "");
      }
      if (step_.o || step_.lse) compare_expected(i, want, worst);
      if (progress != nullptr) progress->show(static_cast<double>(i) / static_cast<double>(rows_), name);
    }
  }

 private:
  RowError compare(const StepCall &call, int64_t row, const double *want, double want_lse) const {
    const int64_t row_bytes = int64_t{problem_.v_dim} * rules::dtype_bytes(problem_.q_dtype);
    const char *out = static_cast<const char *>(call.out()) + row * row_bytes;
    return compare_row(problem_.q_dtype, problem_.v_dim, out, call.lse()[row], want, want_lse);
  }

  // `scratch`: room for a row.
  void compare_expected(int64_t row, std::vector<double> &scratch, std::vector<Worst> &worst) const {
    for (std::size_t c = 0; c < calls_.size(); ++c) {
      // What the file leaves out is compared with itself.
      const io::TensorBuffer &o = step_.o;
      for (int32_t d = 0; d < problem_.v_dim; ++d) {
        const int64_t at = row * problem_.v_dim + d;
        scratch[static_cast<std::size_t>(d)] = static_cast<double>(
            o ? rules::load_float(o.dtype(), o.data(), at) : rules::load_float(problem_.q_dtype, calls_[c]->out(), at));
      }
      const float lse = step_.lse ? step_.lse.data<float>()[row] : calls_[c]->lse()[row];
      worst[c].add(compare(*calls_[c], row, scratch.data(), static_cast<double>(lse)), row,
                   " (by the file's expected results)");
    }
  }

  const Problem &problem_;
  const io::Step &step_;
  const std::vector<std::unique_ptr<StepCall>> &calls_;
  const int64_t rows_;
  std::atomic<int64_t> next_{0};
};

std::string row_name(const Problem &p, int64_t row) {
  const rules::Row r = rules::unpack_row(row % rules::request_rows(p, 0), p.num_heads);
  return fmt::format("request {} token {} head {}", row / rules::request_rows(p, 0), r.token, r.head);
}

}  // namespace

std::vector<StepError> compare_step(const io::Step &step, const std::string &name,
                                    const std::vector<std::unique_ptr<StepCall>> &calls) {
  std::vector<StepError> errors(calls.size());
  if (calls.empty()) return errors;
  const Problem problem = calls[0]->host_problem();
  Comparison comparison(problem, step, calls);
  const auto most = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const auto num_threads = static_cast<std::size_t>(std::clamp<int64_t>(comparison.rows(), 1, most));
  std::vector<std::vector<Worst>> worst(num_threads, std::vector<Worst>(calls.size()));
  std::vector<std::thread> threads;
  for (std::size_t t = 1; t < num_threads; ++t) threads.emplace_back([&, t] { comparison.work(worst[t], nullptr, name); });
  Progress progress;
  comparison.work(worst[0], &progress, name);
  for (std::thread &t : threads) t.join();

  for (std::size_t c = 0; c < calls.size(); ++c) {
    Worst all;
    for (const std::vector<Worst> &w : worst) all.add(w[c]);
    errors[c] = {all.out, all.lse, all.why.empty() ? "" : row_name(problem, all.bad_row) + ": " + all.why};
    if (!calls[c]->guards_intact()) errors[c].why = "wrote outside of out or lse";
  }
  return errors;
}

}  // namespace mlaverify::cli
