// A backend: one way to run a call. Each refuses, with a reason, what it cannot do.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "api/status.h"
#include "api/validate.h"
#include "mlaverify/mlaverify.h"

namespace mlaverify {

class Backend {
 public:
  virtual ~Backend() = default;
  virtual mlaverify_backend id() const = 0;
  virtual const char *name() const = 0;
  // Whether it takes tensors in host memory, or those of a device.
  virtual bool on_host() const = 0;

  // Whether it can run on this machine, and with what or why not. INVALID_ARGUMENT: a bad setting in the environment.
  struct Availability {
    Status status;       // ok: available
    std::string detail;  // of what is available
  };
  virtual const Availability &availability() const = 0;

  // Empty if it can do this call (on a machine where it is available), else why not.
  virtual std::string refusal(const Call &call) const = 0;

  virtual std::size_t workspace_bytes(const Call &call) const = 0;
  virtual Status run(const Call &call) const = 0;
  // Makes everything that `run` may need ready for these tensors, whatever the lengths, row counts and splits.
  virtual Status warmup(const Call &call, const int32_t *qlens, int32_t num_qlens) const = 0;
};

// In order of preference, the reference last.
const std::vector<const Backend *> &backend_list();

// The backend for a call, or why there is none: UNSUPPORTED with each backend's reason.
Status choose_backend(const Call &call, const Backend **backend);

const Backend &cuda_backend();  // in builds with CUDA
const Backend &cpu_backend();
const Backend &reference_backend();

}  // namespace mlaverify
