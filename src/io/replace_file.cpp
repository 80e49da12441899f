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

namespace {

// A new file beside `path`, which can be renamed to it.
struct Temporary {
  std::string name;
  int fd;
};

Temporary make_temporary(const std::string &path) {
  // Renaming onto a device or a pipe would replace it.
  std::error_code ec;
  const std::filesystem::file_status target = std::filesystem::status(path, ec);
  if (std::filesystem::exists(target) && !std::filesystem::is_regular_file(target)) {
    throw FileError(path, "cannot write: it exists and is not a regular file");
  }
  for (int i = 0; i < 100; ++i) {
    const std::string name = path + ".tmp" + std::to_string(getpid()) + "-" + std::to_string(i);
    const int fd = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) return {name, fd};
    if (errno != EEXIST) break;
  }
  throw FileError(path, std::string("cannot write: ") + std::strerror(errno));
}

}  // namespace

void demand_replaceable(const std::string &path) {
  const Temporary temporary = make_temporary(path);
  close(temporary.fd);
  unlink(temporary.name.c_str());
}

void replace_file(const std::string &path, const std::vector<std::string_view> &parts) {
  const auto [temporary, fd] = make_temporary(path);
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
