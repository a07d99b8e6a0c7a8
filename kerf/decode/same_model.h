// Whether two configurations describe one model, as far as its routed experts and what stands around them are
// concerned.
#pragma once

#include "kerf/base/error.h"
#include "kerf/checkpoint/config.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Nothing where they do; otherwise checkpoint, with every value that differs: name, got, wanted. How the
// files name and quantise modules is not looked at: what becomes of a layer is.
Verdict another_model(const checkpoint::ModelConfig& got, const checkpoint::ModelConfig& wanted);

}  // namespace kerf::decode
#pragma GCC visibility pop
