// The numbers that an engine's layer brings: tensors of the right shape can still hold what no model computes
// with, and NaN would spread from there to every output without a word.
#pragma once

#include <string>
#include <vector>

#include "kerf/decode/adopt.h"

namespace kerf::decode::internal {

// What is wrong with the layer's values, one text a tensor or number, each with the expert (the model's
// number), what was got and what is wanted; empty for nothing:
//   g1_alphas, g1_scale_c, g2_alphas, a1_gscale, a2_gscale   positive and finite
//   alpha, beta                                              finite
//   limit_gate, limit_up                                     positive; +inf is no limit
//   norm                                                     eps finite and at least 0, gain finite
// The tensors must not be malformed(). Reads the tensors of scalars, which are in the host's memory.
std::vector<std::string> unusable_values(const StockLayer& layer);

}  // namespace kerf::decode::internal
