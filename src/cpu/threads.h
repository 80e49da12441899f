// Threads of the CPU backend: OpenMP where the library is built with it, else the calling thread.
#pragma once

#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace mlaverify::cpu {

// Threads that a call may use at most when it asks for `requested` (0: the OpenMP default). The workspace is sized by it, so it
// must not depend on the calling thread's OpenMP settings or affinity: the processors are counted once.
inline int32_t thread_limit(int32_t requested) {
#if defined(_OPENMP)
  static const int32_t processors = omp_get_num_procs();
  return requested > 0 ? requested : processors;
#else
  (void)requested;
  return 1;
#endif
}

// Threads to use now, within the limit.
inline int32_t threads_now(int32_t requested) {
#if defined(_OPENMP)
  const int32_t limit = thread_limit(requested);
  return requested > 0 || limit < omp_get_max_threads() ? limit : omp_get_max_threads();
#else
  (void)requested;
  return 1;
#endif
}

// Calls work(i) for i in 0 ... n-1, at the same time where the runtime grants n threads, and returns when all are done. `work`
// must not throw.
template <class Work>
void in_parallel(int32_t n, Work work) {
#if defined(_OPENMP)
  if (n > 1) {
#pragma omp parallel for num_threads(n) schedule(static, 1)
    for (int32_t i = 0; i < n; ++i) work(i);
    return;
  }
#endif
  for (int32_t i = 0; i < n; ++i) work(i);
}

}  // namespace mlaverify::cpu
