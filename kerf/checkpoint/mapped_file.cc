#include <sys/mman.h>

#include <cerrno>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/checkpoint/safetensors.h"

namespace kerf::checkpoint {

struct MappedFile::Mapping {
  Mapping(std::filesystem::path where, void* block, std::size_t length)
      : path(std::move(where)), data(static_cast<const std::byte*>(block)), bytes(length) {}
  ~Mapping() {
    if (bytes != 0) ::munmap(const_cast<std::byte*>(data), bytes);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  Mapping(Mapping&&) = delete;
  Mapping& operator=(Mapping&&) = delete;

  std::filesystem::path path;
  const std::byte* data;
  std::size_t bytes;
};

MappedFile MappedFile::open(const std::filesystem::path& path) {
  const OpenedFile file = open_regular(path);
  const auto bytes = static_cast<std::size_t>(file.bytes);
  void* block = nullptr;  // an empty file cannot be mapped, and need not be
  if (bytes != 0) {
    block = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.descriptor.get(), 0);
    if (block == MAP_FAILED)
      fail(ErrorKind::memory, "{}: cannot map its {} bytes: {}", path.string(), bytes, os_reason(errno));
  }
  MappedFile out;
  out.mapping_ = std::make_shared<const Mapping>(path, block, bytes);
  return out;
}

std::span<const std::byte> MappedFile::bytes() const {
  if (!mapping_) return {};
  return {mapping_->data, mapping_->bytes};
}

const std::filesystem::path& MappedFile::path() const {
  if (!mapping_) fail(ErrorKind::bug, "asked for the path of a file that was never mapped");
  return mapping_->path;
}

}  // namespace kerf::checkpoint
