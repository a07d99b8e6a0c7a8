// A deployment in words: which engine runs around the experts and how it is set up, what its attention layers
// do, which model, and how it is spread over ranks. Made in code, or read from JSON (docs/deploying.md has
// every key). It holds facts alone; check.h judges them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kerf/op/op.h"
#include "kerf/tensor/view.h"

#pragma GCC visibility push(default)
namespace kerf::deploy {

// The engine as a whole.
struct EngineConfig {
  std::optional<std::string> attention_backend;  // nothing: the engine's own choice
  std::optional<bool> trtllm_attention;  // decode in the TRT-LLM form; nothing: the engine's own choice
  std::int64_t tensor_parallel = 1;
  bool flashinfer_all_reduce = false;
  std::string all_reduce_backend = "auto";
};

// Who rotates queries and keys: FlashInfer's RoPE, or the engine's stock op.
enum class Rope : std::uint8_t { library, stock };

// A decode's metadata in the TRT-LLM form.
struct TrtllmMetadata {
  tensor::Shape block_table;  // [B, blocks of the longest sequence]
  tensor::Shape seq_lens;     // [B]
};
// Or what a wrapper object keeps to itself.
struct WrapperMetadata {
  std::string wrapper;
};
using DecodeMetadata = std::variant<TrtllmMetadata, WrapperMetadata>;

// How a layer's keys and values get into the cache.
struct KvCache {
  std::string backend = "FLASHINFER";      // whose attention layer stores them
  bool own_update = false;                 // the layer stores them in a way of its own
  std::optional<std::string> shared_with;  // the layer whose cache it uses instead of one of its own
  bool nvfp4 = false;                      // the cache holds NVFP4
  bool nvfp4_fa2 = false;                  // and is read by the FA2 kernels
  std::string dtype = "auto";              // auto: the model's, bf16
  std::string layout = "HND";
  std::int64_t heads = 0;      // key and value heads on this rank
  std::int64_t head_size = 0;  // values of a head
};

// One attention layer; what is not there is not asked about.
struct AttentionLayer {
  std::string name;
  std::optional<std::string> backend;
  std::optional<DecodeMetadata> decode;
  std::optional<Rope> rope;
  std::optional<KvCache> kv_cache;
};

// What the decode step around the experts can work with.
struct Requirements {
  std::string attention_backend = "FLASHINFER";
  std::vector<std::int64_t> mnnvl_tp = {8, 16};  // TP sizes whose all-reduce must be able to go over MNNVL
  std::vector<std::string> mnnvl_backends = {"auto", "mnnvl"};  // all-reduce backends that can
  std::vector<std::string> kv_dtypes = {"auto", "bfloat16"};
  std::optional<Rope> rope;               // nothing: either
  std::optional<std::int64_t> kv_heads;   // nothing: whatever the layers have
  std::optional<std::int64_t> head_size;  // likewise
};

// The model's experts: from a config.json (or its directory), with what is set here taking precedence.
struct ModelSizes {
  std::optional<std::filesystem::path> config;
  std::optional<std::int64_t> experts, hidden, intermediate, top_k;
  std::optional<std::int64_t> layers;       // with routed experts
  std::optional<std::int64_t> bf16_layers;  // of them
};

// How kerf is to run.
struct RunConfig {
  std::int64_t ranks = 1;
  std::optional<std::int64_t> ep, tp;  // ep x tp = ranks; nothing: one row, or EP where nothing is to be cut
  std::int64_t tokens = 8;             // of the largest step
  op::Input input = op::Input::nvfp4;
  std::string backend = "cpu";
  std::string device = "cpu";
  std::string group = "local";
  std::optional<std::int64_t> memory_per_rank;  // bytes; nothing: the machine's, in equal parts
};

// A deployment as its file describes it; docs/deploying.md has the keys.
struct DeploymentConfig {
  Requirements requirements;
  std::optional<EngineConfig> engine;
  std::vector<AttentionLayer> layers;
  std::optional<ModelSizes> model;
  std::optional<RunConfig> run;

  // From JSON text; `name` stands for it in messages. Error{usage} for more than 1 MB (10^6 bytes) and for
  // what is not JSON, else with every fault there is: a key that is not known (and those that are) or is
  // missing, a value of another type or out of range (key, got and wanted), nothing to check. Relative paths
  // in it start at `directory`.
  static DeploymentConfig from_text(const std::string& text, const std::string& name,
                                    const std::filesystem::path& directory = {});
  // From a file; relative paths in it start at its directory. The same errors, and Error{usage} where it
  // cannot be read.
  static DeploymentConfig from_file(const std::filesystem::path& path);
};

}  // namespace kerf::deploy
#pragma GCC visibility pop
