// In builds without CUDA: see device_memory.cpp.
#include "io/device_memory.h"

namespace mlaverify::io {
namespace {

[[noreturn]] void fail() { throw DeviceError("this build has no CUDA support"); }

}  // namespace

bool cuda_built() { return false; }

DeviceMemory::DeviceMemory(std::size_t, int) { fail(); }
DeviceMemory::~DeviceMemory() = default;
DeviceMemory::DeviceMemory(DeviceMemory &&) noexcept = default;
DeviceMemory &DeviceMemory::operator=(DeviceMemory &&) noexcept = default;
void DeviceMemory::upload(const void *, std::size_t, std::size_t) { fail(); }
void DeviceMemory::download(void *, std::size_t, std::size_t) const { fail(); }
void DeviceMemory::poison() { fail(); }

void copy_to_host(int, const void *, void *, std::size_t) { fail(); }

DeviceStream::DeviceStream(int) { fail(); }
DeviceStream::~DeviceStream() = default;
void DeviceStream::synchronize() const { fail(); }
double DeviceStream::seconds_of(const std::function<void()> &) const { fail(); }

DeviceStopwatch::DeviceStopwatch(int) { fail(); }
DeviceStopwatch::~DeviceStopwatch() = default;
DeviceStopwatch::DeviceStopwatch(DeviceStopwatch &&) noexcept = default;
void DeviceStopwatch::start(void *) { fail(); }
void DeviceStopwatch::stop(void *) { fail(); }
double DeviceStopwatch::seconds() const { fail(); }

DeviceGraph::DeviceGraph(const DeviceStream &stream, const std::function<void()> &) : stream_(stream) { fail(); }
DeviceGraph::~DeviceGraph() = default;
void DeviceGraph::replay() const { fail(); }

}  // namespace mlaverify::io
