#include "generate/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "rules/number.h"

namespace mlaverify::generate {
namespace {

std::string text_of(const std::vector<int64_t> &shape) {
  std::string text = "[";
  for (int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

}  // namespace

const uint16_t *Checkpoint::tensor(const std::string &name, const std::vector<int64_t> &shape) {
  const auto wanted = [&] { return "must be BF16 " + text_of(shape); };
  if (const auto other = file_.other_tensors.find(name); other != file_.other_tensors.end()) {
    throw io::FileError(path_, name + ": type " + other->second + ", " + wanted());
  }
  const auto found = file_.tensors.find(name);
  if (found == file_.tensors.end()) throw io::FileError(path_, name + ": missing, " + wanted());
  const io::TensorBuffer &tensor = found->second;
  if (tensor.dtype() != DType::bf16 || tensor.shape() != shape) {
    throw io::FileError(path_,
                        name + ": " + io::safetensors_name(tensor.dtype()) + " " + text_of(tensor.shape()) + ", " + wanted());
  }
  const auto *bits = tensor.data<uint16_t>();
  const auto count = static_cast<std::ptrdiff_t>(tensor.bytes() / sizeof(uint16_t));
  const auto *bad = std::find_if(bits, bits + count, [](uint16_t b) { return !std::isfinite(rules::bf16_to_float(b)); });
  if (bad != bits + count) {
    throw io::FileError(path_, name + ": number " + std::to_string(bad - bits + 1) + " is " +
                                   std::to_string(rules::bf16_to_float(*bad)) + ", must be finite");
  }
  used_.insert(name);
  return bits;
}

void Checkpoint::demand_all_used() const {
  const auto refuse = [this](const std::string &name) {
    throw io::FileError(path_, io::quote(name) + ": is no tensor of the model that config.json describes");
  };
  for (const auto &[name, tensor] : file_.tensors) {
    if (used_.count(name) == 0) refuse(name);
  }
  for (const auto &[name, type] : file_.other_tensors) refuse(name);
}

}  // namespace mlaverify::generate
