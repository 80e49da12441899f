#include "io/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "io/safetensors.h"

namespace mlaverify::io {

void replace_file(const std::string &path, const std::vector<std::string_view> &parts) {
  // Renaming onto a device or a pipe would replace it.
  std::error_code ec;
  const std::filesystem::file_status target = std::filesystem::status(path, ec);
  if (std::filesystem::exists(target) && !std::filesystem::is_regular_file(target)) {
    throw FileError(path, "cannot write: it exists and is not a regular file");
  }
  std::string temporary;
  int fd = -1;
  for (int i = 0; fd < 0 && i < 100; ++i) {
    temporary = path + ".tmp" + std::to_string(getpid()) + "-" + std::to_string(i);
    fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno != EEXIST) break;
  }
  if (fd < 0) throw FileError(path, std::string("cannot write: ") + std::strerror(errno));
  std::unique_ptr<std::FILE, int (*)(std::FILE *)> file(fdopen(fd, "wb"), std::fclose);
  bool ok = file != nullptr;
  for (const std::string_view part : parts) ok = ok && std::fwrite(part.data(), 1, part.size(), file.get()) == part.size();
  ok = ok && std::fflush(file.get()) == 0 && fsync(fd) == 0;
  ok = ok && std::fclose(file.release()) == 0;
  ok = ok && std::rename(temporary.c_str(), path.c_str()) == 0;
  if (!ok) {
    const std::string why = std::strerror(errno);
    unlink(temporary.c_str());
    throw FileError(path, "cannot write: " + why);
  }
}

}  // namespace mlaverify::io
