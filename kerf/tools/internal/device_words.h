// Kernels of the measuring tools: what fills tensors on the device, and the plain read that steps are
// measured against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kerf/cuda/device.h"
#include "kerf/tools/internal/made_words.h"

namespace kerf::tools::internal {

// Writes the words [bytes / 8], done when it returns.
void fill_device(std::span<std::byte> tensor, const MadeWords& words);

// Enqueues a read of whole 16-byte pieces: by as many threads as the device holds, as fast as it can.
// `result` is device memory that keeps the read from being left out.
void read_device(std::span<const std::byte> bytes, std::uint32_t* result, cuda::StreamHandle stream);

}  // namespace kerf::tools::internal
