// What only the cuda backend promises: graphs, streams, warm-up, and device memory that cannot be checked. Needs a GPU: label gpu.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "io/device_memory.h"
#include "support/device_case.h"

namespace mlaverify::test {
namespace {

void warm_up(const DeviceCall &device) {
  ASSERT_EQ(mlaverify_warmup_decode_attention_fwd_verify(&device.args, &device.args.qlen, 1), MLAVERIFY_OK)
      << mlaverify_last_error();
}

// CTest runs each test in a process of its own: here the first call that the process makes is inside a capturing stream.
TEST(CudaGraph, FirstCallOfAProcessIsCaptured) {
  for (const DType type : {DType::bf16, DType::f32}) {  // the tensor-core and the plain kernel
    TestCase c = deepseek({300, 5});
    c.q_dtype = c.kv_dtype = type;
    TestCall host(c);
    DeviceCall device(&host);
    warm_up(device);
    const io::DeviceGraph graph(device.stream, [&] { ASSERT_EQ(call(device), MLAVERIFY_OK) << mlaverify_last_error(); });
    EXPECT_LE(graph.kernel_nodes(), 2);
    EXPECT_EQ(graph.other_nodes(), 0);
    graph.replay();
    ASSERT_EQ(device.fetch(), "");
    EXPECT_EQ(host.mismatch(), "");
  }
}

TEST(CudaGraph, ReplaysFollowTheLengths) {
  for (const int32_t splits : {0, 1, 5}) {
    TestCase c = deepseek({20000, 4, 700, 1}, 2);
    c.num_kv_splits = splits;
    TestCall host(c);
    DeviceCall device(&host);
    warm_up(device);
    const io::DeviceGraph graph(device.stream, [&] { ASSERT_EQ(call(device), MLAVERIFY_OK) << mlaverify_last_error(); });
    for (const std::vector<int32_t> &lens :
         {std::vector<int32_t>{1, 1, 1, 1}, {0, 0, 0, 0}, {64, 3, 65, 0}, {20000, 4, 700, 1}, {777, 2, 128, 1}}) {
      SCOPED_TRACE("lengths " + std::to_string(lens[0]) + " ...");
      device.set_lengths(lens);
      device.poison_outputs();
      graph.replay();
      ASSERT_EQ(device.fetch(), "");
      const TestCall::Bits replayed = host.bits();
      device.poison_outputs();
      ASSERT_EQ(call(device), MLAVERIFY_OK);
      ASSERT_EQ(device.fetch(), "");
      EXPECT_EQ(host.bits(), replayed);
    }
  }
}

// The kernels may start before what is in front of them in the stream has ended (programmatic dependent launch), and must still see it:
// here a copy of the lengths, and a copy of the queries by another stream that is joined.
TEST(CudaGraph, BehindACopyAndAnotherStream) {
  for (const DType type : {DType::bf16, DType::f32}) {
    TestCase c = deepseek({3000, 64, 700}, 4);
    c.q_dtype = c.kv_dtype = type;
    TestCall host(c);
    DeviceCall device(&host);
    warm_up(device);
    const io::DeviceStream side(0);
    const auto stream_of = [](const io::DeviceStream &s) { return static_cast<cudaStream_t>(s.handle()); };
    const auto bytes_of = [](const mlaverify_tensor &t, std::size_t element) {
      return static_cast<std::size_t>(t.shape[0] * t.strides[0]) * element;
    };
    const std::size_t lens_bytes = c.lens.size() * 4, q_bytes = bytes_of(device.args.q, type == DType::f32 ? 4 : 2);
    io::DeviceMemory lens(lens_bytes, 0), q(q_bytes, 0);
    lens.upload(c.lens.data(), lens_bytes);
    ASSERT_EQ(cudaMemcpy(q.data(), device.args.q.data, q_bytes, cudaMemcpyDeviceToDevice), cudaSuccess);
    cudaEvent_t forked = nullptr, joined = nullptr;
    ASSERT_EQ(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming), cudaSuccess);
    ASSERT_EQ(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming), cudaSuccess);
    const io::DeviceGraph graph(device.stream, [&] {
      EXPECT_EQ(cudaEventRecord(forked, stream_of(device.stream)), cudaSuccess);
      EXPECT_EQ(cudaStreamWaitEvent(stream_of(side), forked), cudaSuccess);
      EXPECT_EQ(cudaMemcpyAsync(device.args.q.data, q.data(), q_bytes, cudaMemcpyDeviceToDevice, stream_of(side)), cudaSuccess);
      EXPECT_EQ(cudaEventRecord(joined, stream_of(side)), cudaSuccess);
      EXPECT_EQ(cudaMemcpyAsync(device.args.seq_lens.data, lens.data(), lens_bytes, cudaMemcpyDeviceToDevice,
                                stream_of(device.stream)),
                cudaSuccess);
      EXPECT_EQ(cudaStreamWaitEvent(stream_of(device.stream), joined), cudaSuccess);
      EXPECT_EQ(call(device), MLAVERIFY_OK) << mlaverify_last_error();
    });
    for (int repeat = 0; repeat < 20; ++repeat) {
      device.set_lengths({1, 1, 1});
      ASSERT_EQ(cudaMemset(device.args.q.data, 0xff, q_bytes), cudaSuccess);
      device.poison_outputs();
      graph.replay();
      ASSERT_EQ(device.fetch(), "");
      ASSERT_EQ(host.mismatch(repeat == 0 ? 1 : 97), "") << "repeat " << repeat;
    }
    cudaEventDestroy(forked);
    cudaEventDestroy(joined);
  }
}

TEST(CudaGraph, TheScaleMayChangeBetweenReplays) {
  TestCase c = deepseek({200});
  c.kv_dtype = DType::f8_e4m3;
  c.k_scale = 1.0f;
  TestCall host(c);
  DeviceCall device(&host);
  warm_up(device);
  const io::DeviceGraph graph(device.stream, [&] { ASSERT_EQ(call(device), MLAVERIFY_OK); });
  for (const float scale : {0.25f, 7.3f, 0x1p-10f}) {
    device.set_k_scale(scale);
    graph.replay();
    ASSERT_EQ(device.fetch(), "");
    *static_cast<float *>(host.args.k_scale.data) = scale;
    EXPECT_EQ(host.mismatch(), "") << "scale " << scale;
  }
}

TEST(CudaSplits, EveryCountIsRightAndRepeats) {
  TestCase c = deepseek({1100, 513, 1, 0}, 3);
  TestCall host(c);
  for (int32_t splits = 0; splits <= 128; splits += splits < 10 ? 1 : 7) {
    SCOPED_TRACE(std::to_string(splits) + " splits");
    host.args.num_kv_splits = splits;
    DeviceCall device(&host);
    TestCall::Bits first;
    for (int repeat = 0; repeat < (splits < 3 ? 100 : 5); ++repeat) {
      device.poison_outputs();
      ASSERT_EQ(call(device), MLAVERIFY_OK) << mlaverify_last_error();
      ASSERT_EQ(device.fetch(), "");
      if (repeat == 0) first = host.bits();
      ASSERT_EQ(host.bits(), first) << "repeat " << repeat;
    }
    EXPECT_EQ(host.mismatch(5), "");
  }
}

// Where a piece ends in the middle of a key tile, the rest of the tile belongs to the next one.
TEST(CudaSplits, PiecesThatEndInsideATile) {
  for (const auto &[type, cache] : {std::pair{DType::bf16, DType::bf16},
                                    {DType::bf16, DType::f8_e4m3},
                                    {DType::f16, DType::f8_e5m2},
                                    {DType::bf16, DType::f8_ds_mla}}) {
    for (const int32_t heads : {5, 20, 40, 130}) {
      for (const int32_t splits : {2, 5}) {
        TestCase c = deepseek({513, 640, 833, 1601, 3}, 2);
        c.q_dtype = type;
        c.kv_dtype = cache;
        c.heads = heads;
        c.num_kv_splits = splits;
        expect_right(c, 11);
      }
    }
  }
}

// More parts than a warp of the merge looks at at once, and values wider than it takes at a time.
TEST(CudaSplits, ManyPartsAndWideValues) {
  for (const auto &[lk, lv] : {std::pair{576, 512}, {1024, 1024}, {640, 576}}) {
    for (const int32_t splits : {3, 40, 300}) {
      TestCase c = deepseek({80000, 5, 2500}, 1);
      c.heads = 3;
      c.lk = lk;
      c.lv = lv;
      c.num_kv_splits = splits;
      expect_right(c);
    }
  }
}

// Pages that the copy engine takes and pages that are gathered: the same bits.
TEST(CudaTiles, EveryPageSizeGivesTheSame) {
  for (const auto &[type, cache] : {std::pair{DType::bf16, DType::bf16},
                                    {DType::f16, DType::f16},
                                    {DType::bf16, DType::f8_e4m3},
                                    {DType::f16, DType::f8_e5m2},
                                    {DType::bf16, DType::f8_ds_mla},
                                    {DType::f16, DType::f8_ds_mla}}) {
    for (const auto &[lk, lv] : {std::pair{576, 512}, {512, 512}}) {
      if (rules::is_record(cache) && lk != rules::kRecordWidth) continue;
      TestCase c = deepseek({300, 64, 65, 1, 0, 129, 1000}, 3);
      c.q_dtype = type;
      c.kv_dtype = cache;
      c.lk = lk;
      c.lv = lv;
      TestCall::Bits want;
      for (const int32_t page : {64, 128, 256, 32, 16, 8, 4, 1, 48, 100, 1024}) {
        SCOPED_TRACE("page size " + std::to_string(page));
        c.page_size = page;
        c.slot_pad = page == 16 ? 16 : 0;
        c.page_pad = page == 32 ? 48 : 0;
        TestCall host(c);
        DeviceCall device(&host);
        ASSERT_EQ(call(device), MLAVERIFY_OK) << mlaverify_last_error();
        ASSERT_EQ(device.fetch(), "");
        ASSERT_EQ(host.mismatch(page == 64 ? 1 : 11), "");
        if (want.empty()) want = host.bits();
        ASSERT_EQ(host.bits(), want);
      }
    }
  }
}

// Row tiles alone, in groups of two, three and four, and groups with idle places; work that is cut between blocks everywhere.
void expect_heads_and_query_tokens(DType cache) {
  for (const int32_t heads : {1, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 96, 128}) {
    for (const int32_t qlen : {1, 2, 5, 8}) {
      for (const int32_t splits : {0, 1, 3}) {
        if (rules::is_record(cache) && (qlen == 2 || heads % 8 != 0)) continue;  // fewer of these
        TestCase c = deepseek({700, 0, 3, 129, 1500}, qlen);
        c.kv_dtype = cache;
        c.heads = heads;
        c.num_kv_splits = splits;
        expect_right(c, 13);
      }
    }
  }
}
TEST(CudaTiles, HeadsAndQueryTokens) { expect_heads_and_query_tokens(DType::bf16); }
TEST(CudaTiles, HeadsAndQueryTokensOverFp8) { expect_heads_and_query_tokens(DType::f8_e4m3); }
TEST(CudaTiles, HeadsAndQueryTokensOverRecords) { expect_heads_and_query_tokens(DType::f8_ds_mla); }

// In the batch-invariant mode a row has the same bits whatever else is in the call.
void expect_invariant_over_heads_tokens_and_mates(DType cache) {
  TestCase c = deepseek({2500}, 1);
  c.kv_dtype = cache;
  c.streams = {7};
  c.heads = 16;
  TestCall alone(c);
  alone.args.flags = MLAVERIFY_FLAG_BATCH_INVARIANT;
  DeviceCall alone_device(&alone);
  ASSERT_EQ(call(alone_device), MLAVERIFY_OK) << mlaverify_last_error();
  ASSERT_EQ(alone_device.fetch(), "");
  ASSERT_EQ(alone.mismatch(), "");
  for (const int32_t qlen : {2, 4, 9}) {
    for (const int32_t mates : {1, 40}) {
      TestCase many = c;
      many.qlen = qlen;
      many.page_size = qlen == 4 ? 48 : 64;
      many.lens.assign(static_cast<std::size_t>(mates) + 1, 90 * qlen);
      many.streams.assign(many.lens.size(), 1);
      many.lens.back() = 2500 + qlen - 1;  // the last keys are seen by later tokens only
      many.streams.back() = 7;
      TestCall host(many);
      host.args.flags = MLAVERIFY_FLAG_BATCH_INVARIANT;
      for (int32_t h = 0; h < c.heads; ++h)
        std::memcpy(host.query(mates, 0, h), alone.query(0, 0, h), static_cast<std::size_t>(c.lk) * 2);
      DeviceCall device(&host);
      ASSERT_EQ(call(device), MLAVERIFY_OK) << mlaverify_last_error();
      ASSERT_EQ(device.fetch(), "");
      for (int32_t h = 0; h < c.heads; ++h)
        ASSERT_EQ(host.row_bits(mates, 0, h), alone.row_bits(0, 0, h)) << "qlen " << qlen << ", head " << h;
    }
  }
}
TEST(CudaTiles, InvariantOverHeadsTokensAndMates) {
  for (const DType cache : {DType::bf16, DType::f8_e4m3, DType::f8_ds_mla}) expect_invariant_over_heads_tokens_and_mates(cache);
}

// Batch-invariant mode: a request's chunks on one block, on a few, on as many as there are, and more than the merge takes at a time. The
// last row sees the same keys in all of them.
TEST(CudaTiles, InvariantWhereverTheWorkIsCut) {
  struct Kernel {
    DType type, cache;
    int32_t heads, lk, lv;
  };
  for (const Kernel &k : {Kernel{DType::bf16, DType::bf16, 16, 576, 512},
                          {DType::bf16, DType::bf16, 128, 576, 512},
                          {DType::bf16, DType::f8_e4m3, 40, 576, 512},
                          {DType::f16, DType::f16, 16, 288, 256},
                          {DType::f32, DType::f32, 2, 64, 40}}) {
    for (const int32_t len : {1024, 1025, 6500, 150000}) {
      if (len > 10000 && k.heads > 16) continue;
      TestCall::Bits want;
      for (const int32_t mates : {0, 1, 13, 150}) {
        if (len > 10000 && mates > 13) continue;
        TestCase c = deepseek({}, 1);
        c.q_dtype = k.type;
        c.kv_dtype = k.cache;
        c.heads = k.heads;
        c.lk = k.lk;
        c.lv = k.lv;
        c.lens.assign(static_cast<std::size_t>(mates) + 1, 3100);
        c.lens.back() = len;
        c.streams.assign(c.lens.size(), 1);
        c.streams.back() = 7;
        TestCall host(c);
        host.args.flags = MLAVERIFY_FLAG_BATCH_INVARIANT;
        TestCase alone = c;
        alone.lens = {len};
        alone.streams = {7};
        TestCall query(alone);
        for (int32_t h = 0; h < c.heads; ++h)
          std::memcpy(host.query(mates, 0, h), query.query(0, 0, h),
                      static_cast<std::size_t>(c.lk) * (k.type == DType::f32 ? 4 : 2));
        DeviceCall device(&host);
        TestCall::Bits bits;
        for (int repeat = 0; repeat < 3; ++repeat) {
          device.poison_outputs();
          ASSERT_EQ(call(device), MLAVERIFY_OK) << mlaverify_last_error();
          ASSERT_EQ(device.fetch(), "");
          bits.clear();
          for (int32_t h = 0; h < c.heads; ++h) {
            const TestCall::Bits row = host.row_bits(mates, 0, h);
            bits.insert(bits.end(), row.begin(), row.end());
          }
          if (want.empty()) {
            ASSERT_EQ(host.mismatch(), "") << c;
            want = bits;
          }
          ASSERT_EQ(bits, want) << c << ", repeat " << repeat;
        }
        if (mates == 13) {
          ASSERT_EQ(host.mismatch(29), "") << c;
        }
      }
    }
  }
}

// Some row tiles of a request see none of its last chunk, which later tokens see: nothing is computed between what a block writes and merges.
TEST(CudaTiles, InvariantWhereATileSeesNoneOfAChunk) {
  for (const int32_t qlen : {8, 12}) {
    for (const int32_t page_size : {64, 1}) {
      TestCase c = deepseek({}, qlen);
      c.page_size = page_size;
      for (int32_t i = 0; i < 64; ++i) c.lens.push_back(2049 + i % 8);
      TestCall host(c);
      host.args.flags = MLAVERIFY_FLAG_BATCH_INVARIANT;
      DeviceCall device(&host);
      TestCall::Bits first;
      for (int repeat = 0; repeat < 20; ++repeat) {
        device.poison_outputs();
        ASSERT_EQ(call(device), MLAVERIFY_OK) << mlaverify_last_error();
        ASSERT_EQ(device.fetch(), "");
        if (repeat == 0) first = host.bits();
        ASSERT_EQ(host.bits(), first) << c << ", repeat " << repeat;
      }
      EXPECT_EQ(host.mismatch(101), "") << c;
    }
  }
}

TEST(CudaStreams, CallsOnSeveralStreamsAndThreads) {
  constexpr int kThreads = 4;
  std::vector<std::string> faults(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([i, &faults] {
      TestCase c = deepseek({3000 + i, 70, 0, 900}, 1 + i);
      c.seed = static_cast<uint64_t>(i);
      TestCall host(c);
      DeviceCall device(&host);
      TestCall::Bits first;
      for (int n = 0; n < 20 && faults[static_cast<std::size_t>(i)].empty(); ++n) {
        device.poison_outputs();
        if (call(device) != MLAVERIFY_OK) faults[static_cast<std::size_t>(i)] = mlaverify_last_error();
        if (const std::string fault = device.fetch(); !fault.empty()) faults[static_cast<std::size_t>(i)] = fault;
        if (n == 0) first = host.bits();
        if (host.bits() != first) faults[static_cast<std::size_t>(i)] = "bits differ in repeat " + std::to_string(n);
      }
      if (faults[static_cast<std::size_t>(i)].empty()) faults[static_cast<std::size_t>(i)] = host.mismatch(7);
    });
  }
  for (std::thread &t : threads) t.join();
  for (const std::string &fault : faults) EXPECT_EQ(fault, "");
}

// A call runs where its tensors are, whatever device is current in the thread, and leaves that as it was.
TEST(CudaDevices, ACallRunsWhereItsTensorsAre) {
  int devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  if (devices < 2) GTEST_SKIP() << "needs two CUDA devices, found " << devices;
  for (const DType type : {DType::bf16, DType::f32}) {
    TestCase c = deepseek({3000, 70, 0, 900});
    c.q_dtype = c.kv_dtype = type;
    TestCall::Bits first;
    for (const int device : {1, 0}) {
      for (const int current : {0, 1}) {
        SCOPED_TRACE("tensors on device " + std::to_string(device) + ", current " + std::to_string(current));
        TestCall host(c);
        DeviceCall copy(&host, device);
        ASSERT_EQ(cudaSetDevice(current), cudaSuccess);
        warm_up(copy);
        ASSERT_EQ(call(copy), MLAVERIFY_OK) << mlaverify_last_error();
        int now = -1;
        ASSERT_EQ(cudaGetDevice(&now), cudaSuccess);
        EXPECT_EQ(now, current);
        ASSERT_EQ(copy.fetch(), "");
        ASSERT_EQ(host.mismatch(3), "");
        if (first.empty()) first = host.bits();
        EXPECT_EQ(host.bits(), first);
        const io::DeviceGraph graph(copy.stream, [&] { ASSERT_EQ(call(copy), MLAVERIFY_OK) << mlaverify_last_error(); });
        copy.poison_outputs();
        graph.replay();
        ASSERT_EQ(copy.fetch(), "");
        EXPECT_EQ(host.bits(), first);
      }
    }
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  }
}

TEST(CudaErrors, ARefusalWritesNothingAndLeavesTheDeviceUsable) {
  TestCall host(deepseek({100}));
  host.poison_outputs();
  DeviceCall device(&host);
  mlaverify_verify_args bad = device.args;
  bad.workspace_bytes -= 1;
  EXPECT_EQ(mlaverify_decode_attention_fwd_verify(&bad), MLAVERIFY_ERR_WORKSPACE);
  bad = device.args;
  bad.seq_lens.device = MLAVERIFY_HOST;
  EXPECT_EQ(mlaverify_decode_attention_fwd_verify(&bad), MLAVERIFY_ERR_INVALID_ARGUMENT);
  ASSERT_EQ(device.fetch(), "");
  EXPECT_TRUE(host.outputs_untouched());
  ASSERT_EQ(call(device), MLAVERIFY_OK);
  ASSERT_EQ(device.fetch(), "");
  EXPECT_EQ(host.mismatch(), "");
}

TEST(CudaErrors, CheckedModeRefusesBadLengthsAndPages) {
  TestCase c = deepseek({200, 130, 90});
  c.num_kv_splits = 2;
  TestCall host(c);
  host.args.flags = MLAVERIFY_FLAG_CHECKED;
  host.poison_outputs();
  DeviceCall device(&host);
  const auto refused = [&](const std::string &why) {
    EXPECT_EQ(call(device), MLAVERIFY_ERR_INVALID_VALUE);
    EXPECT_NE(std::string(mlaverify_last_error()).find(why), std::string::npos) << mlaverify_last_error();
  };
  device.set_lengths({200, -5, 90});
  refused("seq_lens[1]: got -5");
  device.set_lengths({200, 130, 100000000});
  refused("block_table: has ");
  device.set_lengths({200, 130, 90});
  device.set_page(1, 2, 1000000);  // of the third page of request 1
  refused("block_table[1][2]: got page 1000000");
  device.set_lengths({200, 128, 90});  // no row sees it
  device.poison_outputs();
  EXPECT_EQ(call(device), MLAVERIFY_OK) << mlaverify_last_error();
  device.stream.synchronize();
  device.set_lengths({200, 130, 90});
  device.set_page(1, 2, host.page(1, 2));
  device.poison_outputs();
  ASSERT_EQ(device.fetch(), "");
  EXPECT_TRUE(host.outputs_untouched());
  ASSERT_EQ(call(device), MLAVERIFY_OK) << mlaverify_last_error();
  ASSERT_EQ(device.fetch(), "");
  EXPECT_EQ(host.mismatch(), "");

  const io::DeviceGraph graph(device.stream, [&] { EXPECT_EQ(call(device), MLAVERIFY_ERR_UNSUPPORTED); });
}

// Unchecked, these give zeros or numbers, never a fault of the device; and they do not disturb other requests.
TEST(CudaErrors, BadLengthsAndPagesStayInsideTheCache) {
  for (const auto &[type, flags] :
       {std::pair{DType::bf16, 0}, {DType::f32, 0}, {DType::bf16, MLAVERIFY_FLAG_BATCH_INVARIANT}}) {
    TestCase c = deepseek({200, 130, 90});
    c.q_dtype = c.kv_dtype = type;
    TestCall host(c);
    host.args.flags = static_cast<uint32_t>(flags);
    DeviceCall device(&host);
    device.set_lengths({-5, 130, 100000000});  // negative; right; far beyond the table
    ASSERT_EQ(call(device), MLAVERIFY_OK);
    ASSERT_EQ(device.fetch(), "");
    for (int32_t h = 0; h < c.heads; ++h) {
      EXPECT_EQ(host.lse(0, 0, h), -INFINITY);
      EXPECT_EQ(host.out(0, 0, h, 0), 0.0f);
    }
    TestCase alone = c;
    TestCall right(alone);
    DeviceCall right_device(&right);
    ASSERT_EQ(call(right_device), MLAVERIFY_OK);
    ASSERT_EQ(right_device.fetch(), "");
    for (int32_t t = 0; t < c.qlen; ++t) EXPECT_NEAR(host.lse(1, t, 0), right.lse(1, t, 0), 1e-3);
  }
}

TEST(CudaWarmup, TouchesNeitherOutputsNorCache) {
  TestCall host(deepseek({100}));
  host.poison_outputs();
  DeviceCall device(&host);
  const int32_t qlens[] = {1, 2, 4, 8};
  ASSERT_EQ(mlaverify_warmup_decode_attention_fwd_verify(&device.args, qlens, 4), MLAVERIFY_OK) << mlaverify_last_error();
  ASSERT_EQ(device.fetch(), "");
  EXPECT_TRUE(host.outputs_untouched());
  ASSERT_EQ(call(device), MLAVERIFY_OK);
  ASSERT_EQ(device.fetch(), "");
  EXPECT_EQ(host.mismatch(), "");
}

}  // namespace
}  // namespace mlaverify::test
