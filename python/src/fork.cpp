#include "fork.h"

#include <pthread.h>

#include <atomic>

namespace mlaverify_python {
namespace {

std::atomic<bool> started{false}, lost{false};

void in_child() { lost = started.load(); }

}  // namespace

void threads_started() {
  static const int registered = pthread_atfork(nullptr, nullptr, in_child);
  static_cast<void>(registered);
  started = true;
}

bool lost_in_fork() { return lost; }

}  // namespace mlaverify_python
