#include "api/status.h"

namespace mlaverify {

const char *status_name(mlaverify_status code) {
  switch (code) {
    case MLAVERIFY_OK: return "MLAVERIFY_OK";
    case MLAVERIFY_ERR_INVALID_ARGUMENT: return "MLAVERIFY_ERR_INVALID_ARGUMENT";
    case MLAVERIFY_ERR_INVALID_VALUE: return "MLAVERIFY_ERR_INVALID_VALUE";
    case MLAVERIFY_ERR_UNSUPPORTED: return "MLAVERIFY_ERR_UNSUPPORTED";
    case MLAVERIFY_ERR_WORKSPACE: return "MLAVERIFY_ERR_WORKSPACE";
    case MLAVERIFY_ERR_DEVICE: return "MLAVERIFY_ERR_DEVICE";
    case MLAVERIFY_ERR_INTERNAL: return "MLAVERIFY_ERR_INTERNAL";
    default: return "unknown status";
  }
}

}  // namespace mlaverify
