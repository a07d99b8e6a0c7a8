#include "kerf/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "kerf/base/format.h"
#include "kerf/base/text.h"

namespace kerf {

namespace fs = std::filesystem;

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Descriptor::close() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::string os_reason(int error) { return std::generic_category().message(error); }

std::int64_t modified(const struct stat& status) {
  return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

OpenedFile open_regular(const std::filesystem::path& path) {
  OpenedFile file;
  if (path.native().find('\0') != std::string::npos)
    fail(ErrorKind::checkpoint, "{}: a name with a NUL in it, wanted a file's", shown(path.native()));
  // O_NONBLOCK: opening a pipe must not wait for its writer. Regular files do not care.
  file.descriptor = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.descriptor.get() < 0) {
    const int reason = errno;
    // Downloads into a cache leave links to files that have not come.
    std::error_code no_link;
    if (const fs::path to = fs::read_symlink(path, no_link); reason == ENOENT && !no_link)
      fail(ErrorKind::checkpoint, "{}: a link to {}, which is not there: incomplete download?", path.string(),
           to.string());
    fail(ErrorKind::checkpoint, "{}: cannot open it: {}", path.string(), os_reason(reason));
  }
  struct stat status {};
  if (::fstat(file.descriptor.get(), &status) != 0)
    fail(ErrorKind::checkpoint, "{}: cannot read its size: {}", path.string(), os_reason(errno));
  if (!S_ISREG(status.st_mode))
    fail(ErrorKind::checkpoint, "{}: not a regular file, wanted a file", path.string());
  file.bytes = status.st_size;
  file.modified = modified(status);
  return file;
}

void read_exactly(const OpenedFile& file, const std::filesystem::path& path, std::int64_t offset,
                  std::span<std::byte> to) {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t n = ::pread(file.descriptor.get(), to.data() + done, to.size() - done,
                              static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(ErrorKind::checkpoint, "{}: cannot read it: {}", path.string(), os_reason(errno));
    if (n == 0)
      fail(ErrorKind::checkpoint,
           "{}: ends at byte {} or before, wanted {} bytes: it became shorter while it was read",
           path.string(), offset + static_cast<std::int64_t>(done),
           offset + static_cast<std::int64_t>(to.size()));
    done += static_cast<std::size_t>(n);
  }
}

std::string read_text(const std::filesystem::path& path, std::int64_t limit) {
  const OpenedFile file = open_regular(path);
  if (file.bytes > limit)
    fail(ErrorKind::checkpoint, "{}: {} bytes, wanted at most {}", path.string(), file.bytes, limit);
  std::string text(static_cast<std::size_t>(file.bytes), '\0');
  read_exactly(file, path, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace kerf
