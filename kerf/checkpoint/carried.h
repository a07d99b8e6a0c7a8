// What opening a checkpoint reads, as a text to be sent: enough to open it where its files are not. Tensors
// are read by readers that the receiver brings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/checkpoint/config.h"

#pragma GCC visibility push(default)
namespace kerf::checkpoint {

// A checkpoint's files, without the tensors in them.
struct CarriedFiles {
  // One file with tensors.
  struct File {
    std::string name;
    std::int64_t bytes = 0;  // of the whole file
    std::string head;        // its bytes in front of the tensors: the header and its length
  };

  ConfigTexts configs;
  std::optional<std::string> index;  // model.safetensors.index.json, where there is one
  std::vector<File> files;

  // All of them as one text: of each piece its length, 8 bytes little endian, and its bytes.
  [[nodiscard]] std::string to_text() const;
  // Error{checkpoint} for a text that ends early or has a size that is no number.
  static CarriedFiles from_text(std::string_view text);
};

}  // namespace kerf::checkpoint
#pragma GCC visibility pop
