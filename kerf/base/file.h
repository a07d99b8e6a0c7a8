// Files at the level of the operating system: opened only when regular, read whole when small. Every failure
// is an Error{checkpoint} that names the file and the system's reason.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "kerf/base/text.h"  // IWYU pragma: export

namespace kerf {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  [[nodiscard]] int get() const noexcept { return fd_; }
  void close() noexcept;

 private:
  int fd_ = -1;
};

// A regular file that is open for reading.
struct OpenedFile {
  Descriptor descriptor;
  std::int64_t bytes = 0;     // its size when it was opened
  std::int64_t modified = 0;  // when it was last written to, as modified() says
};

// Nanoseconds since the epoch at which a file was last written to.
std::int64_t modified(const struct stat& status);

// Opens a regular file for reading (links are followed; a pipe or a directory is refused, not waited for).
OpenedFile open_regular(const std::filesystem::path& path);

// Fills `to` from byte `offset`; a file that ends earlier is an error that gives both sizes.
void read_exactly(const OpenedFile& file, const std::filesystem::path& path, std::int64_t offset,
                  std::span<std::byte> to);

// A whole text file of at most `limit` bytes; a larger one is an error.
std::string read_text(const std::filesystem::path& path, std::int64_t limit);

// What the system says about an error number.
std::string os_reason(int error);

}  // namespace kerf
