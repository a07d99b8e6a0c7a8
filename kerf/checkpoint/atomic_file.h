// A file that appears whole or not at all: written under a temporary name beside its place, synced, then
// renamed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace kerf::checkpoint {

class AtomicFile {
 public:
  // Opens the temporary, so that a place which cannot be written is found at once. Symlinks are followed:
  // what they lead to is replaced. Error{usage} that names the path for a place that cannot be written: no
  // such directory, a directory, a device, a FIFO, a file without a write bit.
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();  // removes the temporary unless finish() was called
  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) noexcept;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Whether there could be one: target(), or the same errors. Leaves nothing behind, even where the process
  // is killed meanwhile, on file systems that have files without names.
  static std::filesystem::path check_writable(const std::filesystem::path& path);

  // The file that finish() replaces, at the end of all symlinks.
  [[nodiscard]] const std::filesystem::path& target() const;
  // Both: Error{usage} with the system's reason where the bytes cannot be written. finish() puts the file in
  // its place, once: Error{bug} for a second call.
  void append(std::span<const std::byte> bytes);
  void finish();
  // After the last byte: it is safe under its temporary name, and holds neither memory nor a descriptor until
  // finish(). Errors as append().
  void close();

  // What temporaries of a file named `name` are called: this, then more.
  static std::string temporary_prefix(const std::string& name) { return name + ".tmp-"; }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kerf::checkpoint
