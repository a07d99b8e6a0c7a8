// The W4A4 kernel, as host code sees it.
#pragma once

#include <cstdint>

#include "kerf/cuda/device.h"
#include "kerf/op/sm90/w4a4_params.h"

namespace kerf::op::sm90::w4a4 {

// What takes an expert's tokens two or four at a time; and, two at a time, what is for steps of few tokens.
enum class Variant : std::uint8_t { pairs_of_one, pairs_of_two, few_tokens };

// Once for each device, before the first launch and outside of any capture. Error{device}.
void prepare();
// Enqueues: at most one block a multiprocessor.
void launch(const Params& params, Variant variant, int blocks, cuda::StreamHandle stream);

}  // namespace kerf::op::sm90::w4a4
