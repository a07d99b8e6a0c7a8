// safetensors files: an 8-byte header length, a JSON header, then the tensors' bytes. Nothing in a header is
// trusted before it has been checked against the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/checkpoint/tensor_entries.h"
#include "kerf/tensor/source.h"

#pragma GCC visibility push(default)
namespace kerf::checkpoint {

// A file that is open for reading, by any thread. It is never mapped: where another program cuts it short,
// reading is an error.
class DataFile final : public tensor::Reader {
 public:
  // Error{checkpoint}: not there, not a regular file (a symlink to one will do), no descriptor left.
  static std::shared_ptr<const DataFile> open(const std::filesystem::path& path);
  ~DataFile() override;
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;
  DataFile(DataFile&&) = delete;
  DataFile& operator=(DataFile&&) = delete;

  [[nodiscard]] std::int64_t bytes() const;  // when it was opened
  // Where it is.
  [[nodiscard]] const std::filesystem::path& path() const;
  // Fills `to` from byte `offset`. Error{checkpoint} that names the file: it ends before, or the system's
  // reason.
  void read(std::int64_t offset, std::span<std::byte> to) const override;
  void will_need(std::int64_t offset, std::int64_t bytes) const noexcept override;
  // Nothing, or (kind checkpoint) how the file is no longer what was opened: another size, or written to
  // since. Another file put in its place does not count: what is read is the one that was opened.
  [[nodiscard]] Verdict changed() const;

 private:
  struct State;
  explicit DataFile(std::unique_ptr<const State> state);
  std::unique_ptr<const State> state_;
};

// A header: length bounded (at most 100 MB and at most the file) before anything is allocated, read in
// pieces, JSON well-formed, no tensor and no field of one twice, every tensor inside the file, of the size
// its dtype and shape give, none overlapping another. Bytes of the file that no tensor covers are counted in
// `stray_bytes` (a note, not a fault).
struct Header {
  static constexpr std::size_t most_metadata = 64;
  TensorEntries tensors;
  // __metadata__'s strings, the first most_metadata of them; the first where a key comes twice.
  std::map<std::string, std::string, std::less<>> metadata;
  std::int64_t data_begin = 0;  // bytes in front of the tensors
  std::int64_t file_bytes = 0;
  std::int64_t stray_bytes = 0;
};

// Both read and check it. Error{checkpoint} that names the file, what was got and wanted, and (a short file)
// both sizes.
Header read_header(const DataFile& file);
Header read_header(const std::filesystem::path& path);

// A whole file: its header, and its tensors when they are asked for.
class SafetensorsFile {
 public:
  // Reads and checks the header. Error{checkpoint} that names the file.
  static SafetensorsFile open(const std::filesystem::path& path);
  // Its tensors' entries and metadata.
  [[nodiscard]] const Header& header() const { return header_; }
  // Nothing where the file has no such tensor; otherwise it is read, and the view keeps it. Error{checkpoint}
  // as DataFile::read().
  [[nodiscard]] std::optional<tensor::TensorView> find(std::string_view name) const;
  // The same; Error{checkpoint} that names file and tensor where there is none.
  [[nodiscard]] tensor::TensorView at(std::string_view name) const;
  // As find(), not read yet.
  [[nodiscard]] std::optional<tensor::StoredTensor> stored(std::string_view name) const;
  // DataFile::changed() of it.
  [[nodiscard]] Verdict changed() const { return file_->changed(); }

 private:
  Header header_;
  std::shared_ptr<const DataFile> file_;
};

// A tensor that will be written.
struct NamedShape {
  std::string name;
  tensor::Dtype dtype = tensor::Dtype::u8;
  tensor::Shape shape;
};
// Writes one file: to a temporary beside it, synced, then renamed. The tensors' bytes are appended in the
// given order, in pieces of any size.
class SafetensorsWriter {
 public:
  // Writes the header. `metadata`: what __metadata__ says besides the format, "pt". Errors of
  // check_writable(); Error{usage} where the file cannot be written (also from append and finish): the path
  // is the caller's. Error{bug} for a tensor's name that comes twice and for text that is not UTF-8,
  // Error{unsupported} for a shape whose bytes cannot be counted.
  SafetensorsWriter(const std::filesystem::path& path, std::span<const NamedShape> tensors,
                    std::span<const std::pair<std::string, std::string>> metadata = {});
  ~SafetensorsWriter();  // removes the temporary unless finish() was called
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  SafetensorsWriter(SafetensorsWriter&&) = delete;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;

  // What stands in front of the tensors: the header's length, 8 bytes, and the header.
  [[nodiscard]] std::span<const std::byte> header() const;
  // The tensors' next bytes. Error{bug} for more than were promised.
  void append(std::span<const std::byte> bytes);
  // The file is whole, under its temporary name, and holds no descriptor. Error{bug} unless exactly the
  // promised bytes came.
  void close();
  // close(), and the file appears under its name.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Where a file that is written as `path` goes: `path` itself, or what it leads to where it is a symlink.
// Error{usage} that names it and says why where that is there and not a regular file, is read-only, or has no
// directory to be in that can be written to (the temporary that a writer would make is made, and removed).
std::filesystem::path check_writable(const std::filesystem::path& path);

// Writes a small file in one call, tensors by name. Errors of SafetensorsWriter; Error{bug} for a view of
// other bytes than its dtype and shape ask for.
void write_safetensors(const std::filesystem::path& path,
                       std::span<const std::pair<std::string, tensor::TensorView>> tensors);

}  // namespace kerf::checkpoint
#pragma GCC visibility pop
