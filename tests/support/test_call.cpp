#include "support/test_call.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "api/validate.h"
#include "oracle/oracle.h"
#include "oracle/tolerance.h"
#include "random.h"
#include "rules/row.h"

namespace mlaverify::test {
namespace {

constexpr int64_t kGuardBytes = 256;

// A flat buffer for `elements` elements behind `shift` others, with guards on both sides; `view` is pointed at the first
// element.
io::TensorBuffer poisoned(DType dtype, int64_t elements, int32_t shift, mlaverify_tensor &view) {
  const int64_t guard = kGuardBytes / rules::dtype_bytes(dtype);
  io::TensorBuffer buffer(dtype, {elements + shift + 2 * guard});
  cli::poison(buffer.data(), buffer.bytes());
  view.dtype = static_cast<mlaverify_dtype>(dtype);
  view.device = MLAVERIFY_HOST;
  view.data = buffer.data<char>() + (guard + shift) * rules::dtype_bytes(dtype);
  return buffer;
}

void set_shape(mlaverify_tensor &t, std::initializer_list<int64_t> shape, std::initializer_list<int64_t> strides) {
  t.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape);
  std::copy(strides.begin(), strides.end(), t.strides);
}

char *element(const mlaverify_tensor &t, int64_t i) {
  return static_cast<char *>(t.data) + i * rules::dtype_bytes(static_cast<DType>(t.dtype));
}

// The random numbers of one row: they depend on what the row is, not on where it lies or what lies around it.
cli::Random random_row(uint64_t seed, int64_t kind, int64_t stream, int64_t position, int64_t head) {
  uint64_t state = seed;
  for (const int64_t part : {kind, stream, position, head}) state = cli::Random(state + static_cast<uint64_t>(part)).next();
  return cli::Random(state);
}

int32_t live_keys(const TestCase &c, int32_t request) {
  const auto b = static_cast<std::size_t>(request);
  return std::max(c.real_lens.empty() ? c.lens[b] : std::min(c.lens[b], c.real_lens[b]), 0);
}

io::TensorBuffer ints(const std::vector<int32_t> &values) {
  io::TensorBuffer t(DType::i32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), t.data<int32_t>());
  return t;
}

bool all_poison(const unsigned char *p, std::size_t n) {
  return std::all_of(p, p + n, [](unsigned char x) { return x == 0xff; });
}

std::string environment(const char *name) {
  const char *value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

TestCall::TestCall(const TestCase &c) : case_(c) {
  args.size = sizeof(args);
  args.v_head_dim = c.lv;
  args.qlen = c.qlen;
  args.page_size = c.page_size;
  args.num_kv_splits = c.num_kv_splits;
  args.sm_scale = c.sm_scale;
  args.backend = MLAVERIFY_BACKEND_CPU;
  args.num_threads = 1;
  seq_lens_ = ints(c.lens);
  args.seq_lens = seq_lens_.view();
  if (!c.real_lens.empty()) real_lens_ = ints(c.real_lens);
  args.real_seq_lens = real_lens_.view();
  if (c.k_scale) {
    k_scale_ = io::TensorBuffer(DType::f32, {});
    *k_scale_.data<float>() = *c.k_scale;
  }
  args.k_scale = k_scale_.view();
  args.q_indptr = io::TensorBuffer().view();
  make_cache();
  make_queries();
  make_outputs();
}

void TestCall::make_cache() {
  const TestCase &c = case_;
  // Page 0 belongs to nobody.
  int32_t total = 1 + c.spare_pages, longest = 0;
  for (int32_t b = 0; b < c.batch(); ++b) {
    const int32_t n = rules::ceil_div(live_keys(c, b), c.page_size);
    total += n;
    longest = std::max(longest, n);
  }
  std::vector<int32_t> order(static_cast<std::size_t>(total - 1));
  std::iota(order.begin(), order.end(), 1);
  cli::Random shuffle(c.seed ^ 0x5eed);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[shuffle.below(i)]);

  const int64_t row = rules::row_elements(c.kv_dtype, c.lk), slot = row + c.slot_pad;
  const int64_t page = slot * c.page_size + (c.flat ? 0 : c.page_pad);
  kv_ = poisoned(c.kv_dtype, total * page, c.shift, args.kv_cache);
  if (c.flat) {
    set_shape(args.kv_cache, {int64_t{total} * c.page_size, 1, row}, {slot, row, 1});
  } else {
    set_shape(args.kv_cache, {total, c.page_size, 1, row}, {page, slot, row, 1});
  }

  const int32_t width = longest + c.table_extra, table_row = width + c.table_pad;
  table_ = io::TensorBuffer(DType::i32, {c.batch(), table_row});
  constexpr int32_t garbage[] = {-1, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()};
  for (int64_t i = 0; i < table_.size(); ++i) table_.data<int32_t>()[i] = i % 4 == 3 ? total : garbage[i % 4];
  args.block_table = table_.view();
  set_shape(args.block_table, {c.batch(), width}, {table_row, 1});

  auto next = order.begin();
  pages_.resize(c.lens.size());
  for (int32_t b = 0; b < c.batch(); ++b) {
    const int32_t keys = live_keys(c, b), n = rules::ceil_div(keys, c.page_size);
    auto &mine = pages_[static_cast<std::size_t>(b)];
    mine.assign(next, next + n);
    next += n;
    std::copy(mine.begin(), mine.end(), table_.data<int32_t>() + int64_t{b} * table_row);
    for (int32_t k = 0; k < keys; ++k) {
      cli::Random random = random_row(c.seed, 1, stream(b), k, 0);
      cli::fill_row(random, c.kv_dtype, key(b, k), c.lk, c.kv_sigma);
    }
  }
}

void TestCall::make_queries() {
  const TestCase &c = case_;
  const int64_t width = c.lk + c.q_pad;
  q_ = poisoned(c.q_dtype, int64_t{c.rows()} * c.heads * width, c.shift, args.q);
  set_shape(args.q, {c.rows(), c.heads, c.lk},
            {c.heads_outer ? width : c.heads * width, c.heads_outer ? c.rows() * width : width, 1});
  for (int32_t b = 0; b < c.batch(); ++b) {
    for (int32_t t = 0; t < c.qlen; ++t) {
      // A token is the same one in a call with another qlen, if it stands at the same place of its sequence.
      const int64_t position = int64_t{c.lens[static_cast<std::size_t>(b)]} - c.qlen + t;
      for (int32_t h = 0; h < c.heads; ++h) {
        cli::Random random = random_row(c.seed, 2, stream(b), position, h);
        cli::fill_normal(random, c.q_dtype, query(b, t, h), c.lk, c.q_sigma);
      }
    }
  }
}

void TestCall::make_outputs() {
  const TestCase &c = case_;
  const int64_t width = c.lv + c.out_pad, rows = c.rows();
  out_ = poisoned(c.q_dtype, rows * c.heads * width, c.shift, args.out);
  set_shape(args.out, {rows, c.heads, c.lv},
            {c.heads_outer ? width : c.heads * width, c.heads_outer ? rows * width : width, 1});
  lse_ = poisoned(DType::f32, rows * c.heads, c.shift, args.lse);
  set_shape(args.lse, {rows, c.heads}, {c.heads_outer ? 1 : c.heads, c.heads_outer ? rows : 1});
}

int32_t TestCall::stream(int32_t request) const {
  return case_.streams.empty() ? request : case_.streams[static_cast<std::size_t>(request)];
}

void *TestCall::key(int32_t request, int32_t key) {
  const int64_t page = pages(request)[static_cast<std::size_t>(key / case_.page_size)], slot = key % case_.page_size;
  const mlaverify_tensor &kv = args.kv_cache;
  return element(kv,
                 case_.flat ? (page * case_.page_size + slot) * kv.strides[0] : page * kv.strides[0] + slot * kv.strides[1]);
}

void *TestCall::query(int32_t request, int32_t token, int32_t head) {
  return element(args.q, (int64_t{request} * case_.qlen + token) * args.q.strides[0] + head * args.q.strides[1]);
}

void TestCall::set_key(int32_t request, int32_t k, int32_t dim, float value) {
  changed_ = true;
  void *const row = key(request, k);
  const rules::RowPart part = rules::row_part(case_.kv_dtype, case_.lk, dim);
  if (part.group >= 0) value /= rules::record_scales(row)[part.group];
  rules::store_float(part.dtype, static_cast<char *>(row) + part.at, dim - part.begin, value);
}

void TestCall::set_group_scale(int32_t request, int32_t k, int32_t group, float scale) {
  changed_ = true;
  rules::record_scales(key(request, k))[group] = scale;
}

void TestCall::set_query(int32_t request, int32_t token, int32_t head, int32_t dim, float value) {
  changed_ = true;
  rules::store_float(case_.q_dtype, query(request, token, head), dim, value);
}

void TestCall::fill_key(int32_t request, int32_t k, float value) {
  for (int32_t d = 0; d < case_.lk; ++d) set_key(request, k, d, value);
}

void TestCall::fill_queries(float value) {
  for (int32_t r = 0; r < case_.rows() * case_.heads; ++r) {
    const int32_t row = r / case_.heads;
    for (int32_t d = 0; d < case_.lk; ++d) set_query(row / case_.qlen, row % case_.qlen, r % case_.heads, d, value);
  }
}

void TestCall::poison_outputs() {
  cli::poison(out_.data(), out_.bytes());
  cli::poison(lse_.data(), lse_.bytes());
}

bool TestCall::outputs_untouched() const {
  return all_poison(out_.data<unsigned char>(), out_.bytes()) && all_poison(lse_.data<unsigned char>(), lse_.bytes());
}

std::string TestCall::run() {
  poison_outputs();
  const std::string device = environment("MLAVERIFY_TEST_DEVICE");
  if (device == "invariant") args.flags |= MLAVERIFY_FLAG_BATCH_INVARIANT;
  const std::string fault = device.empty() ? run_on_host() : run_on_device(device == "captured");
  return fault.empty() ? stray_writes() : fault;
}

std::string TestCall::run_on_host() {
  std::size_t bytes = 0;
  if (mlaverify_workspace_size(&args, &bytes) != MLAVERIFY_OK) return std::string("size query: ") + mlaverify_last_error();
  workspace_ = io::TensorBuffer(DType::f8_e4m3, {static_cast<int64_t>(bytes) + 2 * kGuardBytes});
  cli::poison(workspace_.data(), workspace_.bytes());
  auto *begin = workspace_.data<unsigned char>();
  begin += -reinterpret_cast<uintptr_t>(begin) % MLAVERIFY_WORKSPACE_ALIGNMENT;
  args.workspace = begin;
  args.workspace_bytes = bytes;
  if (mlaverify_decode_attention_fwd_verify(&args) != MLAVERIFY_OK) return mlaverify_last_error();
  const unsigned char *end = workspace_.data<unsigned char>() + workspace_.bytes();
  if (!all_poison(begin + bytes, static_cast<std::size_t>(end - begin) - bytes)) return "wrote past the end of the workspace";
  return "";
}

std::string TestCall::run_on_device(bool captured) {
  DeviceCall device(this);
  mlaverify_status status = MLAVERIFY_OK;
  const auto call = [&] { status = mlaverify_decode_attention_fwd_verify(&device.args); };
  if (!captured) {
    call();
    return status == MLAVERIFY_OK ? device.fetch() : mlaverify_last_error();
  }
  const int32_t qlen = args.qlen;
  if (mlaverify_warmup_decode_attention_fwd_verify(&device.args, &qlen, 1) != MLAVERIFY_OK) return mlaverify_last_error();
  device.set_lengths(std::vector<int32_t>(static_cast<std::size_t>(case_.batch()), 1));
  const io::DeviceGraph graph(device.stream, call);
  if (status != MLAVERIFY_OK) return mlaverify_last_error();
  if (graph.kernel_nodes() > 2 || graph.other_nodes() > 0)
    return "the captured graph has more than two kernels, or other nodes";
  graph.replay();
  device.stream.synchronize();
  device.set_lengths({seq_lens_.data<int32_t>(), seq_lens_.data<int32_t>() + case_.batch()});
  graph.replay();
  return device.fetch();
}

DeviceCall::DeviceCall(TestCall *call, int device) : args(call->args), stream(device), call_(call) {
  struct Tensor {
    Place place;
    mlaverify_tensor &view;
    const io::TensorBuffer &buffer;
  };
  const Tensor tensors[] = {{kOut, args.out, call->out_},
                            {kLse, args.lse, call->lse_},
                            {kSeqLens, args.seq_lens, call->seq_lens_},
                            {kQ, args.q, call->q_},
                            {kKv, args.kv_cache, call->kv_},
                            {kTable, args.block_table, call->table_},
                            {kRealLens, args.real_seq_lens, call->real_lens_},
                            {kScale, args.k_scale, call->k_scale_}};
  for (const Tensor &t : tensors) {
    if (t.view.data != nullptr) copies_[t.place] = io::to_device(t.buffer, &t.view, device);
  }
  args.backend = MLAVERIFY_BACKEND_CUDA;
  args.stream = stream.handle();
  if (mlaverify_workspace_size(&args, &args.workspace_bytes) != MLAVERIFY_OK) throw std::runtime_error(mlaverify_last_error());
  workspace_ = io::DeviceMemory(args.workspace_bytes + kGuardBytes, device);
  workspace_.poison();
  args.workspace = workspace_.data();
}

void DeviceCall::set_lengths(const std::vector<int32_t> &lens) { copies_[kSeqLens].upload(lens.data(), lens.size() * 4); }

void DeviceCall::set_page(int32_t request, int32_t entry, int32_t page) {
  const mlaverify_tensor &table = args.block_table;
  const auto begin = static_cast<const char *>(table.data) - copies_[kTable].data<char>();
  copies_[kTable].upload(&page, sizeof(page), static_cast<std::size_t>(begin + (request * table.strides[0] + entry) * 4));
}

void DeviceCall::set_k_scale(float value) { copies_[kScale].upload(&value, sizeof(value)); }

void DeviceCall::poison_outputs() {
  copies_[kOut].poison();
  copies_[kLse].poison();
}

std::string DeviceCall::fetch() {
  stream.synchronize();
  copies_[kOut].download(call_->out_.data(), call_->out_.bytes());
  copies_[kLse].download(call_->lse_.data(), call_->lse_.bytes());
  std::vector<unsigned char> guard(kGuardBytes);
  workspace_.download(guard.data(), guard.size(), args.workspace_bytes);
  return all_poison(guard.data(), guard.size()) ? "" : "wrote past the end of the workspace";
}

// Looks at copies of the outputs with all their elements poisoned again.
std::string TestCall::stray_writes() const {
  const TestCase &c = case_;
  std::vector<unsigned char> out(out_.data<unsigned char>(), out_.data<unsigned char>() + out_.bytes());
  std::vector<unsigned char> lse(lse_.data<unsigned char>(), lse_.data<unsigned char>() + lse_.bytes());
  for (int32_t b = 0; b < c.batch(); ++b) {
    for (int32_t t = 0; t < c.qlen; ++t) {
      for (int32_t h = 0; h < c.heads; ++h) {
        const auto at = static_cast<const unsigned char *>(out_row(b, t, h)) - out_.data<unsigned char>();
        std::fill_n(out.begin() + at, c.lv * rules::dtype_bytes(c.q_dtype), static_cast<unsigned char>(0xff));
        std::fill_n(lse.begin() + 4 * (lse_of(b, t, h) - lse_.data<float>()), 4, static_cast<unsigned char>(0xff));
      }
    }
  }
  if (!all_poison(out.data(), out.size())) return "wrote outside of the elements of out";
  return all_poison(lse.data(), lse.size()) ? "" : "wrote outside of the elements of lse";
}

std::string TestCall::mismatch(int32_t every, const std::vector<Column> &known) {
  Call call;
  if (const Status s = validate(&args, true, &call); !s.ok()) return s.message;
  Oracle oracle(call.problem);
  std::vector<double> want(static_cast<std::size_t>(case_.lv));
  int32_t i = 0;
  for (int32_t b = 0; b < case_.batch(); ++b) {
    for (int32_t t = 0; t < case_.qlen; ++t) {
      for (int32_t h = 0; h < case_.heads; ++h) {
        if (i++ % every != 0) continue;
        const double want_lse = oracle.row(b, t, h, want.data());
        for (const Column &k : known) want[static_cast<std::size_t>(k.column)] = k.value;
        const RowError e = compare_row(case_.q_dtype, case_.lv, out_row(b, t, h), lse(b, t, h), want.data(), want_lse);
        if (e.ok) continue;
        return "request " + std::to_string(b) + ", token " + std::to_string(t) + ", head " + std::to_string(h) + ": " + e.why +
               (changed_ ? "\ncase, before changes: " + to_text(case_) : "\nrepeat: " + repeat_command(case_));
      }
    }
  }
  return "";
}

std::string TestCall::run_and_compare(int32_t every) {
  const std::string fault = run();
  return fault.empty() ? mismatch(every) : fault + "\ncase: " + repeat_command(case_);
}

const void *TestCall::out_row(int32_t request, int32_t token, int32_t head) const {
  return element(args.out, (int64_t{request} * case_.qlen + token) * args.out.strides[0] + head * args.out.strides[1]);
}

const float *TestCall::lse_of(int32_t request, int32_t token, int32_t head) const {
  return static_cast<const float *>(args.lse.data) + (int64_t{request} * case_.qlen + token) * args.lse.strides[0] +
         head * args.lse.strides[1];
}

float TestCall::out(int32_t request, int32_t token, int32_t head, int32_t column) const {
  return rules::load_float(case_.q_dtype, out_row(request, token, head), column);
}

float TestCall::lse(int32_t request, int32_t token, int32_t head) const { return *lse_of(request, token, head); }

TestCall::Bits TestCall::row_bits(int32_t request, int32_t token, int32_t head) const {
  const auto *o = static_cast<const unsigned char *>(out_row(request, token, head));
  const auto *l = reinterpret_cast<const unsigned char *>(lse_of(request, token, head));
  Bits bits(o, o + case_.lv * rules::dtype_bytes(case_.q_dtype));
  bits.insert(bits.end(), l, l + sizeof(float));
  return bits;
}

TestCall::Bits TestCall::bits() const {
  Bits all;
  for (int32_t r = 0; r < case_.rows() * case_.heads; ++r) {
    const int32_t row = r / case_.heads;
    const Bits one = row_bits(row / case_.qlen, row % case_.qlen, r % case_.heads);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

std::string check(const TestCase &c) { return TestCall(c).run_and_compare(); }

}  // namespace mlaverify::test
