// A safetensors header from wherever its bytes are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kerf/checkpoint/safetensors.h"
#include "kerf/tensor/source.h"

namespace kerf::checkpoint::internal {

// read_header() of a whole file; `file` is for messages.
Header parse_header(const tensor::Source& opened, const std::string& file);
// Of the bytes in front of its tensors alone, of a file of `bytes` bytes.
Header parse_header(std::span<const std::byte> head, std::int64_t bytes, const std::string& file);

}  // namespace kerf::checkpoint::internal
