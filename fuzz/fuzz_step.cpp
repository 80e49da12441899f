// A step file of any bytes is refused with a message, or read; then the library refuses its call, or computes it without reading or
// writing outside of its tensors. Input that begins with 'h' is a header, up to its last brace, and tensors: its length is put in front,
// which mutations of the header would else always get wrong.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "io/step.h"
#include "mlaverify/mlaverify.h"

namespace {

// Calls that take longer are only validated.
constexpr double kMaxWork = 1e6;  // rows x keys x width

void compute(const mlaverify::io::Step &step) {
  mlaverify_verify_args args = step.args();
  const double rows = static_cast<double>(step.q.shape()[0]) * static_cast<double>(step.q.shape()[1]);
  const double slots = static_cast<double>(step.kv_cache.shape()[0]) * static_cast<double>(step.kv_cache.shape()[1]);
  std::size_t bytes = 0;
  args.backend = MLAVERIFY_BACKEND_CPU;
  args.num_threads = 1;
  if (step.v_head_dim < 0 || step.v_head_dim > MLAVERIFY_MAX_HEAD_DIM) return;
  mlaverify::io::TensorBuffer out(step.q.dtype(), {step.q.shape()[0], step.q.shape()[1], step.v_head_dim});
  mlaverify::io::TensorBuffer lse(mlaverify::DType::f32, {step.q.shape()[0], step.q.shape()[1]});
  args.out = out.view();
  args.lse = lse.view();
  if (mlaverify_workspace_size(&args, &bytes) != MLAVERIFY_OK || bytes > (std::size_t{1} << 28)) return;
  double keys = 0;  // a table may name a page many times
  for (int64_t b = 0; b < step.seq_lens.shape()[0]; ++b) keys += step.seq_lens.data<int32_t>()[b];
  if (rows * (keys + slots) * static_cast<double>(step.q.shape()[2]) > kMaxWork) return;
  const std::size_t rounded =
      (bytes + MLAVERIFY_WORKSPACE_ALIGNMENT - 1) / MLAVERIFY_WORKSPACE_ALIGNMENT * MLAVERIFY_WORKSPACE_ALIGNMENT;
  args.workspace = std::aligned_alloc(MLAVERIFY_WORKSPACE_ALIGNMENT, rounded);
  args.workspace_bytes = bytes;
  mlaverify_decode_attention_fwd_verify(&args);
  std::free(args.workspace);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, std::size_t size) {
  static const int file = memfd_create("step", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  std::string bytes(reinterpret_cast<const char *>(data), size);
  if (size > 0 && bytes[0] == 'h') {
    const std::size_t brace = bytes.rfind("}}") + 2;  // of the last tensor
    const uint64_t length = brace > size || brace < 2 ? size - 1 : brace - 1;
    bytes.replace(0, 1, reinterpret_cast<const char *>(&length), sizeof(length));
  }
  const auto written = static_cast<ssize_t>(bytes.size());
  if (file < 0 || ftruncate(file, 0) != 0 || pwrite(file, bytes.data(), bytes.size(), 0) != written) std::abort();
  try {
    compute(mlaverify::io::read_step(path));
  } catch (const mlaverify::io::FileError &) {
  }
  return 0;
}
