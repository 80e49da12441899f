// No allocation on the call path: after a warmup and a first call, calls leave the heap alone.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "support/test_call.h"

namespace {
std::atomic<long> allocations{0};
}

#if defined(__SANITIZE_ADDRESS__)
// The sanitizer owns malloc, and tells.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void *, size_t),
                                                         void (*)(const volatile void *));
namespace {
const int installed = __sanitizer_install_malloc_and_free_hooks([](const volatile void *, size_t) { ++allocations; },
                                                                [](const volatile void *) {});
}
#else
// Every allocation of the process comes through here, those of the OpenMP runtime included.
extern "C" {
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void *malloc(size_t n) { return ++allocations, __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return ++allocations, __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return ++allocations, __libc_realloc(p, n); }
void *aligned_alloc(size_t alignment, size_t n) { return ++allocations, __libc_memalign(alignment, n); }
void *memalign(size_t alignment, size_t n) { return ++allocations, __libc_memalign(alignment, n); }
}
#endif

namespace mlaverify::test {
namespace {

void expect_none(mlaverify_backend backend, int32_t threads) {
  TestCase c;
  c.lens = {2000, 5, 0};
  c.heads = 8;
  TestCall call(c);
  call.args.backend = backend;
  call.args.num_threads = threads;
  const int32_t qlens[] = {2};
  ASSERT_EQ(mlaverify_warmup_decode_attention_fwd_verify(&call.args, qlens, 1), MLAVERIFY_OK) << mlaverify_last_error();
  ASSERT_EQ(call.run(), "");
  const long before = allocations;
  for (int repeat = 0; repeat < 5; ++repeat) mlaverify_decode_attention_fwd_verify(&call.args);
  const long after = allocations;
  EXPECT_EQ(after - before, 0) << threads << " threads";
  EXPECT_EQ(call.mismatch(), "");
}

TEST(Allocation, AreCounted) {
  const long before = allocations;
  void *volatile p = std::malloc(10);  // volatile: it cannot be left out
  std::free(p);
  EXPECT_GT(allocations, before);
}

TEST(Allocation, NoneInACall) {
  for (const int32_t threads : {1, 2, 0}) expect_none(MLAVERIFY_BACKEND_CPU, threads);
}

TEST(Allocation, NoneWhereTheLibraryChoosesTheBackend) { expect_none(MLAVERIFY_BACKEND_AUTO, 1); }

}  // namespace
}  // namespace mlaverify::test
