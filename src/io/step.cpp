#include "io/step.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "rules/row.h"

namespace mlaverify::io {
namespace {

// The metadata without which bytes are no cache.
constexpr const char *kCacheType = "kv_cache_dtype", *kRecords = "fp8_ds_mla";

// The contents of one step file, taken out by name.
class Fields {
 public:
  explicit Fields(const std::string &path) : path_(path), file_(read_safetensors(path)) {}

  // The tensor `name`, of one of `types` and `ranks`; an absent one (default-constructed) if it is optional and missing.
  TensorBuffer tensor(const char *name, std::initializer_list<DType> types, std::initializer_list<std::size_t> ranks,
                      bool optional = false) {
    const auto other = file_.other_tensors.find(name);
    if (other != file_.other_tensors.end()) wrong_type(name, other->second, types);
    const auto it = file_.tensors.find(name);
    if (it == file_.tensors.end()) {
      if (optional) return TensorBuffer();
      throw FileError(path_, std::string("tensor ") + name + " is missing");
    }
    if (std::find(types.begin(), types.end(), it->second.dtype()) == types.end()) {
      wrong_type(name, safetensors_name(it->second.dtype()), types);
    }
    const std::size_t rank = it->second.shape().size();
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
      std::string want;
      for (std::size_t r : ranks) want += (want.empty() ? "" : " or ") + std::to_string(r);
      throw FileError(path_,
                      std::string("tensor ") + name + " has " + std::to_string(rank) + " dimensions, should have " + want);
    }
    return std::move(it->second);
  }

  // The cache, with the metadata that says what its bytes are.
  TensorBuffer cache() {
    TensorBuffer cache =
        tensor("kv_cache", {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::f8_ds_mla}, {3, 4});
    const std::string type = text(kCacheType);
    if (!type.empty() && type != kRecords) {
      throw FileError(path_, std::string("metadata ") + kCacheType + " is " + quote(type) + ", should be \"" + kRecords +
                                 "\" with a U8 kv_cache, and absent with others");
    }
    if (rules::is_record(cache.dtype()) && type.empty()) {
      throw FileError(path_, std::string("tensor kv_cache is U8, but metadata ") + kCacheType + " is missing, should be \"" +
                                 kRecords + "\"");
    }
    if (!rules::is_record(cache.dtype()) && !type.empty()) {
      throw FileError(path_, std::string("tensor kv_cache is ") + safetensors_name(cache.dtype()) +
                                 ", should be U8 since metadata " + kCacheType + " is \"" + kRecords + "\"");
    }
    return cache;
  }

  std::string text(const char *name) const {
    const auto it = file_.metadata.find(name);
    return it == file_.metadata.end() ? "" : it->second;
  }

  int32_t integer(const char *name) const {
    const std::string value = required(name);
    int32_t x = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), x);
    if (error != std::errc() || end != value.data() + value.size()) {
      throw FileError(path_, std::string("metadata ") + name + " is " + quote(value) + ", should be an integer of 32 bits");
    }
    return x;
  }
  int32_t integer(const char *name, int32_t otherwise) const {
    return file_.metadata.count(name) == 0 ? otherwise : integer(name);
  }

  // Any float, infinity and NaN included.
  float number(const char *name) const {
    const std::string value = required(name);
    char *end = nullptr;
    errno = 0;
    const float x = std::strtof(value.c_str(), &end);
    const bool whole =
        !value.empty() && std::isspace(static_cast<unsigned char>(value[0])) == 0 && end == value.c_str() + value.size();
    if (!whole || (errno == ERANGE && std::isinf(x))) {
      throw FileError(path_, std::string("metadata ") + name + " is " + quote(value) + ", should be a number (a 32-bit float)");
    }
    return x;
  }

 private:
  std::string required(const char *name) const {
    const auto it = file_.metadata.find(name);
    if (it == file_.metadata.end()) throw FileError(path_, std::string("metadata ") + name + " is missing");
    return it->second;
  }
  [[noreturn]] void wrong_type(const char *name, const std::string &got, std::initializer_list<DType> types) const {
    std::string want;
    for (DType t : types) want += (want.empty() ? "" : ", ") + std::string(safetensors_name(t));
    throw FileError(path_,
                    std::string("tensor ") + name + " is " + got + ", should be " + (types.size() > 1 ? "one of " : "") + want);
  }

  const std::string path_;
  SafetensorsFile file_;
};

void demand_shape(const std::string &path, const char *name, const TensorBuffer &tensor, const std::vector<int64_t> &want) {
  if (!tensor || tensor.shape() == want) return;
  const auto text = [](const std::vector<int64_t> &shape) {
    std::string s;
    for (int64_t n : shape) s += (s.empty() ? "[" : ", ") + std::to_string(n);
    return s + "]";
  };
  throw FileError(path, std::string("tensor ") + name + " is " + text(tensor.shape()) + ", should be " + text(want));
}

}  // namespace

mlaverify_verify_args Step::args() const {
  mlaverify_verify_args args = {};
  args.size = sizeof(args);
  args.q = q.view();
  args.kv_cache = kv_cache.view();
  args.block_table = block_table.view();
  args.seq_lens = seq_lens.view();
  args.real_seq_lens = real_seq_lens.view();
  args.k_scale = k_scale.view();
  args.out = args.lse = args.q_indptr = TensorBuffer().view();
  args.v_head_dim = v_head_dim;
  args.qlen = qlen;
  args.page_size = page_size;
  args.num_kv_splits = num_kv_splits;
  args.sm_scale = sm_scale;
  return args;
}

Step read_step(const std::string &path) {
  Fields fields(path);
  Step step;
  step.q = fields.tensor("q", {DType::f32, DType::f16, DType::bf16}, {3});
  step.kv_cache = fields.cache();
  step.block_table = fields.tensor("block_table", {DType::i32}, {2});
  step.seq_lens = fields.tensor("seq_lens", {DType::i32}, {1});
  step.real_seq_lens = fields.tensor("real_seq_lens", {DType::i32}, {1}, true);
  step.k_scale = fields.tensor("k_scale", {DType::f32}, {0, 1}, true);
  step.o = fields.tensor("o", {DType::f32, step.q.dtype()}, {3}, true);
  step.lse = fields.tensor("lse", {DType::f32}, {2}, true);
  step.qlen = fields.integer("qlen");
  step.page_size = fields.integer("page_size");
  step.v_head_dim = fields.integer("v_head_dim");
  step.num_kv_splits = fields.integer("num_kv_splits", 0);
  step.sm_scale = fields.number("sm_scale");
  step.note = fields.text("note");
  // The library never sees the expected results.
  const int64_t rows = step.q.shape()[0];
  const int64_t heads = step.q.shape()[1];
  if (step.v_head_dim > 0) demand_shape(path, "o", step.o, {rows, heads, step.v_head_dim});  // else the library refuses it
  demand_shape(path, "lse", step.lse, {rows, heads});
  return step;
}

void write_step(const std::string &path, const Step &step) {
  std::vector<TensorRef> tensors;
  const auto add = [&](const char *name, const TensorBuffer &t) {
    if (t) tensors.push_back({name, t.dtype(), t.shape(), t.data()});
  };
  add("q", step.q);
  add("kv_cache", step.kv_cache);
  add("block_table", step.block_table);
  add("seq_lens", step.seq_lens);
  add("real_seq_lens", step.real_seq_lens);
  add("k_scale", step.k_scale);
  add("o", step.o);
  add("lse", step.lse);
  char scale[32];
  std::snprintf(scale, sizeof scale, "%.9g", static_cast<double>(step.sm_scale));  // 9 digits give the same float back
  std::map<std::string, std::string> metadata = {{"qlen", std::to_string(step.qlen)},
                                                 {"page_size", std::to_string(step.page_size)},
                                                 {"v_head_dim", std::to_string(step.v_head_dim)},
                                                 {"num_kv_splits", std::to_string(step.num_kv_splits)},
                                                 {"sm_scale", scale},
                                                 {"note", step.note}};
  if (rules::is_record(step.kv_cache.dtype())) metadata[kCacheType] = kRecords;
  write_safetensors(path, std::move(tensors), metadata);
}

}  // namespace mlaverify::io
