// An index's weight_map, which names a file for every tensor, in little memory: an entry takes fewer bytes
// here than in the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/base/json_stream.h"

namespace kerf::checkpoint::internal {

class WeightMap {
 public:
  struct Entry {
    std::string_view name;
    std::size_t file = 0;  // of files()
  };

  // Reads an index; `file` is its path, for messages. Error{checkpoint}: not JSON, no weight_map, or one that
  // is not an object of tensors' names, each once, and of names of files in the same directory.
  static WeightMap read(const JsonStream::Read& read, std::int64_t bytes, const std::string& file);
  static WeightMap read(std::string_view text, const std::string& file);

  // Names ascending.
  [[nodiscard]] std::size_t size() const { return records_.size(); }
  [[nodiscard]] Entry operator[](std::size_t i) const;
  [[nodiscard]] std::optional<Entry> find(std::string_view name) const;
  // Ascending.
  [[nodiscard]] const std::vector<std::string>& files() const { return files_; }

 private:
  class Reader;
  // After the last entry; a name that comes twice, or nothing.
  std::optional<std::string_view> finish(std::map<std::string, std::uint32_t, std::less<>> numbers);
  [[nodiscard]] std::string_view name(std::uint32_t record) const;

  std::vector<char> bytes_;             // records: length of the name, name, number of the file
  std::vector<std::uint32_t> records_;  // where each begins, by name
  std::vector<std::string> files_;
  std::vector<std::uint32_t> place_;  // in files_, by number
};

}  // namespace kerf::checkpoint::internal
