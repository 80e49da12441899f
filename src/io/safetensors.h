// Reader and writer of safetensors files: an 8-byte little-endian header length, a JSON header, then the tensors' bytes.
// The reader believes nothing that the header says: it refuses every file that is not exactly what the format allows, and
// allocates no more than the file holds.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "io/tensor_buffer.h"

namespace mlaverify::io {

// What is wrong with a file, on one line that starts with its path.
class FileError : public std::runtime_error {
 public:
  FileError(const std::string &path, const std::string &what)
      : std::runtime_error((path.empty() ? "''" : path) + ": " + what) {}
};

struct SafetensorsFile {
  std::map<std::string, TensorBuffer> tensors;       // those of a type that DType has
  std::map<std::string, std::string> other_tensors;  // name -> type of all others; their contents are not read
  std::map<std::string, std::string> metadata;
};

// Throws FileError, also for a tensor that does not fit in memory.
SafetensorsFile read_safetensors(const std::string &path);

// A tensor to write: contiguous.
struct TensorRef {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  const void *data;
};

// Writes to a temporary name beside `path` and renames it, so that a file already there is replaced whole or not at all. Names
// must differ, and names and metadata be UTF-8. Throws FileError.
void write_safetensors(const std::string &path, std::vector<TensorRef> tensors,
                       const std::map<std::string, std::string> &metadata);

// "BF16" and so on, as in the files.
const char *safetensors_name(DType dtype);

// Text from a file fit for a message: in quotes, control characters escaped, cut if long.
std::string quote(const std::string &text);

}  // namespace mlaverify::io
