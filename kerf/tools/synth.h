// Made-up checkpoints in any sizes: seeded, the same bytes at any thread count and on any machine, in
// bounded memory. What is written is a sound model directory in a real dialect: config.json,
// hf_quant_config.json, shards and their index. Weights are bell-shaped and scaled so that rows of unit RMS
// stay near unit RMS.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/base/threads.h"

#pragma GCC visibility push(default)
namespace kerf::tools {

// Whose names and config the checkpoint has.
//   muse_spark  fused experts, an F32 router with a bias, a norm after the experts; projections from the
//               width of the model (2H unless it is given) to that of the experts and back, and a norm after
//               the first
//   qwen3_moe   one set of tensors an expert (ModelOpt names), a BF16 router
//   tiny        as qwen3_moe, a size for tests
enum class SynthModel : std::uint8_t { muse_spark, qwen3_moe, tiny };

std::vector<std::string> synth_model_names();  // "muse-spark", "qwen3-moe", "tiny"
// One of synth_model_names(): the model's.
std::string_view name(SynthModel model);
// Error{usage} that lists the names for an unknown one.
SynthModel synth_model(std::string_view name);

// What is made.
struct SynthOptions {
  SynthModel model = SynthModel::muse_spark;
  std::int64_t experts = 0;               // E
  std::int64_t hidden = 0;                // H
  std::int64_t model_hidden = 0;          // D, the model's own width: 0 for 2H (muse_spark) or H (the others)
  std::int64_t intermediate = 0;          // I
  std::int64_t layers = 0;                // all of them with routed experts
  std::int64_t top_k = 0;                 // K
  std::vector<std::int64_t> bf16_layers;  // layers whose experts are BF16; the others are NVFP4
  // How the experts are named, stacked and scaled (checkpoint/dialect.h): empty for the model's own way. The
  // experts are the same in every dialect, bit for bit. gpt-oss is that model's alone, and its config says
  // so.
  std::string dialect;
  bool f4 = false;           // codes as F4, with shapes in codes, instead of U8
  bool weight_only = false;  // W4A16: no input scales
  std::uint64_t seed = 1;
  std::int64_t shard_bytes = std::int64_t{1} << 30;  // of a shard at most, or one tensor
};

// A size of `model` that a laptop holds.
SynthOptions synth_defaults(SynthModel model);

// What `dialect` is or stands for.
std::string_view dialect_name(const SynthOptions& options);

// What `model_hidden` is or stands for.
std::int64_t model_width(const SynthOptions& options);

// Nothing, or why such a checkpoint cannot be written: usage for numbers that make no sense (E < 1, K > E, a
// size above 2^20, a layer that is not there, a model without projections whose width is not H, more than
// 2^50 bytes), for a dialect that is none, that the model is not written in or that has no F4, unsupported
// for a shape that the layout cannot hold (H % 128, I % 16).
Verdict unsupported(const SynthOptions& options);

// What was written.
struct SynthReport {
  std::int64_t bytes = 0;  // of tensors
  std::int64_t tensors = 0;
  std::int64_t shards = 0;
};

// Called after every tensor and every few MiB of one, with bytes done and bytes in all, on the caller's
// thread.
using Progress = std::function<void(std::int64_t done, std::int64_t total)>;

// Writes the checkpoint into `directory`, which is made if it is not there. A directory that holds files is
// refused (Error{usage} that names one) unless synth() wrote all of them: those are replaced. config.json is
// written last, and the index and hf_quant_config.json just before it: an interrupted run leaves nothing that
// opens as a checkpoint. Error where unsupported() has a reason; Error{usage} too where a file cannot be
// written.
SynthReport synth(const std::filesystem::path& directory, const SynthOptions& options, const Workers& workers,
                  const Progress& progress = {});

}  // namespace kerf::tools
#pragma GCC visibility pop
