#include "gpu.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "backend_option.h"
#include "backends/launch_facts.h"
#include "gpu_kernels.h"
#include "io/cublas.h"
#include "io/device_memory.h"

namespace mlaverify::cli {
namespace {

void demand(cudaError_t error, const char *what) {
  if (error != cudaSuccess) throw io::DeviceError(std::string(what) + ": " + cudaGetErrorString(error));
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  demand(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

// The first line that nvidia-smi prints for `fields` of the card at `bus_id`; "" where it is not installed.
std::string nvidia_smi(const std::string &fields, const std::string &bus_id) {
  const std::string command = "nvidia-smi --query-gpu=" + fields + " --format=csv,noheader -i " + bus_id + " 2>/dev/null";
  const std::unique_ptr<std::FILE, int (*)(std::FILE *)> pipe(popen(command.c_str(), "r"), pclose);
  char line[512] = "";
  if (!pipe || std::fgets(line, sizeof line, pipe.get()) == nullptr) return "";
  std::string text = line;
  text.erase(text.find_last_not_of(" \n") + 1);
  return text;
}

// The fastest of `rounds` runs. Each follows on another one, which keeps the device busy while the host submits it.
double best_of(int rounds, const io::DeviceStream &stream, const std::function<void()> &enqueue) {
  double best = 0;
  for (int i = 0; i < rounds; ++i) {
    enqueue();
    const double seconds = stream.seconds_of(enqueue);
    best = i == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

double measure_bytes_per_second(int device, const io::DeviceStream &stream) {
  constexpr int64_t bytes = int64_t{2} << 30;  // no L2 cache holds a part of it that matters
  io::DeviceMemory data(bytes, device), sink(16, device);
  data.poison();
  const int sms = attribute(cudaDevAttrMultiProcessorCount, device);
  const auto read = [&] {
    demand(read_all(data.data(), bytes, sms, sink.data(), static_cast<cudaStream_t>(stream.handle())), "read kernel");
  };
  return static_cast<double>(bytes) / best_of(30, stream, read);
}

// A burst: the best single product, before power limits set in.
double measure_flops_per_second(int device, const io::DeviceStream &stream, const io::Cublas &cublas) {
  constexpr int64_t n = 8192;
  constexpr std::size_t bytes = std::size_t{2} * n * n;
  const io::DeviceMemory a(bytes, device), b(bytes, device), c(bytes, device);
  const auto s = static_cast<cudaStream_t>(stream.handle());
  demand(fill_random_bf16(a.data(), n * n, 1, s), "fill kernel");
  demand(fill_random_bf16(b.data(), n * n, 2, s), "fill kernel");
  const io::Cublas::Product product = {1, n, n, n, a.data(), b.data(), n, 0, c.data(), n, 0};
  const double seconds = best_of(12, stream, [&] { cublas.multiply(product, io::Cublas::Numbers::bf16); });
  return 2.0 * n * n * n / seconds;
}

}  // namespace

GpuInfo gpu_info(int device) {
  cudaDeviceProp properties;
  demand(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  int driver = 0;
  demand(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  char bus_id[32] = "";
  demand(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device), "cudaDeviceGetPCIBusId");

  GpuInfo info;
  info.name = properties.name;
  info.compute_capability = fmt::format("{}.{}", properties.major, properties.minor);
  info.sms = properties.multiProcessorCount;
  info.driver = nvidia_smi("driver_version", bus_id);
  const std::string cuda = fmt::format("CUDA {}.{}", driver / 1000, driver % 1000 / 10);
  info.driver += info.driver.empty() ? cuda : " (" + cuda + ")";
  info.clocks = nvidia_smi("clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,power.limit", bus_id);
  if (info.clocks.empty()) {
    info.clocks = fmt::format("SM at most {} MHz, memory {} MHz", attribute(cudaDevAttrClockRate, device) / 1000,
                              attribute(cudaDevAttrMemoryClockRate, device) / 1000);
  } else {
    info.clocks += " (SM now, highest; memory now, highest; power limit)";
  }
  return info;
}

GpuCeilings measure_gpu_ceilings(int device) {
  demand(cudaSetDevice(device), "cudaSetDevice");
  const io::DeviceStream stream(device);
  GpuCeilings c;
  c.ceilings.bytes_per_second = measure_bytes_per_second(device, stream);
  io::Cublas cublas;
  if (cublas.usable()) {
    cublas.set_stream(stream);
    c.ceilings.flops_per_second = measure_flops_per_second(device, stream, cublas);
    c.product = cublas.version();
    return c;
  }
  GpuKind kind;
  if (const Status s = gpu_kind(device, &kind); !s.ok()) throw io::DeviceError(s.message);
  const StatedGpu stated = stated_gpu(kind.arch);
  c.ceilings.flops_per_second = stated.ceilings.flops_per_second;
  c.product = fmt::format("no cuBLAS here: the figure of {}, {}", stated.card, stated.source);
  return c;
}

void replay_first_graph(int device) {
  constexpr int64_t count = 1024;
  const io::DeviceStream stream(device);
  const io::DeviceMemory data(2 * count, device);
  const auto fill = [&] {
    demand(fill_random_bf16(data.data(), count, 1, static_cast<cudaStream_t>(stream.handle())), "fill kernel");
  };
  fill();  // loads it
  const io::DeviceGraph graph(stream, fill);
  graph.replay();
  stream.synchronize();
}

}  // namespace mlaverify::cli
