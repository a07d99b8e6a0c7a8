// Moves bytes between ranks of one process wherever they lie, on the host or on the device.
#pragma once

#include "kerf/tensor/view.h"

#pragma GCC visibility push(default)
namespace kerf::cuda {

// Error{device} in a build without the CUDA part as soon as it is used.
const tensor::Copier& copier();

}  // namespace kerf::cuda
#pragma GCC visibility pop
