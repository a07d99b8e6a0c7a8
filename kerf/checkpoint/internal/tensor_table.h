// All tensors of a checkpoint by name, over its shards. Built from headers alone: every shard's header and
// size has been checked before a tensor is read. Immutable afterwards; entries stay where they are. Every
// shard stays open, so that what is read later is of the file whose header was read. Tables may share all of
// that and read the same files by other readers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/checkpoint/carried.h"
#include "kerf/checkpoint/internal/shards.h"
#include "kerf/checkpoint/reading.h"
#include "kerf/checkpoint/safetensors.h"

namespace kerf::checkpoint::internal {

// Which tensor of which shard's header.
struct Located {
  std::uint32_t shard = 0;
  std::uint32_t entry = 0;
};

class TensorTable {
 public:
  // `experts`: E, for messages about tensors that the index names and a file lacks. Things worth saying are
  // appended to `notes`.
  TensorTable(const std::filesystem::path& directory, std::int64_t experts, std::vector<std::string>& notes);
  // Of one file.
  explicit TensorTable(const std::filesystem::path& file);
  // Of files that are elsewhere: a reader each.
  TensorTable(const std::filesystem::path& directory, const CarriedFiles& carried,
              std::span<const std::shared_ptr<const tensor::Reader>> readers, std::int64_t experts,
              std::vector<std::string>& notes);
  // The same tensors, read by what `wrap` makes of each file's reader.
  TensorTable(const TensorTable& like, const WrapReader& wrap);
  TensorTable(const TensorTable&) = delete;
  TensorTable& operator=(const TensorTable&) = delete;

  // Null where there is no such tensor.
  [[nodiscard]] const Located* find(std::string_view name) const { return contents_->find(name); }
  // Every tensor that counts, by name.
  [[nodiscard]] const std::vector<Located>& all() const { return contents_->by_name; }
  [[nodiscard]] std::string_view name(const Located& located) const { return contents_->name(located); }
  [[nodiscard]] TensorEntry entry(const Located& located) const {
    return headers()[located.shard].tensors.entry(located.entry);
  }
  // The tensor, not read yet.
  [[nodiscard]] tensor::StoredTensor stored(const Located& located) const;
  // The tensor, read: the view keeps it.
  [[nodiscard]] tensor::TensorView view(const Located& located) const { return stored(located).read(); }
  // Nothing, or which file is no longer what was opened.
  [[nodiscard]] Verdict changed() const;
  [[nodiscard]] const std::string& file(const Located& located) const { return files()[located.shard]; }
  [[nodiscard]] const std::vector<std::string>& files() const { return contents_->shards.files; }
  [[nodiscard]] const std::vector<Header>& headers() const { return contents_->headers; }
  // A reader a file.
  [[nodiscard]] const std::vector<std::shared_ptr<const tensor::Reader>>& readers() const { return readers_; }

 private:
  struct Contents {
    ShardFiles shards;
    std::vector<Header> headers;
    std::vector<std::shared_ptr<const DataFile>> opened;  // none where the files are elsewhere
    std::vector<Located> by_name;

    [[nodiscard]] std::string_view name(const Located& located) const {
      return headers[located.shard].tensors.name(located.entry);
    }
    [[nodiscard]] const Located* find(std::string_view name) const;
    void resolve(std::int64_t experts, std::vector<std::string>& notes);
    void resolve_by_index(std::int64_t experts, std::vector<std::string>& notes);
    void refuse_absent(std::int64_t experts) const;
    void resolve_alone();
    void sort();
  };

  std::shared_ptr<const Contents> contents_;
  std::vector<std::shared_ptr<const tensor::Reader>> readers_;
};

}  // namespace kerf::checkpoint::internal
