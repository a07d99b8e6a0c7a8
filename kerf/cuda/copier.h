// Moves bytes between ranks of one process wherever they lie, on the host or on the device.
#pragma once

#include "kerf/tensor/view.h"

#pragma GCC visibility push(default)
namespace kerf::cuda {

// Between any two memories of the host and the devices; a copy waits for itself alone, and any thread may
// call it. Error{device} where a device fails, and in a build without the CUDA part as soon as it is used.
const tensor::Copier& copier();

}  // namespace kerf::cuda
#pragma GCC visibility pop
