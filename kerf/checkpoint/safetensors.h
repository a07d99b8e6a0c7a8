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
#include <vector>

#include "kerf/tensor/view.h"

namespace kerf::checkpoint {

// A file mapped read-only. Copies share the mapping.
class MappedFile {
 public:
  static MappedFile open(const std::filesystem::path& path);
  [[nodiscard]] std::span<const std::byte> bytes() const;
  [[nodiscard]] const std::filesystem::path& path() const;

 private:
  struct Mapping;
  std::shared_ptr<const Mapping> mapping_;
};

// Where a tensor lies, from the header alone.
struct TensorEntry {
  tensor::Dtype dtype = tensor::Dtype::u8;
  tensor::Shape shape;
  std::int64_t begin = 0;  // bytes into the file (not into its data part)
  std::int64_t end = 0;
};

// A header, read without mapping the file: length bounded (at most 100 MB and at most the file) before
// anything is allocated, JSON well-formed, no key twice, every tensor inside the file, of the size its dtype
// and shape give, none overlapping another. Bytes of the file that no tensor covers are counted in
// `stray_bytes` (a note, not a fault).
struct Header {
  std::map<std::string, TensorEntry, std::less<>> tensors;
  std::int64_t file_bytes = 0;
  std::int64_t stray_bytes = 0;
};

// Error{checkpoint} that names the file, what was got and wanted, and (a short file) both sizes.
Header read_header(const std::filesystem::path& path);

// A whole file: header and mapping.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);
  [[nodiscard]] const Header& header() const { return header_; }
  // Nothing where the file has no such tensor.
  [[nodiscard]] std::optional<tensor::TensorView> find(std::string_view name) const;
  // Error{checkpoint} that names file and tensor.
  [[nodiscard]] tensor::TensorView at(std::string_view name) const;

 private:
  Header header_;
  MappedFile file_;
};

// Writes one file: to a temporary beside it, synced, then renamed. Tensors are streamed in the given order:
// `fill` is called once a tensor, in order, and must append exactly its bytes through `sink`.
struct NamedShape {
  std::string name;
  tensor::Dtype dtype = tensor::Dtype::u8;
  tensor::Shape shape;
};
class SafetensorsWriter {
 public:
  // Writes the header. Errors of check_writable(); Error{usage} where the file cannot be written (also from
  // append and finish): the path is the caller's.
  SafetensorsWriter(const std::filesystem::path& path, std::span<const NamedShape> tensors);
  ~SafetensorsWriter();  // removes the temporary unless finish() was called
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  SafetensorsWriter(SafetensorsWriter&&) = delete;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;

  void append(std::span<const std::byte> bytes);
  // Error{bug} unless exactly the promised bytes came.
  void finish();

 private:
  friend std::filesystem::path check_writable(const std::filesystem::path& path);
  struct State;
  std::unique_ptr<State> state_;
};

// Where a file that is written as `path` goes: `path` itself, or what it leads to where it is a symlink.
// Error{usage} that names it and says why where that is there and not a regular file, is read-only, or has no
// directory to be in that can be written to (the temporary that a writer would make is made, and removed).
std::filesystem::path check_writable(const std::filesystem::path& path);

// Writes a small file in one call. Error{usage} as SafetensorsWriter.
void write_safetensors(const std::filesystem::path& path,
                       std::span<const std::pair<std::string, tensor::TensorView>> tensors);

}  // namespace kerf::checkpoint
