// The reference backend: the op as plainly as it can be written, one scalar at a time, straight from the
// converted bytes. NVFP4 input: canonical arithmetic. bf16 input and BF16 experts: dots in f64, rounded once
// to f32.
#pragma once

#include "kerf/op/op.h"

namespace kerf::op::reference {

const Backend& backend();

}  // namespace kerf::op::reference
