// One rank's file of an export (export_facts.h), opened: its header is checked against its digests, so that
// nothing in it is trusted that did not leave the writer so. Tensors are read into memory of the caller's
// choice, and their digests checked on the way.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kerf/base/threads.h"
#include "kerf/checkpoint/digest.h"
#include "kerf/checkpoint/export_facts.h"
#include "kerf/checkpoint/export_values.h"
#include "kerf/checkpoint/reading.h"
#include "kerf/checkpoint/safetensors.h"

#pragma GCC visibility push(default)
namespace kerf::checkpoint {

// One rank's file of an export, opened and checked. Copies share it.
class ExportFile {
 public:
  // Error{checkpoint} that names the file for one that is damaged, cut short, or no such file.
  static ExportFile open(const std::filesystem::path& path);
  // The file of rank `rank` of `ranks`; Error{checkpoint} too where it says that it is another's.
  static ExportFile open_of_rank(const std::filesystem::path& directory, std::int64_t rank,
                                 std::int64_t ranks);

  // The same file, whose tensors are read by what `wrap` makes of its reader.
  [[nodiscard]] ExportFile through(const WrapReader& wrap) const;

  // Where it is, what it says of itself, and its tensors' entries.
  [[nodiscard]] const std::filesystem::path& path() const;
  [[nodiscard]] const ExportFacts& facts() const;
  [[nodiscard]] const Header& header() const;
  // The digests of all ranks' files of this export, [ranks] ascending: what makes files of one export one.
  [[nodiscard]] std::span<const Digest> ranks() const;
  // Of all of them together: the same in every file of an export, and in no other export's.
  [[nodiscard]] Digest id() const;

  // Where a tensor lies. Error{checkpoint} that names file and tensor where there is none.
  [[nodiscard]] TensorEntry entry(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const;

  // What every rank's file of an export says alike, as a JSON text: its facts but for the rank, and the
  // digests of all tensors but the experts' weights. One text a file of one export.
  [[nodiscard]] std::string shared_text() const;

  // Compares a tensor's digest with the one that it must have: Error{checkpoint} that names file, tensor and
  // both where `got` is another, or where there is no such tensor.
  void check(std::string_view name, const Digest& got) const;
  // Reads a tensor and checks it, without keeping it; `values`, where given, looks at all of it. The same
  // errors, and Error{checkpoint} for a file that became shorter.
  void check(std::string_view name, const Workers& workers, ExportedValues* values = nullptr) const;

 private:
  friend class ExportReader;
  struct State;
  std::shared_ptr<const State> state_;
  std::shared_ptr<const tensor::Reader> reader_;
};

// Of two files' shared_text(): nothing, or a reason of kind checkpoint with both files and the first key or
// tensor that differs.
Verdict shared_differs(const std::string& one, const std::filesystem::path& one_file,
                       const std::string& other, const std::filesystem::path& other_file);

// Reads one tensor, all of it at once or some indices of its first dimension at a time; finish() checks the
// digest once each was read.
class ExportReader {
 public:
  // Of the tensor `name`: Error{checkpoint} where the file has none. The file must outlive it.
  ExportReader(const ExportFile& file, std::string name);

  // Indices [first, first + count) of the first dimension to `to`, which is as long as they are; or all of
  // them. A tensor that is not digested by index (Pieces) is read whole. Error{checkpoint} for a file that
  // became shorter, Error{bug} for other sizes.
  void read(std::int64_t first, std::int64_t count, std::span<std::byte> to, const Workers& workers);
  void read(std::span<std::byte> to, const Workers& workers);
  // Error{checkpoint} unless all was read and has the digest that it must have.
  void finish() const;
  // Adds a fault for values among those that were read that can be none. `layer`, and the model's number of
  // the expert at index 0: for messages.
  void report(std::int64_t layer, std::int64_t first_expert, Faults& faults) const;

 private:
  const ExportFile& file_;
  std::string name_;
  TensorEntry entry_;
  ExportedValues values_;
  Pieces pieces_;
  std::vector<Digest> digests_;
};

// Writes one rank's file. Tensors come in the order that was announced, each whole.
class ExportWriter {
 public:
  // Writes the header. Errors of SafetensorsWriter.
  ExportWriter(const std::filesystem::path& directory, const ExportFacts& facts,
               std::vector<NamedShape> tensors);

  // The next tensor's bytes. Error{bug} for another size, Error{usage} where they cannot be written.
  void append(std::span<const std::byte> tensor, const Workers& workers);
  // After the last tensor: the digest of all of this file, for the other ranks. Error{bug} where tensors are
  // missing, Error{usage} as append().
  Digest close();
  // With every rank's, [ranks] ascending: the file is whole and on the disk, under its temporary name.
  // Error{bug} for another number of them, Error{usage} as append().
  void end(std::span<const Digest> ranks);
  // The file appears under its name. Error{usage} as append().
  void finish();

 private:
  std::vector<NamedShape> tensors_;
  std::int64_t ranks_;
  SafetensorsWriter writer_;
  std::vector<Digest> digests_;
};

}  // namespace kerf::checkpoint
#pragma GCC visibility pop
