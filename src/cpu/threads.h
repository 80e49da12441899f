// Threads of the CPU backend: the caller's where it gives some, else OpenMP where the library is built with it, else the calling thread.
#pragma once

#include <cstdint>

#include "mlaverify/mlaverify.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace mlaverify::cpu {

// What a call says about its threads.
struct Threads {
  int32_t requested;                    // 0: the OpenMP default
  mlaverify_parallel_for parallel_for;  // null: none of the caller's
  void *context;

  // That the call may use at most. The workspace is sized by it, so it must not depend on the calling thread's OpenMP settings or affinity:
  // the processors are counted once.
  int32_t limit() const {
    if (parallel_for != nullptr) return requested;
#if defined(_OPENMP)
    static const int32_t processors = omp_get_num_procs();
    return requested > 0 ? requested : processors;
#else
    return 1;
#endif
  }

  // To use now, within the limit.
  int32_t now() const {
#if defined(_OPENMP)
    if (requested == 0) return limit() < omp_get_max_threads() ? limit() : omp_get_max_threads();
#endif
    return limit();
  }

  // Calls work(i) for i in 0 ... n-1, at the same time where n threads are granted, and returns when all are done. `work` must not throw.
  template <class Work>
  void in_parallel(int32_t n, Work work) const {
    if (n > 1 && parallel_for != nullptr) {
      parallel_for(
          context, n, [](void *w, int32_t i) { (*static_cast<Work *>(w))(i); }, &work);
      return;
    }
#if defined(_OPENMP)
    if (n > 1) {
#pragma omp parallel for num_threads(n) schedule(static, 1)
      for (int32_t i = 0; i < n; ++i) work(i);
      return;
    }
#endif
    for (int32_t i = 0; i < n; ++i) work(i);
  }
};

}  // namespace mlaverify::cpu
