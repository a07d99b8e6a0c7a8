// What the files do that stand in for the CUDA part.
#pragma once

#include "kerf/base/error.h"
#include "kerf/cuda/library.h"

namespace kerf::cuda {

// Throws library()'s reason.
[[noreturn]] inline void absent() {
  require(library());
  throw Error(ErrorKind::bug, "the CUDA part is absent and says nothing");
}

}  // namespace kerf::cuda
