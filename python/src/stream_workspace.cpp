#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "workspace.h"

namespace mlaverify_python {
namespace {

struct Piece {
  mlaverify_device device;
  void *stream;
  std::mutex busy;
  void *data = nullptr;
  std::size_t bytes = 0;
};

// In order of the last use. Never freed: the driver may be gone before the process's last destructors.
struct Pieces {
  std::mutex busy;
  std::vector<std::shared_ptr<Piece>> list;
};
Pieces &pieces() {
  static auto *all = new Pieces;
  return *all;
}
constexpr std::size_t kMostPieces = 16;  // a program may make a new stream for each call

void check(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(std::string("workspace: ") + what + ": " + cudaGetErrorString(error));
}

class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    check(cudaSetDevice(device), "cudaSetDevice");
  }
  ~CurrentDevice() { cudaSetDevice(before_); }
  CurrentDevice(const CurrentDevice &) = delete;
  CurrentDevice &operator=(const CurrentDevice &) = delete;

 private:
  int before_ = 0;
};

std::shared_ptr<Piece> piece_of(mlaverify_device device, void *stream) {
  Pieces &all = pieces();
  const std::lock_guard<std::mutex> lock(all.busy);
  auto &list = all.list;
  const auto found =
      std::find_if(list.begin(), list.end(), [&](const auto &p) { return p->stream == stream && p->device == device; });
  if (found != list.end()) {
    std::rotate(list.begin(), found, found + 1);
  } else {
    // Those that no call has at the moment, the oldest first. (All may be in use: then there are more for a while.)
    for (auto i = list.size(); i-- > 0 && list.size() >= kMostPieces;) {
      if (list[i].use_count() > 1) continue;
      const CurrentDevice current(list[i]->device);
      check(cudaFree(list[i]->data), "cudaFree");  // waits for the device, and so for its last call
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
    }
    auto piece = std::make_shared<Piece>();
    piece->device = device;
    piece->stream = stream;
    list.insert(list.begin(), piece);
  }
  return list.front();
}

}  // namespace

bool with_cuda() { return true; }

bool is_capturing(void *stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) != cudaSuccess) {
    cudaGetLastError();  // a stream that is none: the call itself says so
    return false;
  }
  return status != cudaStreamCaptureStatusNone;
}

StreamWorkspace::StreamWorkspace(mlaverify_device device, void *stream, std::size_t bytes) {
  const std::shared_ptr<Piece> piece = piece_of(device, stream);
  piece_ = piece;
  lock_ = std::unique_lock<std::mutex>(piece->busy);
  if (piece->bytes < bytes) {
    const CurrentDevice current(device);
    const auto queue = static_cast<cudaStream_t>(stream);
    if (piece->data != nullptr) check(cudaFreeAsync(piece->data, queue), "cudaFreeAsync");  // after the calls before
    piece->data = nullptr;
    piece->bytes = 0;
    check(cudaMallocAsync(&piece->data, bytes, queue), "cudaMallocAsync");
    piece->bytes = bytes;
  }
  data_ = piece->data;
}

}  // namespace mlaverify_python
