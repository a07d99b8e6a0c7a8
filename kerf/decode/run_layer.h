// A single layer whose inputs come from elsewhere (from another engine, say), on any number of ranks, EP, TP
// or both, with the unfinalised rows of every rank where they are wanted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/checkpoint/safetensors.h"
#include "kerf/decode/build.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/layer.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Rows and routes, copied out of a file. Of x, x_f32 and a (with a_sf) one is there; of ids and logits one.
// All empty where tokens is 0.
struct LayerInputs {
  std::int64_t tokens = 0;
  std::string rows_name;             // "x" or "a"
  std::string routes_name;           // "topk_ids" or "router_logits"
  std::vector<std::uint16_t> x;      // [T, H] bf16
  std::vector<float> x_f32;          // [T, H]
  std::vector<std::uint8_t> a;       // [T, H/2] e2m1
  std::vector<std::uint8_t> a_sf;    // [T, H/16] e4m3, linear
  std::vector<std::int32_t> ids;     // [T, K]
  std::vector<float> weights;        // [T, K]
  std::vector<float> logits;         // [T, E]
  std::vector<std::string> ignored;  // other tensors of the file
};

// Reads one layer's inputs from a file.
//   rows:   `x` [T, H] BF16 or F32; or else `a` [T, H/2] U8 and `a_sf` [T, H/16] F8_E4M3
//   routes: `topk_ids` [T, K] I32 and `topk_weights` [T, K] F32; or else `router_logits` [T, E] F32
// Error{usage} that names file, tensor, got and wanted; an id outside [-1, E) gives token, slot and id.
// Error{checkpoint} where the file cannot be read.
LayerInputs read_layer_inputs(const checkpoint::SafetensorsFile& file, const std::string& file_name,
                              const InputShape& shape);

// Which layer, and how it is run; equal on all ranks.
struct LayerOptions {
  std::int64_t layer = 0;
  Mode mode = Mode::ep;  // tp reshards (and probes) the layer first
  op::Input input = op::Input::nvfp4;
  std::string backend = "cpu";
  bool unfinalized = false;  // LayerResult::ranks is wanted
  tail::Kind tail = tail::Kind::fast;
  layout::Fit fit = {};  // what may be done about an intermediate width that does not fit
};

// One rank's share. Rows that the map does not name are zero.
struct RankRows {
  std::vector<std::uint16_t> rows;  // [gemm2_rows, H] bf16
  std::vector<float> sums;          // instead, the same in f32 before g2_alpha: TP with the exact tail
  std::vector<std::int32_t> map;    // [T, K] row of a route, -1 where another rank has it
  std::vector<float> weights;       // [T, K]
};

// What came out; equal on all ranks.
struct LayerResult {
  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t top_k = 0;
  std::vector<std::uint16_t> y;  // [T, H] bf16
  std::vector<RankRows> ranks;   // with options.unfinalized: every rank's, ascending
};

// Collective; all ranks pass equal inputs and get equal results. f32 rows: NVFP4 input is quantised from them
// directly, bf16 input is them rounded once. Logits go through the checkpoint's router, with its
// e_score_correction_bias where the layer has one; the op of BF16 layers rounds the weights to bf16. Errors,
// the same on every rank: those of Runtime::build(); usage for inputs that do not fit; checkpoint where the
// router's bias is missing; unsupported for TP of a BF16 layer, for quantised rows given to a layer that
// takes bf16 ones, for a router that kerf does not compute where there are logits, and for weights other than
// 1 where the model multiplies the experts' input by them.
LayerResult run_layer(const checkpoint::Checkpoint& from, const LayerOptions& options,
                      const LayerInputs& inputs, const Rank& rank);

}  // namespace kerf::decode
#pragma GCC visibility pop
