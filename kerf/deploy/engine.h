// What a specialised decode asks of the engine around it. The engine's five questions, each answered with
// reasons: none means yes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kerf/deploy/config.h"

#pragma GCC visibility push(default)
namespace kerf::deploy {

// All that speaks against something; empty: nothing does.
using Reasons = std::vector<std::string>;

// The engine's own settings: the attention backend, its TRT-LLM-style decode not switched off, FlashInfer's
// all-reduce on, and, at the TP sizes that need it, over a backend that can go over MNNVL.
Reasons unsupported(const EngineConfig& engine, const Requirements& wanted);

// Error{unsupported} that names the layer unless it runs the required attention backend: its decode metadata
// and the layout of its cache are what a step reads.
void check_attention(std::string_view layer, std::string_view backend, const Requirements& wanted);

// Whether a decode's metadata has the TRT-LLM form: a block table [B, blocks] and sequence lengths [B] of the
// same B.
Reasons trtllm_decode(const DecodeMetadata& metadata);

// Whether a rotary embedding is FlashInfer's rather than the engine's stock op.
bool library_rope(Rope rope);
std::string_view name(Rope rope);

// Whether the layer stores keys and values as plain bf16 in the HND layout: by the required backend's own
// update, into a cache of its own, of no NVFP4 kind, of the heads and head size wanted.
Reasons bf16_kv_insert(const KvCache& cache, const Requirements& wanted);

}  // namespace kerf::deploy
#pragma GCC visibility pop
