// A checkpoint's routing parameters as one of the routing methods.
#pragma once

#include "kerf/checkpoint/config.h"
#include "kerf/routing/router.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// softmax: `renormalize` (softmax over the chosen) or, without norm_topk_prob, `softmax`. sigmoid:
// `deepseek_v3` where experts are chosen inside groups, `sigmoid_renorm` where the scores are not
// renormalised, else `minimax2` (a bias takes part in the selection where one is given). Error{unsupported}
// that names the parameter for a combination none of the methods computes, Error{usage} for numbers that no
// router has (K > E).
routing::Router router_of(const checkpoint::ModelConfig& config);

}  // namespace kerf::decode
#pragma GCC visibility pop
