#include "serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <new>

#include "api/validate.h"
#include "backend_option.h"
#include "error.h"
#include "oracle/oracle.h"
#include "oracle/tolerance.h"
#include "rules/paging.h"
#include "rules/row.h"

namespace mlaverify::cli {
namespace {

// Which random stream is for what.
enum Stream : uint64_t { kQueryBlock, kLatentBlock, kQueries, kLatents, kSample };

uint64_t seed_of(uint64_t seed, Stream what, int64_t a = 0, int64_t b = 0) {
  return stream_seed(stream_seed(stream_seed(seed, what), static_cast<uint64_t>(a)), static_cast<uint64_t>(b));
}

SchedulerOptions scheduling(const ServeOptions &o) {
  return {o.shape.qlen, o.max_batch, o.shape.page_size, o.pool_pages, o.accept_rate, o.speed_up, o.seed};
}

}  // namespace

Server::Server(const ServeOptions &options, const std::vector<TraceRequest> &trace, Attention attention)
    : options_(options),
      attention_(attention),
      scheduler_(scheduling(options), trace),
      random_queries_(options.shape.q_dtype, options.shape.qk_dim, seed_of(options.seed, kQueryBlock)),
      random_latents_(options.shape.kv_dtype, options.shape.qk_dim, seed_of(options.seed, kLatentBlock)) {
  if (scheduler_.max_pages() == 0) {
    const std::vector<Refusal> &refused = scheduler_.refused();
    throw Failure(kBadInput, refused.empty()
                                 ? "the trace has nothing to verify: no request has output tokens"
                                 : fmt::format("the trace has nothing to serve: {} of {} requests can never fit; the "
                                               "request of line {} {}",
                                               refused.size(), trace.size(), refused[0].request.line, refused[0].why));
  }
  const Shape &shape = options_.shape;
  const int64_t max_batch = std::min<int64_t>(options_.max_batch, static_cast<int64_t>(trace.size()));
  const int64_t rows = max_batch * shape.qlen;
  q_ = io::TensorBuffer(shape.q_dtype, {rows, shape.num_heads, shape.qk_dim});
  const int64_t row = rules::row_elements(shape.kv_dtype, shape.qk_dim);
  kv_cache_ = io::TensorBuffer(shape.kv_dtype, {options_.pool_pages, shape.page_size, 1, row});
  out_ = io::TensorBuffer(shape.q_dtype, {rows, shape.num_heads, shape.v_dim});
  lse_ = io::TensorBuffer(DType::f32, {rows, shape.num_heads});
  block_table_ = io::TensorBuffer(DType::i32, {max_batch, scheduler_.max_pages()});
  seq_lens_ = io::TensorBuffer(DType::i32, {max_batch});

  allocate_workspace(max_batch);
  poison(kv_cache_.data(), kv_cache_.bytes());
  const mlaverify_verify_args args = args_for(max_batch);
  demand_ok(mlaverify_warmup_decode_attention_fwd_verify(&args, &shape.qlen, 1), "");
}

// The largest that any batch up to `max_batch` asks for.
void Server::allocate_workspace(int64_t max_batch) {
  for (int64_t batch = 1; batch <= max_batch; ++batch) {
    const mlaverify_verify_args args = args_for(batch);
    std::size_t bytes = 0;
    demand_ok(mlaverify_workspace_size(&args, &bytes), "");
    workspace_bytes_ = std::max(workspace_bytes_, bytes);
  }
  constexpr std::size_t alignment = MLAVERIFY_WORKSPACE_ALIGNMENT;
  workspace_.reset(std::aligned_alloc(alignment, rules::round_up(workspace_bytes_ + 1, alignment)));
  if (!workspace_) throw std::bad_alloc();
}

mlaverify_verify_args Server::args_for(int64_t batch) const {
  mlaverify_verify_args args = {};
  args.size = sizeof args;
  args.q = q_.view();
  args.kv_cache = kv_cache_.view();
  args.out = out_.view();
  args.lse = lse_.view();
  args.block_table = block_table_.view();
  args.seq_lens = seq_lens_.view();
  for (mlaverify_tensor *t : {&args.q, &args.out, &args.lse}) t->shape[0] = batch * options_.shape.qlen;
  for (mlaverify_tensor *t : {&args.block_table, &args.seq_lens}) t->shape[0] = batch;
  args.v_head_dim = options_.shape.v_dim;
  args.qlen = options_.shape.qlen;
  args.page_size = options_.shape.page_size;
  args.sm_scale = 1 / std::sqrt(static_cast<float>(options_.shape.qk_dim));  // scores of variance 1
  args.workspace = workspace_.get();
  args.workspace_bytes = workspace_bytes_;
  args.backend = options_.backend;
  args.num_threads = options_.num_threads;
  return args;
}

unsigned char *Server::slot(const LiveRequest &request, int64_t token) {
  const rules::Slot slot = rules::slot_of(token, options_.shape.page_size);
  const int64_t page = request.pages[static_cast<std::size_t>(slot.entry)];
  const auto index = static_cast<std::size_t>(page * options_.shape.page_size + slot.offset);
  return kv_cache_.data<unsigned char>() + index * random_latents_.row_bytes();
}

void Server::write_new_tokens() {
  for (const LiveRequest &request : scheduler_.live()) {
    Random random(seed_of(options_.seed, kLatents, request.trace.line, request.steps));
    const int64_t end = static_cast<int64_t>(request.length) + options_.shape.qlen;
    for (int64_t token = request.written; token < end; ++token) random_latents_.copy(random, slot(request, token));
  }
}

void Server::write_queries() {
  auto *row = q_.data<unsigned char>();
  for (const LiveRequest &request : scheduler_.live()) {
    Random random(seed_of(options_.seed, kQueries, request.trace.line, request.steps));
    for (int64_t i = 0; i < static_cast<int64_t>(options_.shape.qlen) * options_.shape.num_heads; ++i) {
      random_queries_.copy(random, row);
      row += random_queries_.row_bytes();
    }
  }
}

void Server::write_tables() {
  // Entries past a request's pages are no page of any pool, so that following one is an error.
  std::fill_n(block_table_.data<int32_t>(), block_table_.size(), std::numeric_limits<int32_t>::min());
  auto *table_row = block_table_.data<int32_t>();
  auto *seq_len = seq_lens_.data<int32_t>();
  for (const LiveRequest &request : scheduler_.live()) {
    std::copy(request.pages.begin(), request.pages.end(), table_row);
    table_row += scheduler_.max_pages();
    *seq_len++ = request.length + options_.shape.qlen;
  }
}

void Server::poison_dead_slots(const std::vector<int32_t> &freed_pages) {
  const std::size_t page_bytes = static_cast<std::size_t>(options_.shape.page_size) * random_latents_.row_bytes();
  for (int32_t page : freed_pages) {
    poison(kv_cache_.data<unsigned char>() + static_cast<std::size_t>(page) * page_bytes, page_bytes);
  }
  for (const LiveRequest &request : scheduler_.live()) {
    const int64_t held = static_cast<int64_t>(request.pages.size()) * options_.shape.page_size;
    if (held == request.length) continue;
    poison(slot(request, request.length), static_cast<std::size_t>(held - request.length) * random_latents_.row_bytes());
  }
}

void Server::check(const mlaverify_verify_args &args, StepReport &report) const {
  Call call;
  const Status status = validate(&args, true, &call);
  if (!status.ok()) throw std::logic_error(status.message);  // the call has just been accepted
  const Problem &problem = call.problem;
  Oracle oracle(problem);
  std::vector<double> want(static_cast<std::size_t>(problem.v_dim));
  const Tolerance tolerance = tolerance_for(problem.q_dtype);
  Random random(seed_of(options_.seed, kSample, steps_));
  for (int32_t i = 0; i < options_.check_rows; ++i) {
    const auto request = static_cast<int32_t>(random.below(static_cast<uint64_t>(problem.batch)));
    const auto token = static_cast<int32_t>(random.below(static_cast<uint64_t>(problem.qlen)));
    const auto head = static_cast<int32_t>(random.below(static_cast<uint64_t>(problem.num_heads)));
    const double want_lse = oracle.row(request, token, head, want.data());
    const int64_t row = (static_cast<int64_t>(request) * problem.qlen + token) * problem.num_heads + head;
    const void *got =
        out_.data<unsigned char>() + row * problem.v_dim * static_cast<int64_t>(rules::dtype_bytes(problem.q_dtype));
    RowError error = compare_row(problem.q_dtype, problem.v_dim, got, lse_.data<float>()[row], want.data(), want_lse);
    // Live latents are finite. If the oracle met poison, then a page has two owners, and the call may well agree with it.
    if (!std::isfinite(want_lse) || !std::all_of(want.begin(), want.end(), [](double x) { return std::isfinite(x); })) {
      error.ok = false;
      error.why = "the request's cache was overwritten: the oracle's own result is not finite";
    }
    ++report.rows_checked;
    report.worst_error = std::max({report.worst_error, error.out / tolerance.out, error.lse / tolerance.lse});
    if (!error.ok) {
      const int64_t line = scheduler_.live()[static_cast<std::size_t>(request)].trace.line;
      report.mismatches.push_back({steps_, line, token, head, error.why});
    }
  }
}

bool Server::step(StepReport &report) {
  if (!scheduler_.begin_step()) return false;
  ++steps_;
  report = StepReport();
  report.live_requests = static_cast<int64_t>(scheduler_.live().size());
  report.pages_in_use = scheduler_.pool().in_use();
  report.pages_reserved = scheduler_.reserved_pages();
  report.tokens_verified = report.live_requests * options_.shape.qlen;

  write_new_tokens();
  write_queries();
  write_tables();
  poison(out_.data(), out_.bytes());
  poison(lse_.data(), lse_.bytes());

  Shape shape = options_.shape;
  shape.seq_lens.assign(seq_lens_.data<int32_t>(), seq_lens_.data<int32_t>() + report.live_requests);
  report.work = work_of(shape);

  const mlaverify_verify_args args = args_for(report.live_requests);
  const auto start = std::chrono::steady_clock::now();
  const mlaverify_status status = attention_(&args);
  report.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  demand_ok(status, "");

  check(args, report);
  const Scheduler::Outcome outcome = scheduler_.finish_step(report.ms);
  report.tokens_accepted = outcome.accepted;
  poison_dead_slots(outcome.freed_pages);
  return true;
}

}  // namespace mlaverify::cli
