#include "cuda/checked.h"

#include <string>
#include <vector>

#include "api/check_values.h"

namespace mlaverify::cuda {

Status check_device_values(const Problem &p, cudaStream_t stream) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  cudaError_t error = cudaStreamIsCapturing(stream, &capturing);
  if (error == cudaSuccess && capturing != cudaStreamCaptureStatusNone) {
    return {MLAVERIFY_ERR_UNSUPPORTED,
            "flags: MLAVERIFY_FLAG_CHECKED reads lengths and page ids back, which a stream that is being captured cannot do"};
  }
  const auto batch = static_cast<std::size_t>(p.batch), width = static_cast<std::size_t>(p.table_width);
  std::vector<int32_t> seq_lens(batch), real_seq_lens(p.real_seq_lens != nullptr ? batch : 0), table(batch * width);
  const auto copy = [&](int32_t *to, const int32_t *from, std::size_t count) {
    if (error == cudaSuccess && count > 0) error = cudaMemcpyAsync(to, from, count * 4, cudaMemcpyDeviceToHost, stream);
  };
  copy(seq_lens.data(), p.seq_lens, seq_lens.size());
  copy(real_seq_lens.data(), p.real_seq_lens, real_seq_lens.size());
  for (std::size_t b = 0; b < batch; ++b)  // a row at a time: rows may lie anywhere, even on each other
    copy(table.data() + b * width, p.block_table + static_cast<int64_t>(b) * p.table_row_stride, width);
  const cudaError_t waited = cudaStreamSynchronize(stream);  // in any case: the copies write to vectors that go away
  if (error == cudaSuccess) error = waited;
  if (error != cudaSuccess)
    return {MLAVERIFY_ERR_DEVICE, std::string("reading lengths and page ids: ") + cudaGetErrorString(error)};

  Problem host = p;
  host.seq_lens = seq_lens.data();
  if (p.real_seq_lens != nullptr) host.real_seq_lens = real_seq_lens.data();
  host.block_table = table.data();
  host.table_row_stride = p.table_width;
  return check_values(host);
}

}  // namespace mlaverify::cuda
