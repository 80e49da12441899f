// OpenMP's threads and fork(): the child has none of them, does not know it, and would wait for them for ever.
#pragma once

namespace mlaverify_python {

// Called before work that may start them.
void threads_started();

// Whether this process was forked from one that had them: a call must then keep to one thread.
bool lost_in_fork();

}  // namespace mlaverify_python
