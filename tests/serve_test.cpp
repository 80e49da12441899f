#include "serve.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "error.h"

namespace mlaverify::cli {
namespace {

std::vector<TraceRequest> numbered(std::vector<TraceRequest> trace) {
  for (std::size_t i = 0; i < trace.size(); ++i) trace[i].line = static_cast<int64_t>(i) + 2;
  return trace;
}

ServeOptions small() {
  ServeOptions o;
  o.shape.num_heads = 2;
  o.shape.qlen = 3;
  o.shape.qk_dim = 24;
  o.shape.v_dim = 16;
  o.shape.page_size = 4;
  o.max_batch = 3;
  o.pool_pages = 30;
  o.check_rows = 20;
  o.num_threads = 1;
  return o;
}

const std::vector<TraceRequest> kTrace = numbered({{0, 0, 9, 7}, {0, 0, 1, 12}, {0, 0, 40, 3}, {0, 0, 3, 9}, {0, 0, 17, 1}});

struct Totals {
  int64_t steps = 0, accepted = 0, rows_checked = 0;
  std::vector<Mismatch> mismatches;
  double worst_error = 0;
};

Totals serve(const ServeOptions &options, const std::vector<TraceRequest> &trace, Server::Attention attention) {
  Server server(options, trace, attention);
  Totals t;
  StepReport report;
  while (server.step(report)) {
    ++t.steps;
    t.accepted += report.tokens_accepted;
    t.rows_checked += report.rows_checked;
    t.worst_error = std::max(t.worst_error, report.worst_error);
    t.mismatches.insert(t.mismatches.end(), report.mismatches.begin(), report.mismatches.end());
    EXPECT_EQ(report.tokens_verified, report.live_requests * options.shape.qlen);
    EXPECT_LE(report.pages_in_use, report.pages_reserved);
    EXPECT_LE(report.pages_reserved, options.pool_pages);
  }
  EXPECT_EQ(server.scheduler().pool().in_use(), 0);
  return t;
}

// ---- Attention calls that tests put in the library's place.

int64_t elements(const mlaverify_tensor &t) {
  int64_t n = 1;
  for (int32_t i = 0; i < t.ndim; ++i) n *= t.shape[i];
  return n;
}

// Demands what the cache should look like for every call: latents where a request has tokens, poison everywhere else, and table
// entries past a request's pages that are no page.
mlaverify_status inspect(const mlaverify_verify_args *args) {
  const auto *kv = static_cast<const uint16_t *>(args->kv_cache.data);
  const auto *table = static_cast<const int32_t *>(args->block_table.data);
  const auto *lens = static_cast<const int32_t *>(args->seq_lens.data);
  const int64_t width = args->kv_cache.shape[3];
  std::vector<bool> live(static_cast<std::size_t>(args->kv_cache.shape[0] * args->page_size), false);
  for (int64_t b = 0; b < args->seq_lens.shape[0]; ++b) {
    EXPECT_GT(lens[b], args->qlen);
    const int64_t pages = (lens[b] + args->page_size - 1) / args->page_size;
    EXPECT_LE(pages, args->block_table.shape[1]);
    for (int64_t i = 0; i < args->block_table.shape[1]; ++i) {
      const int32_t page = table[b * args->block_table.strides[0] + i];
      if (i >= pages) {
        EXPECT_EQ(page, std::numeric_limits<int32_t>::min());
        continue;
      }
      for (int64_t offset = 0; offset < args->page_size && i * args->page_size + offset < lens[b]; ++offset) {
        const auto slot = static_cast<std::size_t>(page * args->page_size + offset);
        EXPECT_FALSE(live[slot]) << "slot " << slot << " has two owners";
        live[slot] = true;
      }
    }
  }
  for (std::size_t slot = 0; slot < live.size(); ++slot) {
    const uint16_t *row = kv + static_cast<int64_t>(slot) * width;
    const int64_t poisoned = std::count(row, row + width, uint16_t{0xffff});
    EXPECT_EQ(poisoned, live[slot] ? 0 : width) << "slot " << slot;
  }
  const auto *out = static_cast<const uint16_t *>(args->out.data);
  EXPECT_EQ(std::count(out, out + elements(args->out), uint16_t{0xffff}), elements(args->out)) << "outputs start as NaN";
  return mlaverify_decode_attention_fwd_verify(args);
}

mlaverify_status write_nothing(const mlaverify_verify_args *) { return MLAVERIFY_OK; }

// One wrong number in the rows of head 1.
mlaverify_status spoil_head_1(const mlaverify_verify_args *args) {
  const mlaverify_status status = mlaverify_decode_attention_fwd_verify(args);
  for (int64_t row = 0; row < args->out.shape[0]; ++row) {
    static_cast<uint16_t *>(args->out.data)[row * args->out.strides[0] + args->out.strides[1] + 5] = 0x4000;  // 2
  }
  return status;
}

mlaverify_status spoil_lse(const mlaverify_verify_args *args) {
  const mlaverify_status status = mlaverify_decode_attention_fwd_verify(args);
  auto *lse = static_cast<float *>(args->lse.data);
  for (int64_t i = 0; i < elements(args->lse); ++i) lse[i] += 0.1f;
  return status;
}

// What a page with two owners leads to: poison among a request's keys, for the call and the oracle alike.
mlaverify_status overwrite_first_key(const mlaverify_verify_args *args) {
  const auto *table = static_cast<const int32_t *>(args->block_table.data);
  auto *kv = static_cast<uint16_t *>(args->kv_cache.data);
  for (int64_t b = 0; b < args->seq_lens.shape[0]; ++b) {
    uint16_t *key = kv + table[b * args->block_table.strides[0]] * args->kv_cache.strides[0];
    std::fill_n(key, args->kv_cache.shape[3], uint16_t{0xffff});
  }
  return mlaverify_decode_attention_fwd_verify(args);
}

uint64_t g_digest;  // of inputs and outputs of every call since the test set it
mlaverify_status digest(const mlaverify_verify_args *args) {
  const mlaverify_status status = mlaverify_decode_attention_fwd_verify(args);
  for (const mlaverify_tensor *t : {&args->q, &args->out, &args->kv_cache}) {
    const auto *x = static_cast<const uint16_t *>(t->data);
    for (int64_t i = 0; i < elements(*t); ++i) g_digest = (g_digest ^ x[i]) * 0x100000001b3u;
  }
  return status;
}

mlaverify_status fail(const mlaverify_verify_args *) { return MLAVERIFY_ERR_INVALID_VALUE; }

// ---- Tests.

TEST(Serve, AgreesWithTheOracleAndKeepsTheCacheClean) {
  const Totals t = serve(small(), kTrace, inspect);
  EXPECT_EQ(t.accepted, 7 + 12 + 3 + 9 + 1);
  EXPECT_EQ(t.rows_checked, t.steps * 20);
  EXPECT_TRUE(t.mismatches.empty()) << t.mismatches[0].why;
  EXPECT_LE(t.worst_error, 1);
  EXPECT_GT(t.worst_error, 0);
}

RC_GTEST_PROP(Serve, AgreesWithTheOracleForAnyShape, ()) {
  ServeOptions o = small();
  o.shape.num_heads = *rc::gen::inRange(1, 5);
  o.shape.qlen = *rc::gen::inRange(1, 6);
  o.shape.page_size = *rc::gen::inRange(1, 9);
  o.max_batch = *rc::gen::inRange(1, 5);
  o.accept_rate = *rc::gen::element(0.0, 0.5, 1.0);
  o.pool_pages = *rc::gen::inRange(12, 40);
  o.seed = *rc::gen::inRange<uint64_t>(0, 100);
  const auto lengths = *rc::gen::nonEmpty(rc::gen::container<std::vector<std::pair<int32_t, int32_t>>>(
      rc::gen::pair(rc::gen::inRange(1, 40), rc::gen::inRange(1, 9))));
  std::vector<TraceRequest> trace;
  for (const auto &[input, output] : lengths) {
    const TraceRequest r = {0, 0, input, output};
    if (max_tokens(r, o.shape.qlen) <= static_cast<int64_t>(o.pool_pages) * o.shape.page_size) trace.push_back(r);
  }
  RC_PRE(!trace.empty());
  const Totals t = serve(o, numbered(trace), inspect);
  RC_ASSERT(!::testing::Test::HasFailure());
  RC_ASSERT(t.mismatches.empty());
}

TEST(Serve, FindsWrongOutputs) {
  for (Server::Attention attention : {write_nothing, spoil_lse}) {
    const Totals t = serve(small(), kTrace, attention);
    EXPECT_EQ(static_cast<int64_t>(t.mismatches.size()), t.rows_checked);
  }
  const Totals t = serve(small(), kTrace, spoil_head_1);
  ASSERT_FALSE(t.mismatches.empty());
  EXPECT_LT(static_cast<int64_t>(t.mismatches.size()), t.rows_checked);
  for (const Mismatch &m : t.mismatches) {
    EXPECT_EQ(m.head, 1);
    EXPECT_GE(m.step, 1);
    EXPECT_LE(m.step, t.steps);
    EXPECT_GE(m.line, 2);
    EXPECT_LE(m.line, 6);
    EXPECT_FALSE(m.why.empty());
  }
}

TEST(Serve, FindsOverwrittenCaches) {
  const Totals t = serve(small(), kTrace, overwrite_first_key);
  ASSERT_EQ(static_cast<int64_t>(t.mismatches.size()), t.rows_checked);
  EXPECT_EQ(t.mismatches[0].why, "the request's cache was overwritten: the oracle's own result is not finite");
}

TEST(Serve, GivesTheSameBitsForTheSameSeed) {
  std::set<uint64_t> digests;
  for (uint64_t seed : {1, 1, 2}) {
    ServeOptions o = small();
    o.seed = seed;
    g_digest = 0;
    serve(o, kTrace, digest);
    digests.insert(g_digest);
  }
  EXPECT_EQ(digests.size(), 2u);
}

TEST(Serve, TakesEveryTypeOfCache) {
  for (DType q : {DType::bf16, DType::f16, DType::f32}) {
    for (DType kv : {DType::bf16, DType::f16, DType::f32, DType::f8_e4m3, DType::f8_e5m2, DType::f8_ds_mla}) {
      ServeOptions o = small();
      o.shape.q_dtype = q;
      o.shape.kv_dtype = kv;
      if (rules::is_record(kv)) o.shape.qk_dim = rules::kRecordWidth, o.shape.v_dim = rules::kRecordScaled;
      const Totals t = serve(o, kTrace, &mlaverify_decode_attention_fwd_verify);
      EXPECT_TRUE(t.mismatches.empty()) << static_cast<int>(q) << " " << static_cast<int>(kv) << " " << t.mismatches[0].why;
    }
  }
}

TEST(Serve, PassesTheLibrarysRefusalsOn) {
  try {
    serve(small(), kTrace, fail);
    FAIL();
  } catch (const Failure &e) {
    EXPECT_EQ(e.exit_code, kBadInput);
  }
  ServeOptions o = small();
  o.shape.qk_dim = 20;  // not a multiple of 8
  EXPECT_THROW(Server(o, kTrace), Failure);
}

TEST(Serve, RefusesATraceWithNothingToServe) {
  const auto message = [](const ServeOptions &o, const std::vector<TraceRequest> &trace) -> std::string {
    try {
      Server(o, trace);
    } catch (const Failure &e) {
      EXPECT_EQ(e.exit_code, kBadInput);
      return e.what();
    }
    return "";
  };
  ServeOptions o = small();
  EXPECT_EQ(message(o, numbered({{0, 0, 10, 0}, {0, 5, 3, 0}})),
            "the trace has nothing to verify: no request has output tokens");
  EXPECT_EQ(
      message(o, numbered({{0, 0, 10, 0}, {0, 5, 500, 1}})),
      "the trace has nothing to serve: 1 of 2 requests can never fit; the request of line 3 needs 126 pages of 4 tokens, the "
      "pool has 30");
}

}  // namespace
}  // namespace mlaverify::cli
