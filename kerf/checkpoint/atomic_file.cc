#include "kerf/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "kerf/base/file.h"
#include "kerf/base/format.h"

namespace kerf::checkpoint {

namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;  // scalars are 4 bytes: they must not cost a call each

const char* kind_of(const std::filesystem::file_status& status) {
  using std::filesystem::file_type;
  switch (status.type()) {
    case file_type::directory:
      return "a directory";
    case file_type::block:
      return "a block device";
    case file_type::character:
      return "a character device";
    case file_type::fifo:
      return "a FIFO";
    case file_type::socket:
      return "a socket";
    default:
      return "of an unknown kind";
  }
}

// What is to be replaced, at the end of all symlinks. Looks, and changes nothing.
std::filesystem::path target_of(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  constexpr int most_links = 40;  // as Linux follows
  if (path.empty()) fail(ErrorKind::usage, "a file without a name cannot be written");
  std::error_code error;
  fs::path target = path;
  for (int links = 0; fs::is_symlink(fs::symlink_status(target, error)); ++links) {
    const fs::path next = fs::read_symlink(target, error);
    if (error || links == most_links)
      fail(ErrorKind::usage, "{}: a symlink that leads nowhere, wanted a file to write", path.string());
    target = target.parent_path() / next;
  }
  const std::string via = target == path ? std::string() : fmt::format(" (leads to {})", target.string());
  const fs::file_status status = fs::status(target, error);
  if (fs::exists(status)) {
    if (!fs::is_regular_file(status))
      fail(ErrorKind::usage, "{}{}: it is {}, wanted a regular file or a new name", path.string(), via,
           kind_of(status));
    // Whoever may write anything anywhere still means a file without a write bit to stay as it is.
    const bool any = (status.permissions() & (fs::perms::owner_write | fs::perms::group_write |
                                              fs::perms::others_write)) != fs::perms::none;
    if (!any || ::access(target.c_str(), W_OK) != 0)
      fail(ErrorKind::usage, "{}{}: it is read-only, wanted a file that may be replaced", path.string(), via);
  }
  const fs::path directory = target.has_parent_path() ? target.parent_path() : ".";
  if (!fs::is_directory(directory, error))
    fail(ErrorKind::usage, "{}{}: there is no directory {}", path.string(), via, directory.string());
  return target;
}

}  // namespace

struct AtomicFile::State {
  std::filesystem::path target;
  std::filesystem::path temporary;
  Descriptor descriptor;
  std::vector<std::byte> buffer;
  bool renamed = false;

  [[noreturn]] void broken(const char* what, int error) const {
    fail(ErrorKind::usage, "{}: cannot {} it: {}", target.string(), what, os_reason(error));
  }

  // A name of its own beside the target, so that two writers never share one and the rename stays on one
  // file system.
  void open() {
    for (int i = 0;; ++i) {
      temporary = target;
      temporary.replace_filename(
          fmt::format("{}{}-{}", temporary_prefix(target.filename().string()), ::getpid(), i));
      descriptor = Descriptor(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (descriptor.get() >= 0) return;
      if (errno != EEXIST) broken("create", errno);
    }
  }

  void write_through(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::write(descriptor.get(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) broken("write", errno);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
  }

  void flush() {
    write_through(buffer);
    buffer.clear();
  }

  void write(std::span<const std::byte> bytes) {
    if (buffer.size() + bytes.size() > kBuffer) flush();
    if (bytes.size() >= kBuffer)
      write_through(bytes);
    else
      buffer.insert(buffer.end(), bytes.begin(), bytes.end());
  }

  void sync_directory() const {
    const std::filesystem::path directory = target.has_parent_path() ? target.parent_path() : ".";
    const Descriptor opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // Some file systems refuse to sync a directory; the file itself is safe by then.
    if (opened.get() >= 0) (void)::fsync(opened.get());
  }

  void remove_temporary() noexcept {
    descriptor.close();
    if (!renamed && !temporary.empty()) ::unlink(temporary.c_str());
  }
};

std::filesystem::path AtomicFile::check_writable(const std::filesystem::path& path) {
  std::filesystem::path target = target_of(path);
  const std::filesystem::path directory = target.has_parent_path() ? target.parent_path() : ".";
  // A file without a name is gone with whoever is killed here. Some file systems have none.
  if (Descriptor(::open(directory.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666)).get() >= 0) return target;
  return AtomicFile(path).target();
}

AtomicFile::AtomicFile(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  state_->target = target_of(path);
  state_->open();
}

AtomicFile::~AtomicFile() {
  if (state_) state_->remove_temporary();
}
AtomicFile::AtomicFile(AtomicFile&&) noexcept = default;
AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(state_, other.state_);  // what was here goes with `other`
  return *this;
}

const std::filesystem::path& AtomicFile::target() const { return state_->target; }

void AtomicFile::append(std::span<const std::byte> bytes) { state_->write(bytes); }

void AtomicFile::close() {
  if (state_->descriptor.get() < 0) return;
  state_->flush();
  if (::fsync(state_->descriptor.get()) != 0) state_->broken("sync", errno);
  state_->descriptor.close();
  state_->buffer = {};
}

void AtomicFile::finish() {
  if (state_->renamed) fail(ErrorKind::bug, "{}: finished twice", state_->target.string());
  close();
  if (::rename(state_->temporary.c_str(), state_->target.c_str()) != 0) state_->broken("rename", errno);
  state_->renamed = true;
  state_->sync_directory();
}

}  // namespace kerf::checkpoint
