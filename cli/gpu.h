// The GPU that bench, tune and plan look at: what it is, and what it can do at most. In a build without CUDA all but
// stated_gpu() throw io::DeviceError, as they do where the device fails.
#pragma once

#include <string>

#include "rules/config_table.h"
#include "work.h"

namespace mlaverify::cli {

constexpr int kGpu = 0;  // the CUDA device that the program uses; CUDA_VISIBLE_DEVICES puts another one in its place

struct GpuInfo {
  std::string name;
  std::string compute_capability;  // "9.0"
  int sms = 0;                     // multiprocessors
  std::string driver;              // version
  std::string clocks;              // at the moment, and limits; as nvidia-smi tells, or the highest where that is not installed
};
GpuInfo gpu_info(int device);

struct GpuCeilings {
  Ceilings ceilings;
  std::string product;  // where the arithmetic ceiling comes from
};

// Measures read bandwidth, and the bf16 matrix product rate where cuBLAS is installed (about a second). Without it the stated
// figure of a card of that architecture stands in.
GpuCeilings measure_gpu_ceilings(int device);

// Captures and replays a graph of a kernel of this program: what a driver does for the first graph of a process is then done.
void replay_first_graph(int device);

// A card of each CUDA architecture of the config table, to plan for where it is not present.
struct StatedGpu {
  const char *card;
  const char *source;
  int sms;
  Ceilings ceilings;
};
StatedGpu stated_gpu(rules::Arch arch);

}  // namespace mlaverify::cli
