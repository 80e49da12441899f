#include "generate/small_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "io/safetensors.h"

namespace mlaverify::generate {

std::string read_small_file(const std::string &path) {
  constexpr std::size_t most = 1 << 20;
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  // Opening a pipe would wait for its writer; opening what is not there says why not.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw io::FileError(path, "is not a regular file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw io::FileError(path, std::string("cannot open: ") + std::strerror(errno));
  std::string bytes(most + 1, '\0');  // a file's size may say nothing, as in /proc
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (file.bad()) throw io::FileError(path, std::string("cannot read: ") + std::strerror(errno));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  if (bytes.size() > most) throw io::FileError(path, "is larger than " + std::to_string(most) + " bytes");
  return bytes;
}

}  // namespace mlaverify::generate
