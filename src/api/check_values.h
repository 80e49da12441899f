// What is checked beyond validate(): the values of lengths and page ids. Host backends always do, the cuda backend in checked mode.
#pragma once

#include <string>

#include "api/status.h"
#include "api/validate.h"
#include "rules/problem.h"

namespace mlaverify {

// `problem` points to host memory. INVALID_VALUE for a negative length, a block table narrower than the keys that some row sees, or a page id outside the cache
// among the pages that some row sees. Nothing beyond these is looked at.
Status check_values(const Problem &problem);

// Empty if the call's tensors are in host memory, else why a host backend refuses it.
std::string host_only_refusal(const Call &call);

}  // namespace mlaverify
