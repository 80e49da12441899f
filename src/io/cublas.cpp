#include "io/cublas.h"

#include <dlfcn.h>

namespace mlaverify::io {

template <class F>
bool Cublas::load(void *library, const char *name, F **function) {
  *function = reinterpret_cast<F *>(dlsym(library, name));
  if (*function == nullptr) missing_ = std::string("cuBLAS has no ") + name;
  return *function != nullptr;
}

Cublas::Cublas() {
  if (!cuda_built()) {
    missing_ = "this build has no CUDA support";
    return;
  }
  void *library = nullptr;  // stays loaded: it may have started threads
  for (const char *name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so", "/usr/local/cuda/lib64/libcublas.so"}) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    missing_ =
        "libcublas.so.13 and libcublas.so.12 are neither where the system looks for libraries nor in /usr/local/cuda/lib64";
    return;
  }
  const bool complete =
      load(library, "cublasCreate_v2", &create_) && load(library, "cublasDestroy_v2", &destroy_) &&
      load(library, "cublasSetStream_v2", &set_stream_) && load(library, "cublasSetWorkspace_v2", &set_workspace_) &&
      load(library, "cublasGetVersion_v2", &get_version_) && load(library, "cublasGemmStridedBatchedEx", &gemm_);
  if (!complete) return;
  if (const int status = create_(&handle_); status != 0) {
    handle_ = nullptr;
    missing_ = "cublasCreate: status " + std::to_string(status);
  }
}

Cublas::~Cublas() {
  if (handle_ != nullptr) destroy_(handle_);
}

std::string Cublas::version() const {
  int version = 0;
  get_version_(handle_, &version);
  return "cuBLAS " + std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100);
}

void Cublas::set_stream(const DeviceStream &stream) {
  constexpr std::size_t workspace_bytes = std::size_t{32} << 20;  // what its documentation asks for on Hopper
  if (workspace_.bytes() == 0) workspace_ = DeviceMemory(workspace_bytes, stream.device());
  const auto demand = [](int status, const char *what) {
    if (status != 0) throw DeviceError(std::string(what) + ": status " + std::to_string(status));
  };
  demand(set_stream_(handle_, stream.handle()), "cublasSetStream");  // (takes the workspace away)
  demand(set_workspace_(handle_, workspace_.data(), workspace_.bytes()), "cublasSetWorkspace");
}

void Cublas::multiply(const Product &p, Numbers numbers) const {
  // Numbers of its headers. It counts columns first: our rows are its columns, and weights are transposed.
  constexpr int transposed = 1, plain = 0, type_f32 = 0, type_bf16 = 14, compute_f32 = 68, compute_f32_pedantic = 69;
  constexpr int default_algorithm = -1;
  const int type = numbers == Numbers::f32 ? type_f32 : type_bf16;
  const int compute = numbers == Numbers::f32 ? compute_f32_pedantic : compute_f32;
  const float one = 1, zero = 0;
  const int status =
      gemm_(handle_, transposed, plain, static_cast<int>(p.outputs), static_cast<int>(p.rows), static_cast<int>(p.inputs), &one,
            p.weights, type, static_cast<int>(p.inputs), p.outputs * p.inputs, p.x, type, static_cast<int>(p.x_row_stride),
            p.x_batch_stride, &zero, p.out, type, static_cast<int>(p.out_row_stride), p.out_batch_stride,
            static_cast<int>(p.batch), compute, default_algorithm);
  if (status != 0) throw DeviceError("cublasGemmStridedBatchedEx: status " + std::to_string(status));
}

}  // namespace mlaverify::io
