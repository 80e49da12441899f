// The reference backend: every row by the float64 oracle.
#include <vector>

#include "api/check_values.h"
#include "backends/backend.h"
#include "oracle/oracle.h"
#include "rules/number.h"
#include "rules/pack.h"

namespace mlaverify {
namespace {

class ReferenceBackend final : public Backend {
 public:
  mlaverify_backend id() const override { return MLAVERIFY_BACKEND_REFERENCE; }
  const char *name() const override { return "reference"; }
  bool on_host() const override { return true; }
  const Availability &availability() const override {
    static const Availability a = {{}, "float64, one row at a time"};
    return a;
  }
  std::string refusal(const Call &call) const override { return host_only_refusal(call); }
  std::size_t workspace_bytes(const Call &) const override { return 0; }

  Status run(const Call &call) const override {
    const Problem &p = call.problem;
    if (Status s = check_values(p); !s.ok()) return s;
    Oracle oracle(p);
    std::vector<double> out(static_cast<std::size_t>(p.v_dim));
    for (int32_t request = 0; request < p.batch; ++request) {
      for (int64_t r = 0; r < rules::request_rows(p, request); ++r) {
        const rules::Row row = rules::unpack_row(r, p.num_heads);
        const double lse = oracle.row(request, row.token, row.head, out.data());
        const int64_t at = rules::out_offset(p, request, row);
        for (int32_t c = 0; c < p.v_dim; ++c)
          rules::store_float(p.q_dtype, p.out, at + c, static_cast<float>(out[static_cast<std::size_t>(c)]));
        p.lse[rules::lse_offset(p, request, row)] = static_cast<float>(lse);
      }
    }
    return {};
  }

  Status warmup(const Call &, const int32_t *, int32_t) const override { return {}; }
};

}  // namespace

const Backend &reference_backend() {
  static const ReferenceBackend backend;
  return backend;
}

}  // namespace mlaverify
