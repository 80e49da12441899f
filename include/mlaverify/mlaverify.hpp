// mlaverify.hpp: a thin C++17 layer over mlaverify.h: typed views, exceptions instead of status codes, default arguments.
// Header only; the rules, shapes and errors of mlaverify.h hold here too.
#ifndef MLAVERIFY_HPP
#define MLAVERIFY_HPP

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "mlaverify/mlaverify.h"

namespace mlaverify {
inline namespace v0 {  // keeps these inline functions apart from the symbols of a static library

// Element types without a counterpart in C++17: their bits.
struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};
struct f8_e4m3 {
  uint8_t bits;
};
struct f8_e5m2 {
  uint8_t bits;
};
// One of the 656 bytes of a record: a cache of records is viewed as [..., 656] of these.
struct f8_ds_mla {
  uint8_t bits;
};

// The library's dtype number of an element type.
template <class T>
constexpr mlaverify_dtype dtype_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>) return MLAVERIFY_F32;
  if constexpr (std::is_same_v<U, f16>) return MLAVERIFY_F16;
  if constexpr (std::is_same_v<U, bf16>) return MLAVERIFY_BF16;
  if constexpr (std::is_same_v<U, f8_e4m3>) return MLAVERIFY_F8_E4M3;
  if constexpr (std::is_same_v<U, f8_e5m2>) return MLAVERIFY_F8_E5M2;
  if constexpr (std::is_same_v<U, f8_ds_mla>) return MLAVERIFY_F8_DS_MLA;
  if constexpr (std::is_same_v<U, int32_t>) return MLAVERIFY_I32;
  static_assert(std::is_same_v<U, float> || std::is_same_v<U, f16> || std::is_same_v<U, bf16> || std::is_same_v<U, f8_e4m3> ||
                    std::is_same_v<U, f8_e5m2> || std::is_same_v<U, f8_ds_mla> || std::is_same_v<U, int32_t>,
                "no tensor has this element type");
}

// What every function here throws on failure: what() is the library's message, status() its code.
class error : public std::runtime_error {
 public:
  error(mlaverify_status code, const std::string &message) : std::runtime_error(message), status_(code) {}
  mlaverify_status status() const noexcept { return status_; }

 private:
  mlaverify_status status_;
};

inline void throw_on_error(mlaverify_status status) {
  if (status != MLAVERIFY_OK) throw error(status, mlaverify_last_error());
}

// A view of the caller's memory: shape, and strides in elements (contiguous if none are given). Throws INVALID_ARGUMENT for
// more than 4 dimensions or strides of another rank. The library writes through views of outputs only.
template <class T>
mlaverify_tensor view(T *data, std::initializer_list<int64_t> shape, std::initializer_list<int64_t> strides = {},
                      mlaverify_device device = MLAVERIFY_HOST) {
  if (shape.size() > 4 || (strides.size() != 0 && strides.size() != shape.size())) {
    throw error(MLAVERIFY_ERR_INVALID_ARGUMENT, "view: got " + std::to_string(shape.size()) + " sizes and " +
                                                    std::to_string(strides.size()) +
                                                    " strides, must be at most 4 and as many or none");
  }
  mlaverify_tensor t = {};
  t.data = const_cast<std::remove_cv_t<T> *>(data);
  t.dtype = dtype_of<T>();
  t.device = device;
  t.ndim = static_cast<int32_t>(shape.size());
  int64_t contiguous = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    t.shape[i] = shape.begin()[i];
    t.strides[i] = strides.size() != 0 ? strides.begin()[i] : contiguous;
    contiguous *= t.shape[i];
  }
  return t;
}

// Arguments with their size set and everything else 0.
inline mlaverify_verify_args make_args() {
  mlaverify_verify_args args = {};
  args.size = sizeof(args);
  return args;
}

inline void decode_attention_fwd_verify(const mlaverify_verify_args &args) {
  throw_on_error(mlaverify_decode_attention_fwd_verify(&args));
}

// Bytes.
inline std::size_t workspace_size(const mlaverify_verify_args &args) {
  std::size_t bytes = 0;
  throw_on_error(mlaverify_workspace_size(&args, &bytes));
  return bytes;
}

inline void warmup_decode_attention_fwd_verify(const mlaverify_verify_args &args, const std::vector<int32_t> &qlens) {
  throw_on_error(mlaverify_warmup_decode_attention_fwd_verify(&args, qlens.data(), static_cast<int32_t>(qlens.size())));
}

inline mlaverify_verify_config select_verify_config(int32_t batch, int32_t qlen, int32_t num_heads,
                                                    mlaverify_device device = MLAVERIFY_HOST, const char *arch = nullptr) {
  mlaverify_verify_config config = {};
  config.size = sizeof(config);
  throw_on_error(mlaverify_select_verify_config(batch, qlen, num_heads, device, arch, &config));
  return config;
}

inline int32_t verify_num_kv_splits(int64_t max_seq_len, int64_t batch, int32_t qlen, int32_t num_heads, int32_t sm_count,
                                    int32_t block_h, double occupancy = 1.0, int32_t min_work_per_split = 64,
                                    int32_t max_splits = 8) {
  const int32_t n = mlaverify_verify_num_kv_splits(max_seq_len, batch, qlen, num_heads, sm_count, block_h, occupancy,
                                                   min_work_per_split, max_splits);
  if (n == 0) throw error(MLAVERIFY_ERR_INVALID_ARGUMENT, mlaverify_last_error());
  return n;
}

inline std::string version() { return mlaverify_version(); }

// Backends in order of preference, unavailable ones included.
inline std::vector<mlaverify_backend_info> backends() {
  std::vector<mlaverify_backend_info> list(static_cast<std::size_t>(mlaverify_backend_count()));
  for (std::size_t i = 0; i < list.size(); ++i) {
    list[i].size = sizeof(list[i]);
    throw_on_error(mlaverify_get_backend_info(static_cast<int32_t>(i), &list[i]));
  }
  return list;
}

}  // namespace v0
}  // namespace mlaverify

#endif
