// The memory and arguments of one call, made to show every fault:
//   - whatever no row sees is 0xff (NaN in every floating-point type): free pages, page 0, slots past the end, paddings
//   - pages are a random permutation; block table entries past the need are page ids that do not exist
//   - outputs are 0xff before each run, between guard bands; the workspace has exactly the size asked for, with a guard behind
//
// Where the call runs: on the host, or, as MLAVERIFY_TEST_DEVICE in the environment says, on the first CUDA device: "eager",
// "captured" (in a graph captured with lengths of 1, then replayed with the case's), or "invariant" (in the batch-invariant mode).
// Everything is copied there and back, guards included, so that all checks hold there too.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "io/device_memory.h"
#include "io/tensor_buffer.h"
#include "mlaverify/mlaverify.h"
#include "rules/row.h"
#include "support/test_case.h"

namespace mlaverify::test {

class TestCall {
 public:
  explicit TestCall(const TestCase &c);
  TestCall(const TestCall &) = delete;
  TestCall &operator=(const TestCall &) = delete;

  // Of the call; tests change them as they need. Backend cpu, one thread.
  mlaverify_verify_args args = {};

  // Pages of a request, in order.
  const std::vector<int32_t> &pages(int32_t request) const { return pages_[static_cast<std::size_t>(request)]; }

  // First element of a cached key, of a query. (rules::row_number() reads the numbers of a key.)
  void *key(int32_t request, int32_t key);
  void *query(int32_t request, int32_t token, int32_t head);
  // A number of a record is rounded with the scale that its group has.
  void set_key(int32_t request, int32_t key, int32_t dim, float value);
  // Of a record: its numbers change with it.
  void set_group_scale(int32_t request, int32_t key, int32_t group, float scale);
  void set_query(int32_t request, int32_t token, int32_t head, int32_t dim, float value);
  // All numbers of a key, of the queries of all tokens and heads.
  void fill_key(int32_t request, int32_t key, float value);
  void fill_queries(float value);

  // Refills outputs and workspace with 0xff and computes. Returns "", or what went wrong: the library's message, or what was
  // written that is no output.
  [[nodiscard]] std::string run();
  // Compares every `every`-th row of the last run with the oracle, but for columns that `known` has another value of. Returns "", or what
  // differs and how to repeat it.
  struct Column {
    int32_t column;
    double value;
  };
  [[nodiscard]] std::string mismatch(int32_t every = 1, const std::vector<Column> &known = {});
  // Both.
  [[nodiscard]] std::string run_and_compare(int32_t every = 1);

  // Results of the last run.
  float out(int32_t request, int32_t token, int32_t head, int32_t column) const;
  float lse(int32_t request, int32_t token, int32_t head) const;
  // Bits of out and lse of a row, of all rows.
  using Bits = std::vector<unsigned char>;
  Bits row_bits(int32_t request, int32_t token, int32_t head) const;
  Bits bits() const;

  // Sets outputs to 0xff; whether they still are, guards and paddings included.
  void poison_outputs();
  bool outputs_untouched() const;
  int32_t page(std::size_t request, std::size_t entry) const { return pages_[request][entry]; }

 private:
  friend class DeviceCall;

  void make_cache();
  void make_queries();
  void make_outputs();
  std::string run_on_host();
  std::string run_on_device(bool captured);
  std::string stray_writes() const;
  const void *out_row(int32_t request, int32_t token, int32_t head) const;
  const float *lse_of(int32_t request, int32_t token, int32_t head) const;
  int32_t stream(int32_t request) const;

  const TestCase case_;
  bool changed_ = false;  // the case no longer says all
  std::vector<std::vector<int32_t>> pages_;
  io::TensorBuffer q_, kv_, out_, lse_, table_, seq_lens_, real_lens_, k_scale_, workspace_;
};

// A copy of a call on a CUDA device: all of its buffers, and a workspace of exactly the size asked for, with a guard.
class DeviceCall {
 public:
  // `call` must outlive it. Throws std::runtime_error where the library refuses the size query.
  explicit DeviceCall(TestCall *call, int device = 0);
  DeviceCall(const DeviceCall &) = delete;
  DeviceCall &operator=(const DeviceCall &) = delete;

  mlaverify_verify_args args = {};  // with device addresses; backend cuda
  const io::DeviceStream stream;

  void set_lengths(const std::vector<int32_t> &lens);
  void set_k_scale(float value);
  void set_page(int32_t request, int32_t entry, int32_t page);
  void poison_outputs();
  // Waits for the stream, and brings out and lse back into the call's buffers. Returns "" or "wrote past the end ...".
  [[nodiscard]] std::string fetch();

 private:
  enum Place { kOut, kLse, kSeqLens, kQ, kKv, kTable, kRealLens, kScale, kPlaces };

  TestCall *call_;
  std::array<io::DeviceMemory, kPlaces> copies_;
  io::DeviceMemory workspace_;
};

// Runs `c` on the cpu backend and compares all rows with the oracle: "" or what is wrong.
[[nodiscard]] std::string check(const TestCase &c);

}  // namespace mlaverify::test
