// Serves a trace, one attention layer per step: the tensors around the Scheduler. Prompts enter with their latents in place;
// each step writes the latents of the new tokens, makes one call for the whole batch, compares a sample of its rows with the
// oracle, and rolls rejected tokens back. Nothing is printed.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "io/tensor_buffer.h"
#include "mlaverify/mlaverify.h"
#include "random_rows.h"
#include "scheduler.h"
#include "work.h"

namespace mlaverify::cli {

struct ServeOptions {
  Shape shape;  // qlen, page size, heads, widths and types; its lengths are not used
  int32_t max_batch = 64;
  int32_t pool_pages = 1;
  double accept_rate = 0.7;
  double speed_up = 1;
  uint64_t seed = 1;
  int32_t check_rows = 2;  // rows of each step that are compared with the oracle
  mlaverify_backend backend = MLAVERIFY_BACKEND_AUTO;
  int32_t num_threads = 0;  // 0: the default of the library
};

struct Mismatch {
  int64_t step;  // from 1
  int64_t line;  // of the request
  int32_t token;
  int32_t head;
  std::string why;
};

struct StepReport {
  double ms = 0;  // of the attention call
  int64_t live_requests = 0;
  int64_t pages_in_use = 0;
  int64_t pages_reserved = 0;
  int64_t tokens_verified = 0;
  int64_t tokens_accepted = 0;
  Work work;
  int64_t rows_checked = 0;
  double worst_error = 0;  // of the rows checked, as a share of the tolerance
  std::vector<Mismatch> mismatches;
};

class Server {
 public:
  using Attention = mlaverify_status (*)(const mlaverify_verify_args *);

  // `trace` in order of arrival. `attention` is the call that is served; tests put others in its place. Throws Failure for
  // arguments that the library refuses (exit code 2) and for a backend that cannot run (3), std::bad_alloc without memory.
  Server(const ServeOptions &options, const std::vector<TraceRequest> &trace,
         Attention attention = &mlaverify_decode_attention_fwd_verify);

  // One step. False, with the report untouched, when every request has been served. Throws Failure as above.
  bool step(StepReport &report);

  const Scheduler &scheduler() const { return scheduler_; }

 private:
  void allocate_workspace(int64_t max_batch);
  void write_new_tokens();
  void write_queries();
  void write_tables();
  void poison_dead_slots(const std::vector<int32_t> &freed_pages);
  void check(const mlaverify_verify_args &args, StepReport &report) const;
  mlaverify_verify_args args_for(int64_t batch) const;
  unsigned char *slot(const LiveRequest &request, int64_t token);

  ServeOptions options_;
  Attention attention_;
  Scheduler scheduler_;
  int64_t steps_ = 0;
  RandomRows random_queries_, random_latents_;
  // For the largest batch; a smaller one uses the first rows. The table is as wide as the largest request needs.
  io::TensorBuffer q_, kv_cache_, out_, lse_, block_table_, seq_lens_;
  struct Free {
    void operator()(void *p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> workspace_;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace mlaverify::cli
