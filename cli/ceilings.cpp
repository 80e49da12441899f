// What this CPU can do at most: the measurements behind the floor.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cpu/tile_config.h"
#include "io/tensor_buffer.h"
#include "machine.h"
#include "mlaverify/mlaverify.h"
#include "work.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mlaverify::cli {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point a, Clock::time_point b) { return std::chrono::duration<double>(b - a).count(); }

// Runs part(0) ... part(threads-1) at once, each on a thread of its own; seconds from the first start to the last end.
double run_at_once(int threads, const std::function<void(int)> &part) {
  std::vector<Clock::time_point> start(static_cast<std::size_t>(threads)), end(start.size());
  std::atomic<int> missing(threads);
  std::vector<std::thread> running;
  const auto body = [&](int i) {
    missing.fetch_sub(1);
    while (missing.load() > 0) std::this_thread::yield();
    start[static_cast<std::size_t>(i)] = Clock::now();
    part(i);
    end[static_cast<std::size_t>(i)] = Clock::now();
  };
  std::exception_ptr failure;
  try {
    for (int i = 0; i < threads; ++i) running.emplace_back(body, i);
  } catch (...) {
    failure = std::current_exception();
    missing.store(0);  // let go those that did start
  }
  for (std::thread &t : running) t.join();
  if (failure) std::rethrow_exception(failure);
  return seconds_between(*std::min_element(start.begin(), start.end()), *std::max_element(end.begin(), end.end()));
}

// The fastest of `rounds` rounds. Rounds are kept to a few milliseconds, so that on a machine with other work some of them run
// undisturbed: a ceiling is what the machine can do, not what was left of it.
double best_of(int rounds, int threads, const std::function<void(int round, int thread)> &part) {
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    const double seconds = run_at_once(threads, [&](int thread) { part(round, thread); });
    best = round == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

// ---- Multiply-add: `kChains` independent chains of one register each, enough to cover the latency of any current core. Each
// function does `steps` steps of all chains and returns something that depends on every one.

constexpr int kChains = 12;
constexpr float kFactor = 0.999f, kTerm = 0.001f;  // keeps the values near 1: no overflow, no subnormals

struct MultiplyAdd {
  float (*run)(int64_t steps);
  int flops;  // of a step
};

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) float multiply_add_avx2(int64_t steps) {
  const __m256 factor = _mm256_set1_ps(kFactor), term = _mm256_set1_ps(kTerm);
  __m256 x[kChains];
  for (int i = 0; i < kChains; ++i) x[i] = _mm256_set1_ps(static_cast<float>(i));
  for (int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) x[i] = _mm256_fmadd_ps(x[i], factor, term);
  }
  for (int i = 1; i < kChains; ++i) x[0] = _mm256_add_ps(x[0], x[i]);
  return _mm256_cvtss_f32(x[0]);
}

__attribute__((target("avx512f"))) float multiply_add_avx512(int64_t steps) {
  const __m512 factor = _mm512_set1_ps(kFactor), term = _mm512_set1_ps(kTerm);
  __m512 x[kChains];
  for (int i = 0; i < kChains; ++i) x[i] = _mm512_set1_ps(static_cast<float>(i));
  for (int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) x[i] = _mm512_fmadd_ps(x[i], factor, term);
  }
  for (int i = 1; i < kChains; ++i) x[0] = _mm512_add_ps(x[0], x[i]);
  return _mm512_cvtss_f32(x[0]);
}

// The same chains of AVX512-BF16's sum of two products a lane.
__attribute__((target("avx512f,avx512bf16"))) float multiply_bf16_avx512(int64_t steps) {
  const __m512i half = _mm512_set1_epi16(0x3f00);
  __m512 x[kChains];
  for (int i = 0; i < kChains; ++i) x[i] = _mm512_set1_ps(static_cast<float>(i));
  for (int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i)
      x[i] = _mm512_dpbf16_ps(x[i], reinterpret_cast<__m512bh>(half), reinterpret_cast<__m512bh>(half));
  }
  for (int i = 1; i < kChains; ++i) x[0] = _mm512_add_ps(x[0], x[i]);
  return _mm512_cvtss_f32(x[0]);
}

// Four accumulators and four operands of AMX, as the cpu backend uses them, products of zeros. It has asked for the permission.
constexpr int kTileProducts = 4;
__attribute__((target("amx-tile,amx-bf16"))) float multiply_bf16_amx(int64_t steps) {
  _tile_loadconfig(&cpu::kTileConfig);
  for (int64_t s = 0; s < steps; ++s) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float result[256];
  _tile_stored(0, result, 64);
  _tile_release();
  return result[0];
}

#endif

// Four lanes as the compiler makes them for the base instruction set: separate multiply and add where that has no fused one.
float multiply_add_portable(int64_t steps) {
  typedef float Vector __attribute__((vector_size(16)));
  const Vector factor = {kFactor, kFactor, kFactor, kFactor}, term = {kTerm, kTerm, kTerm, kTerm};
  Vector x[kChains];
  for (int i = 0; i < kChains; ++i) {
    const auto f = static_cast<float>(i);
    x[i] = Vector{f, f, f, f};
  }
  for (int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) x[i] = x[i] * factor + term;
  }
  for (int i = 1; i < kChains; ++i) x[0] += x[i];
  return x[0][0];
}

MultiplyAdd widest_multiply_add() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {multiply_add_avx512, 2 * 16 * kChains};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {multiply_add_avx2, 2 * 8 * kChains};
#endif
  return {multiply_add_portable, 2 * 4 * kChains};
}

// The instruction set that the cpu backend runs with here.
std::string cpu_isa() {
  mlaverify_backend_info info = {};
  info.size = sizeof(info);
  for (int32_t i = 0; i < mlaverify_backend_count(); ++i) {
    if (mlaverify_get_backend_info(i, &info) == MLAVERIFY_OK && info.backend == MLAVERIFY_BACKEND_CPU && info.available != 0)
      return info.detail;
  }
  return "";
}

// Null where it has no products of bf16 numbers.
MultiplyAdd bf16_product() {
#if defined(__x86_64__)
  const std::string isa = cpu_isa();
  if (isa == "amx_bf16") return {multiply_bf16_amx, 2 * 16 * 16 * 32 * kTileProducts};
  if (isa == "avx512_bf16") return {multiply_bf16_avx512, 2 * 32 * kChains};
#endif
  return {nullptr, 0};
}

double measure_flops_per_second(const MultiplyAdd &multiply_add, int threads) {
  if (multiply_add.run == nullptr) return 0;
  std::atomic<float> sink(0);  // the compiler must not find the result unused
  const auto steps_on_all = [&](int64_t steps) {
    return [&sink, &multiply_add, steps](int, int) { sink.store(multiply_add.run(steps)); };
  };
  constexpr int64_t probe_steps = 1 << 16;
  constexpr double round_seconds = 0.002;
  const double probe = best_of(20, threads, steps_on_all(probe_steps));
  const int64_t steps = std::max<int64_t>(1, static_cast<int64_t>(round_seconds / probe * probe_steps));
  return static_cast<double>(multiply_add.flops) * static_cast<double>(steps) * threads /
         best_of(80, threads, steps_on_all(steps));
}

// ---- Memory: all threads read a buffer that no cache holds, a slice of it a round, each thread its own part of the slice.

double measure_bytes_per_second(int threads) {
  const int64_t available = available_memory_bytes();
  int64_t bytes = std::max(int64_t{512} << 20, 8 * last_level_cache_bytes());
  if (available > 0) bytes = std::min(bytes, available / 2);
  constexpr int slices = 16;
  const int64_t slice = bytes / 8 / slices;  // numbers
  io::TensorBuffer buffer(DType::f32, {2 * slice * slices});
  auto *data = buffer.data<uint64_t>();
  const auto part_of = [&](int round, int thread) { return data + slice * (round % slices) + slice * thread / threads; };
  // Written by the thread that will read it, so that each part has memory of its own, near that thread.
  run_at_once(threads, [&](int thread) {
    for (int i = 0; i < slices; ++i) std::fill(part_of(i, thread), part_of(i, thread + 1), uint64_t{1});
  });
  std::atomic<uint64_t> sink(0);
  const double seconds = best_of(4 * slices, threads, [&](int round, int thread) {
    sink.fetch_add(std::accumulate(part_of(round, thread), part_of(round, thread + 1), uint64_t{0}));
  });
  return 8.0 * static_cast<double>(slice) / seconds;
}

}  // namespace

Ceilings measure_cpu_ceilings(int threads) {
  Ceilings ceilings;
  ceilings.flops_per_second = measure_flops_per_second(widest_multiply_add(), threads);
  ceilings.bf16_flops_per_second = measure_flops_per_second(bf16_product(), threads);
  ceilings.bytes_per_second = measure_bytes_per_second(threads);
  return ceilings;
}

}  // namespace mlaverify::cli
