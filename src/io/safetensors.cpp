#include "io/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/replace_file.h"

namespace mlaverify::io {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr const char *kMetadata = "__metadata__";

struct TypeRow {
  const char *name;
  int bits;
  std::optional<DType> dtype;  // none: known to the format, not to this library
};

const TypeRow kTypes[] = {
    {"F32", 32, DType::f32},
    {"F16", 16, DType::f16},
    {"BF16", 16, DType::bf16},
    {"F8_E4M3", 8, DType::f8_e4m3},
    {"F8_E5M2", 8, DType::f8_e5m2},
    {"I32", 32, DType::i32},
    {"U8", 8, DType::f8_ds_mla},  // bytes: records are what the library has bytes for
    {"F64", 64, {}},
    {"I64", 64, {}},
    {"U64", 64, {}},
    {"C64", 64, {}},
    {"U32", 32, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"I8", 8, {}},
    {"BOOL", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F4", 4, {}},
};

// One tensor as the header describes it.
struct Entry {
  const TypeRow *type = nullptr;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_shape = false;
  bool has_offsets = false;
};

// Reads the header as a stream of tokens: no tree is built, so neither deep nesting nor duplicate names get past it.
class Header : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::map<std::string, Entry> entries;
  std::map<std::string, std::string> metadata;
  std::string error;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool number_float(double, const std::string &text) override { return unexpected(text.substr(0, 40)); }
  bool number_integer(int64_t x) override { return unexpected(std::to_string(x)); }
  bool number_unsigned(uint64_t x) override {
    if (where_ != Where::list) return unexpected(std::to_string(x));
    list_->push_back(x);
    return true;
  }
  bool string(std::string &text) override {
    if (where_ == Where::metadata) {
      metadata[key_] = text;
      return true;
    }
    if (where_ != Where::tensor || key_ != "dtype") return unexpected(quote(text));
    for (const TypeRow &row : kTypes) {
      if (text == row.name) entry_->type = &row;
    }
    return entry_->type != nullptr || fail("tensor " + quote(name_) + ": unknown dtype " + quote(text));
  }
  bool binary(nlohmann::json::binary_t &) override { return unexpected("binary data"); }

  bool start_object(std::size_t) override {
    if (where_ == Where::start) {
      where_ = Where::root;
    } else if (where_ == Where::root && name_ == kMetadata) {
      where_ = Where::metadata;
      has_metadata_ = true;
    } else if (where_ == Where::root) {
      where_ = Where::tensor;
      entry_ = &entries[name_];
    } else {
      return unexpected("an object");
    }
    return true;
  }
  bool key(std::string &text) override {
    if (where_ == Where::root) {
      name_ = text;
      const bool again = name_ == kMetadata ? has_metadata_ : entries.count(name_) != 0;
      return !again || fail(quote(name_) + " appears twice in the header");
    }
    key_ = text;
    if (where_ == Where::metadata) return metadata.count(key_) == 0 || fail("metadata " + quote(key_) + " appears twice");
    const std::string owner = "tensor " + quote(name_) + ": ";
    if (key_ != "dtype" && key_ != "shape" && key_ != "data_offsets") return fail(owner + "unknown field " + quote(key_));
    const bool again = key_ == "dtype" ? entry_->type != nullptr : key_ == "shape" ? entry_->has_shape : entry_->has_offsets;
    return !again || fail(owner + quote(key_) + " appears twice");
  }
  bool end_object() override {
    if (where_ == Where::tensor) {
      const char *missing = entry_->type == nullptr ? "dtype"
                            : !entry_->has_shape    ? "shape"
                            : !entry_->has_offsets  ? "data_offsets"
                                                    : nullptr;
      if (missing != nullptr) return fail("tensor " + quote(name_) + " has no " + missing);
    }
    where_ = Where::root;
    return true;
  }
  bool start_array(std::size_t) override {
    if (where_ != Where::tensor || key_ == "dtype") return unexpected("a list");
    (key_ == "shape" ? entry_->has_shape : entry_->has_offsets) = true;
    list_ = key_ == "shape" ? &entry_->shape : &entry_->offsets;
    where_ = Where::list;
    return true;
  }
  bool end_array() override {
    where_ = Where::tensor;
    return true;
  }
  bool parse_error(std::size_t position, const std::string &, const nlohmann::detail::exception &) override {
    return fail("the header is not valid JSON at its byte " + std::to_string(position));
  }

 private:
  enum class Where { start, root, metadata, tensor, list };

  bool fail(const std::string &what) {
    error = what;
    return false;
  }
  // `got` is not what may stand here.
  bool unexpected(const std::string &got) {
    switch (where_) {
      case Where::start: return fail("the header is not a JSON object");
      case Where::root: return fail(quote(name_) + " is " + got + " in the header, should be an object");
      case Where::metadata: return fail("metadata " + quote(key_) + " is " + got + ", should be a string");
      case Where::tensor:
        return fail("tensor " + quote(name_) + ": " + key_ + " is " + got + ", should be a " +
                    (key_ == "dtype" ? "string" : "list of integers >= 0"));
      case Where::list: return fail("tensor " + quote(name_) + ": " + key_ + " has " + got + ", should be integers >= 0");
    }
    return false;
  }

  Where where_ = Where::start;
  std::string name_, key_;
  bool has_metadata_ = false;
  Entry *entry_ = nullptr;
  std::vector<uint64_t> *list_ = nullptr;
};

struct CloseFile {
  void operator()(std::FILE *f) const { std::fclose(f); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

std::string system_error() { return std::strerror(errno); }

// Bytes that shape and type ask for; no value where that overflows (empty dimensions do not hide huge ones) or is not whole.
std::optional<uint64_t> bytes_of(const Entry &entry) {
  uint64_t bits = static_cast<uint64_t>(entry.type->bits);
  bool empty = false;
  for (uint64_t n : entry.shape) {
    empty = empty || n == 0;
    const uint64_t factor = std::max<uint64_t>(n, 1);
    if (factor > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / bits) return std::nullopt;
    bits *= factor;
  }
  if (empty) return 0;
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

std::string shape_text(const std::vector<uint64_t> &shape) {
  constexpr std::size_t shown = 8;
  std::string text = "[";
  for (std::size_t i = 0; i < std::min(shape.size(), shown); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + (shape.size() > shown ? ", ...]" : "]");
}

// The tensors must follow each other from the first data byte to the last, without gap or overlap.
void check_layout(const std::string &path, const std::map<std::string, Entry> &entries, uint64_t data_bytes) {
  std::vector<std::map<std::string, Entry>::const_iterator> order;
  for (auto it = entries.begin(); it != entries.end(); ++it) {
    const auto &[name, entry] = *it;
    const auto fail = [&, &tensor = name](const std::string &what) -> void {
      throw FileError(path, "tensor " + quote(tensor) + ": " + what);
    };
    if (entry.offsets.size() != 2) fail("data_offsets has " + std::to_string(entry.offsets.size()) + " numbers, should have 2");
    const uint64_t begin = entry.offsets[0];
    const uint64_t end = entry.offsets[1];
    const std::string where = "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + "]";
    if (begin > end) fail(where + " run backwards");
    if (end > data_bytes) {
      fail(where + " reach past the end: the file holds " + std::to_string(data_bytes) + " data bytes (truncated?)");
    }
    const std::optional<uint64_t> want = bytes_of(entry);
    const std::string what = std::string(entry.type->name) + " " + shape_text(entry.shape);
    if (!want) fail(what + " is not a size that a file can hold");
    if (*want != end - begin) {
      fail(what + " takes " + std::to_string(*want) + " bytes, but its data_offsets hold " + std::to_string(end - begin));
    }
    order.push_back(it);
  }
  std::sort(order.begin(), order.end(), [](const auto &a, const auto &b) { return a->second.offsets < b->second.offsets; });
  uint64_t at = 0;
  for (const auto &it : order) {
    const uint64_t begin = it->second.offsets[0];
    if (begin < at) throw FileError(path, "tensor " + quote(it->first) + " overlaps another one");
    if (begin > at) {
      throw FileError(path, std::to_string(begin - at) + " bytes before tensor " + quote(it->first) + " belong to no tensor");
    }
    at = it->second.offsets[1];
  }
  if (at != data_bytes) throw FileError(path, std::to_string(data_bytes - at) + " bytes at the end belong to no tensor");
}

}  // namespace

std::string quote(const std::string &text) {
  constexpr std::size_t shown = 60;
  const bool cut = text.size() > shown;
  const nlohmann::json start = cut ? text.substr(0, shown) : text;
  return start.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + (cut ? "..." : "");
}

const char *safetensors_name(DType dtype) {
  for (const TypeRow &row : kTypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "?";
}

SafetensorsFile read_safetensors(const std::string &path) {
  std::error_code ec;
  const std::filesystem::file_status status = std::filesystem::status(path, ec);
  if (!std::filesystem::exists(status))
    throw FileError(path, "cannot open: " + (ec ? ec.message() : "No such file or directory"));
  if (!std::filesystem::is_regular_file(status)) throw FileError(path, "is not a regular file");
  const uint64_t file_bytes = std::filesystem::file_size(path, ec);
  const File file(std::fopen(path.c_str(), "rb"));
  if (ec || !file) throw FileError(path, "cannot open: " + (ec ? ec.message() : system_error()));
  const auto read = [&](void *to, uint64_t bytes) {
    if (std::fread(to, 1, bytes, file.get()) == bytes) return;
    throw FileError(path, std::ferror(file.get()) ? "cannot read: " + system_error() : "ended while it was read");
  };

  if (file_bytes < kLengthBytes) {
    throw FileError(path, "has " + std::to_string(file_bytes) + " bytes, too few for a safetensors file");
  }
  unsigned char length[kLengthBytes];
  read(length, kLengthBytes);
  uint64_t header_bytes = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) header_bytes = header_bytes << 8 | length[i];
  if (header_bytes > kMaxHeaderBytes) {
    throw FileError(path, "header length " + std::to_string(header_bytes) + " exceeds the limit of " +
                              std::to_string(kMaxHeaderBytes) + " (is it a safetensors file?)");
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    throw FileError(path, "header length " + std::to_string(header_bytes) + " exceeds the file, which has " +
                              std::to_string(file_bytes) + " bytes (truncated?)");
  }
  std::string text(header_bytes, '\0');
  read(text.data(), header_bytes);
  Header header;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &header)) throw FileError(path, header.error);
  check_layout(path, header.entries, file_bytes - kLengthBytes - header_bytes);

  SafetensorsFile result;
  result.metadata = std::move(header.metadata);
  for (const auto &[name, entry] : header.entries) {
    if (!entry.type->dtype) {
      result.other_tensors[name] = entry.type->name;
      continue;
    }
    TensorBuffer tensor;
    try {
      tensor = TensorBuffer(*entry.type->dtype, {entry.shape.begin(), entry.shape.end()});
    } catch (const std::bad_alloc &) {
      throw FileError(path, "tensor " + quote(name) + ": its " + std::to_string(entry.offsets[1] - entry.offsets[0]) +
                                " bytes do not fit in memory");
    }
    if (fseeko(file.get(), static_cast<off_t>(kLengthBytes + header_bytes + entry.offsets[0]), SEEK_SET) != 0) {
      throw FileError(path, "cannot seek: " + system_error());
    }
    read(tensor.data(), tensor.bytes());
    result.tensors.emplace(name, std::move(tensor));
  }
  return result;
}

void write_safetensors(const std::string &path, std::vector<TensorRef> tensors,
                       const std::map<std::string, std::string> &metadata) {
  // Wider types first: then every tensor is aligned to its elements.
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorRef &a, const TensorRef &b) {
    return rules::dtype_bytes(a.dtype) > rules::dtype_bytes(b.dtype);
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::vector<std::size_t> sizes;
  std::size_t at = 0;
  for (const TensorRef &tensor : tensors) {
    std::size_t bytes = static_cast<std::size_t>(rules::dtype_bytes(tensor.dtype));
    for (int64_t n : tensor.shape) bytes *= static_cast<std::size_t>(n);
    header[tensor.name] = {
        {"dtype", safetensors_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {at, at + bytes}}};
    sizes.push_back(bytes);
    at += bytes;
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize(rules::round_up<std::size_t>(text.size(), kLengthBytes), ' ');
  unsigned char length[kLengthBytes];
  for (std::size_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<unsigned char>(text.size() >> (8 * i));

  std::vector<std::string_view> parts = {{reinterpret_cast<const char *>(length), kLengthBytes}, text};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (sizes[i] > 0) parts.emplace_back(static_cast<const char *>(tensors[i].data), sizes[i]);
  }
  replace_file(path, parts);
}

}  // namespace mlaverify::io
