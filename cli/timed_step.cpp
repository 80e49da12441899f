#include "timed_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "backend_option.h"
#include "backends/tuning.h"
#include "error.h"
#include "gpu.h"
#include "grid.h"
#include "machine.h"
#include "random.h"
#include "random_rows.h"
#include "rules/row.h"

namespace mlaverify::cli {

namespace {

// How the cache is laid out. Sizes in double: those of a shape that cannot be allocated need not fit an integer.
struct Layout {
  double sets;
  double pages;  // of the cache, spare ones included
  double page_bytes;
  double table_width;
};

double pages_of(const Shape &shape, int32_t seq_len) { return std::ceil(static_cast<double>(seq_len) / shape.page_size); }

Layout layout_of(const Shape &shape, int64_t rotation_bytes) {
  Layout l{};
  double set_pages = 0;
  for (const int32_t len : shape.seq_lens) {
    set_pages += pages_of(shape, len);
    l.table_width = std::max(l.table_width, pages_of(shape, len));
  }
  l.page_bytes = static_cast<double>(shape.page_size) * static_cast<double>(rules::row_bytes(shape.kv_dtype, shape.qk_dim));
  l.sets = std::ceil(static_cast<double>(rotation_bytes) / (set_pages * l.page_bytes));
  l.pages = l.sets * set_pages;
  l.pages += std::ceil(l.pages / 16);
  return l;
}

double rows_of(const Shape &shape) { return static_cast<double>(shape.seq_lens.size()) * shape.qlen; }

constexpr double kReplayWarmUpSeconds = 0.02;

}  // namespace

int64_t rotation_bytes(mlaverify_backend backend) {
  return on_gpu(backend) ? int64_t{256} << 20 : std::max(int64_t{64} << 20, 2 * last_level_cache_bytes());
}

void demand_memory(const std::vector<Shape> &shapes, mlaverify_backend backend) {
  const auto available = static_cast<double>(available_memory_bytes());
  for (const Shape &s : shapes) {
    const double needed = TimedStep::bytes_needed(s, rotation_bytes(backend));
    if (available > 0 && needed > available) {
      throw Failure(kBadInput, fmt::format("{}: takes {:.3g} GB of memory, should be at most the {:.3g} GB available",
                                           shape_line(s), needed / 1e9, available / 1e9));
    }
  }
}

double TimedStep::bytes_needed(const Shape &shape, int64_t rotation_bytes) {
  const Layout l = layout_of(shape, rotation_bytes);
  const double row_bytes = static_cast<double>(shape.qk_dim + shape.v_dim) * rules::dtype_bytes(shape.q_dtype) + sizeof(float);
  const double table_bytes = static_cast<double>(shape.seq_lens.size()) * l.table_width * sizeof(int32_t);
  return l.pages * (l.page_bytes + sizeof(int32_t)) + rows_of(shape) * shape.num_heads * row_bytes + l.sets * table_bytes;
}

TimedStep::TimedStep(const Shape &shape, int64_t rotation_bytes, const CallOptions &options) : shape_(shape_line(shape)) {
  const Layout layout = layout_of(shape, rotation_bytes);
  const auto batch = static_cast<int64_t>(shape.seq_lens.size());
  const auto rows = static_cast<int64_t>(rows_of(shape));
  const auto num_pages = static_cast<int64_t>(layout.pages);
  if (num_pages > INT32_MAX) {
    throw Failure(kBadInput, shape_ + ": the cache would have more pages than a block table can number");
  }
  Random random(1);
  q_ = io::TensorBuffer(shape.q_dtype, {rows, shape.num_heads, shape.qk_dim});
  kv_ = io::TensorBuffer(shape.kv_dtype, {num_pages, shape.page_size, 1, rules::row_elements(shape.kv_dtype, shape.qk_dim)});
  out_ = io::TensorBuffer(shape.q_dtype, {rows, shape.num_heads, shape.v_dim});
  lse_ = io::TensorBuffer(DType::f32, {rows, shape.num_heads});
  seq_lens_ = io::TensorBuffer(DType::i32, {batch});
  std::copy(shape.seq_lens.begin(), shape.seq_lens.end(), seq_lens_.data<int32_t>());
  fill_normal(random, shape.q_dtype, q_.data(), q_.size(), 1);
  poison(kv_.data(), kv_.bytes());

  std::vector<int32_t> page_ids(static_cast<std::size_t>(num_pages));
  std::iota(page_ids.begin(), page_ids.end(), 0);
  for (std::size_t i = page_ids.size(); i > 1; --i) std::swap(page_ids[i - 1], page_ids[random.below(i)]);

  const auto width = static_cast<int64_t>(layout.table_width);
  const RandomRows latents(shape.kv_dtype, shape.qk_dim, 2);
  const auto slot_bytes = static_cast<int64_t>(latents.row_bytes());
  auto page = page_ids.begin();
  for (auto set = static_cast<int64_t>(layout.sets); set > 0; --set) {
    io::TensorBuffer table(DType::i32, {batch, width});
    std::fill_n(table.data<int32_t>(), table.size(), -1);
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t len = shape.seq_lens[static_cast<std::size_t>(b)];
      for (int64_t first = 0; first < len; first += shape.page_size, ++page) {
        table.data<int32_t>()[b * width + first / shape.page_size] = *page;
        const int64_t slots = std::min<int64_t>(shape.page_size, len - first);
        char *slot = kv_.data<char>() + int64_t{*page} * shape.page_size * slot_bytes;
        for (int64_t i = 0; i < slots; ++i) latents.copy(random, slot + i * slot_bytes);
      }
    }
    tables_.push_back(std::move(table));
  }

  args_.size = sizeof args_;
  args_.q = q_.view();
  args_.kv_cache = kv_.view();
  args_.out = out_.view();
  args_.lse = lse_.view();
  args_.block_table = tables_[0].view();
  args_.seq_lens = seq_lens_.view();
  args_.v_head_dim = shape.v_dim;
  args_.qlen = shape.qlen;
  args_.page_size = shape.page_size;
  args_.num_kv_splits = options.num_kv_splits;
  args_.sm_scale = 1 / std::sqrt(static_cast<float>(shape.qk_dim));
  args_.backend = options.backend;
  args_.num_threads = options.num_threads;
  poison(out_.data(), out_.bytes());
  poison(lse_.data(), lse_.bytes());
  for (io::TensorBuffer &table : tables_) table_data_.push_back(table.data());
  if (on_gpu(options.backend)) move_to_device();
  set_flags(options.flags);
}

void TimedStep::move_to_device() {
  stream_ = std::make_unique<io::DeviceStream>(kGpu);
  args_.stream = stream_->handle();
  const auto move = [&](io::TensorBuffer &buffer, mlaverify_tensor *view) {
    device_inputs_.push_back(io::to_device(buffer, view, kGpu));
    buffer = {};
  };
  move(q_, &args_.q);
  move(kv_, &args_.kv_cache);
  move(seq_lens_, &args_.seq_lens);
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    args_.block_table = tables_[i].view();
    move(tables_[i], &args_.block_table);
    table_data_[i] = args_.block_table.data;
  }
  for (mlaverify_tensor *absent : {&args_.real_seq_lens, &args_.k_scale, &args_.q_indptr}) absent->device = kGpu;
  device_out_ = io::to_device(out_, &args_.out, kGpu);
  device_lse_ = io::to_device(lse_, &args_.lse, kGpu);
}

void TimedStep::set_flags(uint32_t flags) {
  args_.flags = flags;
  demand_ok(mlaverify_workspace_size(&args_, &args_.workspace_bytes), shape_);
  if (args_.workspace_bytes == 0) return;
  if (stream_) {
    device_workspace_ = io::DeviceMemory(args_.workspace_bytes, stream_->device());
    args_.workspace = device_workspace_.data();
    return;
  }
  const std::size_t alignment = MLAVERIFY_WORKSPACE_ALIGNMENT;
  workspace_.reset(std::aligned_alloc(alignment, rules::round_up(args_.workspace_bytes, alignment)));
  if (!workspace_) throw std::bad_alloc();
  args_.workspace = workspace_.get();
}

void TimedStep::call() {
  args_.block_table.data = table_data_[next_];
  next_ = (next_ + 1) % table_data_.size();
  if (row_ != nullptr) {
    demand_ok(run_with_row(validated(), *row_), shape_);
  } else {
    demand_ok(mlaverify_decode_attention_fwd_verify(&args_), shape_);
  }
}

Timing TimedStep::time() {
  if (!stream_) return time_calls([this] { call(); });
  return time_replays({capture_milliseconds()}, kReplayWarmUpSeconds, 7)[0];
}

Timing TimedStep::time_sustained() {
  if (!stream_) return time_calls([this] { call(); }, kSustainedSeconds);
  const Replay replay = capture_milliseconds();
  const double seconds = seconds_of_replay(replay);
  // All are submitted at once, so that the device never waits for the host.
  for (double submitted = 0; submitted < kSustainedSeconds; submitted += seconds) replay.graph->replay();
  return time_replays({replay}, 0, 31)[0];
}

Timing TimedStep::time_on_host() {
  // Few calls at a time: where the queue of launches is full, a launch waits for the device.
  constexpr std::size_t at_a_time = 20, times = 15;
  warm_up();
  for (std::size_t i = 0; i < at_a_time; ++i) call();
  stream_->synchronize();
  std::vector<double> seconds;
  seconds.reserve(times * at_a_time);
  while (seconds.size() < times * at_a_time) {
    for (std::size_t i = 0; i < at_a_time; ++i) seconds.push_back(seconds_of([this] { call(); }));
    stream_->synchronize();
  }
  return summarize(std::move(seconds));
}

TimedStep::Replay TimedStep::capture(std::size_t rounds) {
  const std::size_t calls = rounds * table_data_.size();
  next_ = 0;
  auto graph = std::make_shared<const io::DeviceGraph>(*stream_, [this, calls] {
    for (std::size_t i = 0; i < calls; ++i) call();
  });
  return {std::move(graph), static_cast<double>(calls)};
}

TimedStep::Replay TimedStep::capture_milliseconds() {
  constexpr double replay_seconds = 0.0042;  // a little more than 4 ms: the estimate is one
  call();                                    // loads the kernels, which must not happen during capture
  stream_->synchronize();
  double round_seconds = 0;
  {
    const Replay round = capture(1);
    seconds_of_replay(round);
    round_seconds = seconds_of_replay(round);
  }
  return capture(static_cast<std::size_t>(std::ceil(replay_seconds / round_seconds)));
}

double TimedStep::seconds_of_replay(const Replay &replay) const {
  replay.graph->replay();  // keeps the device busy while the host submits the other one
  return stream_->seconds_of([&] { replay.graph->replay(); });
}

std::vector<Timing> TimedStep::time_replays(const std::vector<Replay> &replays, double warm_up_seconds, int times) const {
  for (double warm = 0; warm < warm_up_seconds;) {
    for (const Replay &r : replays) warm += seconds_of_replay(r);
  }
  std::vector<std::vector<double>> seconds(replays.size());
  for (int turn = 0; turn < times; ++turn) {
    for (std::size_t i = 0; i < replays.size(); ++i) {
      seconds[i].push_back(seconds_of_replay(replays[i]) / replays[i].calls);
    }
  }
  std::vector<Timing> timings;
  timings.reserve(replays.size());
  for (std::vector<double> &s : seconds) timings.push_back(summarize(std::move(s)));
  return timings;
}

void TimedStep::warm_up() { demand_ok(mlaverify_warmup_decode_attention_fwd_verify(&args_, &args_.qlen, 1), shape_); }

TimedStep::CapturedCall TimedStep::capture_call() {
  CapturedCall captured;
  captured.seconds = seconds_of([&] {
    const io::DeviceGraph graph(*stream_, [this] { call(); });
    graph.replay();
    stream_->synchronize();
    captured.kernel_nodes = graph.kernel_nodes();
    captured.other_nodes = graph.other_nodes();
  });
  return captured;
}

Call TimedStep::validated() const {
  Call call = {};
  demand_ok(validate(&args_, true, &call), shape_);
  return call;
}

rules::GpuRow TimedStep::deciding_row(Row row) {
  RowFacts facts = {};
  demand_ok(row_facts(validated(), row, &facts), shape_);
  return facts.row;
}

void TimedStep::use(Row row) {
  RowFacts facts = {};
  demand_ok(row_facts(validated(), row, &facts), shape_);
  row_ = row;
  if (facts.workspace_bytes <= args_.workspace_bytes) return;
  stream_->synchronize();
  args_.workspace_bytes = facts.workspace_bytes;
  device_workspace_ = io::DeviceMemory(args_.workspace_bytes, stream_->device());
  args_.workspace = device_workspace_.data();
}

void TimedStep::compute(Row row) {
  use(row);
  device_out_.poison();
  device_lse_.poison();
  next_ = 0;
  call();
  stream_->synchronize();
  download_outputs();
}

std::vector<Timing> TimedStep::time_in_turn(const std::vector<Row> &rows) {
  for (const Row row : rows) use(row);  // all graphs work in the largest workspace
  std::vector<Replay> replays;
  for (const Row row : rows) {
    use(row);
    replays.push_back(capture_milliseconds());
  }
  return time_replays(replays, kReplayWarmUpSeconds, 9);
}

void TimedStep::download_outputs() {
  device_out_.download(out_.data(), out_.bytes());
  device_lse_.download(lse_.data(), lse_.bytes());
}

void TimedStep::demand_numbers() {
  if (stream_) download_outputs();
  const auto no_nan = [](const io::TensorBuffer &t) {
    for (int64_t i = 0; i < t.size(); ++i) {
      if (std::isnan(rules::load_float(t.dtype(), t.data(), i))) return false;
    }
    return true;
  };
  if (no_nan(out_) && no_nan(lse_)) return;
  throw Failure(kCheckFailed, shape_ + ": the output has NaN in it, should be numbers only");
}

}  // namespace mlaverify::cli
