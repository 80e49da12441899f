#include "generate/small_file.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "io/safetensors.h"

namespace mlaverify::generate {

std::string read_small_file(const std::string &path) {
  constexpr std::uintmax_t most = 1 << 20;
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status)) {  // else opening it says why not
    // Opening a pipe would wait for its writer.
    if (!std::filesystem::is_regular_file(status)) throw io::FileError(path, "is not a regular file");
    if (std::filesystem::file_size(path, error) > most && !error) {
      throw io::FileError(path, "is larger than " + std::to_string(most) + " bytes");
    }
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw io::FileError(path, std::string("cannot open: ") + std::strerror(errno));
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) throw io::FileError(path, "cannot be read");
  return bytes;
}

}  // namespace mlaverify::generate
