#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/checkpoint/safetensors.h"

namespace kerf::checkpoint {

struct DataFile::State {
  std::filesystem::path path;
  OpenedFile file;
};

DataFile::DataFile(std::unique_ptr<const State> state) : state_(std::move(state)) {}
DataFile::~DataFile() = default;

std::shared_ptr<const DataFile> DataFile::open(const std::filesystem::path& path) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->file = open_regular(path);
  return std::shared_ptr<const DataFile>(new DataFile(std::move(state)));
}

std::int64_t DataFile::bytes() const { return state_->file.bytes; }

const std::filesystem::path& DataFile::path() const { return state_->path; }

void DataFile::read(std::int64_t offset, std::span<std::byte> to) const {
  read_exactly(state_->file, state_->path, offset, to);
}

void DataFile::will_need(std::int64_t offset, std::int64_t bytes) const noexcept {
  // Linux fetches no more for one call than the device takes in one request or its read-ahead is long.
  constexpr std::int64_t most = std::int64_t{1} << 18;
  for (std::int64_t at = 0; at < bytes; at += most)
    (void)::posix_fadvise(state_->file.descriptor.get(), offset + at, std::min(most, bytes - at),
                          POSIX_FADV_WILLNEED);
}

Verdict DataFile::changed() const {
  const OpenedFile& opened = state_->file;
  struct stat now {};
  if (::fstat(opened.descriptor.get(), &now) != 0)
    return because(ErrorKind::checkpoint, "{}: cannot read its size: {}", state_->path.string(),
                   os_reason(errno));
  if (now.st_size != opened.bytes)
    return because(ErrorKind::checkpoint,
                   "{}: {} bytes when it was opened, {} now: it changed while it was read",
                   state_->path.string(), opened.bytes, now.st_size);
  if (modified(now) != opened.modified)
    return because(ErrorKind::checkpoint, "{}: written to since it was opened: it changed while it was read",
                   state_->path.string());
  return std::nullopt;
}

}  // namespace kerf::checkpoint
