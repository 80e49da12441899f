// The weights of a model as they lie in its model.safetensors: bf16, each demanded by name and shape.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace mlaverify::generate {

class Checkpoint {
 public:
  // Throws io::FileError.
  explicit Checkpoint(const std::string &path) : path_(path), file_(io::read_safetensors(path)) {}

  // The bits of tensor `name`, row-major; valid as long as this. Throws io::FileError, with the tensor's name, if it is missing, of
  // another shape or type, or holds NaN or infinity.
  const uint16_t *tensor(const std::string &name, const std::vector<int64_t> &shape);

  // Throws io::FileError for a tensor that nobody asked for: then the model is not the one that the config describes.
  void demand_all_used() const;

 private:
  std::string path_;
  io::SafetensorsFile file_;
  std::set<std::string> used_;
};

}  // namespace mlaverify::generate
