#include "generate/buffer.h"

#include <cstring>
#include <new>

#include "rules/hd.h"

namespace mlaverify::generate {

void Buffer::grow(std::size_t bytes) {
  if (data_ != nullptr && bytes <= bytes_) return;
  if (data_ != nullptr && moved_) moved_();
  data_ = nullptr;  // what there was is given back before more is asked for
  if (device_ == MLAVERIFY_HOST) {
    constexpr std::size_t alignment = MLAVERIFY_WORKSPACE_ALIGNMENT;
    bytes = rules::round_up(rules::max<std::size_t>(bytes, 1), alignment);
    host_.reset();
    host_.reset(std::aligned_alloc(alignment, bytes));
    if (!host_) throw std::bad_alloc();
    std::memset(host_.get(), 0xff, bytes);
    data_ = host_.get();
  } else {
    gpu_ = io::DeviceMemory();
    gpu_ = io::DeviceMemory(bytes, device_);
    gpu_.poison();
    data_ = gpu_.data();
  }
  bytes_ = bytes;
}

void Buffer::upload(const void *from, std::size_t bytes) {
  if (device_ == MLAVERIFY_HOST) {
    std::memcpy(data_, from, bytes);
  } else {
    gpu_.upload(from, bytes);
  }
}

void copy_to_host(mlaverify_device device, const void *from, void *to, std::size_t bytes) {
  if (device == MLAVERIFY_HOST) {
    std::memcpy(to, from, bytes);
  } else {
    io::copy_to_host(device, from, to, bytes);
  }
}

}  // namespace mlaverify::generate
