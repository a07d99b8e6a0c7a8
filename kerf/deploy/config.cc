// Deployments from JSON: the keys, and what each may hold.
#include "kerf/deploy/config.h"

#include <array>
#include <string_view>
#include <utility>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/decode/plan.h"
#include "kerf/deploy/internal/json_object.h"

namespace kerf::deploy {

namespace {

using internal::Object;
using nlohmann::json;

constexpr std::int64_t most_bytes = 1'000'000;              // of a configuration
constexpr std::int64_t most_size = std::int64_t{1} << 40;   // of a model
constexpr std::int64_t most_count = std::int64_t{1} << 20;  // of layers, ranks
constexpr double most_gib = 1U << 20U;
constexpr std::array<std::pair<std::string_view, Rope>, 2> ropes = {
    {{"library", Rope::library}, {"stock", Rope::stock}}};
constexpr std::array<std::pair<std::string_view, op::Input>, 2> inputs = {
    {{"nvfp4", op::Input::nvfp4}, {"bf16", op::Input::bf16}}};

EngineConfig engine_of(Object& o) {
  EngineConfig out;
  o.string("attention_backend", out.attention_backend);
  o.boolean("trtllm_attention", out.trtllm_attention);
  o.integer("tensor_parallel", out.tensor_parallel, 1, most_count);
  o.boolean("flashinfer_all_reduce", out.flashinfer_all_reduce);
  o.string("all_reduce_backend", out.all_reduce_backend);
  if (!o.has("tensor_parallel")) o.fault("wanted tensor_parallel");
  return out;
}

Requirements requirements_of(Object& o) {
  Requirements out;
  o.string("attention_backend", out.attention_backend);
  o.integers("mnnvl_tp", out.mnnvl_tp, 1, most_count);
  o.strings("mnnvl_backends", out.mnnvl_backends);
  o.strings("kv_dtypes", out.kv_dtypes);
  o.one_of("rope", out.rope, ropes);
  o.integer("kv_heads", out.kv_heads, 1, most_count);
  o.integer("head_size", out.head_size, 1, most_count);
  return out;
}

std::optional<DecodeMetadata> metadata_of(Object& o) {
  std::optional<std::string> wrapper;
  std::vector<std::int64_t> table;
  std::vector<std::int64_t> lengths;
  o.string("wrapper", wrapper);
  o.integers("block_table", table, 0, most_size, tensor::Shape::max_rank);
  o.integers("seq_lens", lengths, 0, most_size, tensor::Shape::max_rank);
  const bool arrays = !table.empty() || !lengths.empty();
  if (wrapper.has_value() == arrays) {
    o.fault("wanted either wrapper, or block_table and seq_lens");
    return std::nullopt;
  }
  if (wrapper) return WrapperMetadata{*wrapper};
  return TrtllmMetadata{tensor::Shape(std::span<const std::int64_t>(table)),
                        tensor::Shape(std::span<const std::int64_t>(lengths))};
}

KvCache kv_cache_of(Object& o) {
  KvCache out;
  o.string("backend", out.backend);
  o.boolean("own_update", out.own_update);
  o.string("shared_with", out.shared_with);
  o.boolean("nvfp4", out.nvfp4);
  o.boolean("nvfp4_fa2", out.nvfp4_fa2);
  o.string("dtype", out.dtype);
  o.string("layout", out.layout);
  o.integer("heads", out.heads, 1, most_count);
  o.integer("head_size", out.head_size, 1, most_count);
  if (!o.has("heads") || !o.has("head_size")) o.fault("wanted heads and head_size");
  return out;
}

AttentionLayer layer_of(Object& o, std::size_t position) {
  AttentionLayer out;
  out.name = fmt::format("layer {}", position);
  o.string("name", out.name);
  o.string("attention_backend", out.backend);
  o.one_of("rope", out.rope, ropes);
  o.object("decode_metadata", [&](Object& inner) { out.decode = metadata_of(inner); });
  o.object("kv_cache", [&](Object& inner) { out.kv_cache = kv_cache_of(inner); });
  return out;
}

ModelSizes model_of(Object& o, const std::filesystem::path& directory) {
  ModelSizes out;
  std::optional<std::string> config;
  o.string("config", config);
  if (config) out.config = directory / *config;  // an absolute path stays one
  o.integer("experts", out.experts, 1, most_size);
  o.integer("hidden", out.hidden, 1, most_size);
  o.integer("intermediate", out.intermediate, 1, most_size);
  o.integer("top_k", out.top_k, 1, most_size);
  o.integer("layers", out.layers, 1, most_count);
  o.integer("bf16_layers", out.bf16_layers, 0, most_count);
  if (!out.config && !(out.experts && out.hidden && out.intermediate && out.top_k))
    o.fault("wanted config, or experts, hidden, intermediate and top_k");
  return out;
}

RunConfig run_of(Object& o) {
  RunConfig out;
  o.integer("ranks", out.ranks, 1, most_count);
  o.integer("ep", out.ep, 1, most_count);
  o.integer("tp", out.tp, 1, most_count);
  o.integer("batch", out.tokens, 1, decode::most_tokens);
  std::optional<op::Input> input;
  o.one_of("act", input, inputs);
  out.input = input.value_or(out.input);
  o.string("backend", out.backend);
  o.string("device", out.device);
  o.string("group", out.group);
  std::optional<double> gib;
  o.number("memory_gib_per_rank", gib, most_gib);
  if (gib) out.memory_per_rank = static_cast<std::int64_t>(*gib * (1U << 30U));
  return out;
}

}  // namespace

DeploymentConfig DeploymentConfig::from_text(const std::string& text, const std::string& name,
                                             const std::filesystem::path& directory) {
  if (static_cast<std::int64_t>(text.size()) > most_bytes)
    fail(ErrorKind::usage, "{}: {} bytes, wanted at most {}", name, text.size(), most_bytes);
  const json top = parse_json(text, name, ErrorKind::usage);
  if (!top.is_object()) fail(ErrorKind::usage, "{}: got {}, wanted an object", name, got(top));
  std::vector<std::string> faults;
  DeploymentConfig out;
  {
    Object o(top, "", faults);
    o.object("requirements", [&](Object& inner) { out.requirements = requirements_of(inner); });
    o.object("engine", [&](Object& inner) { out.engine = engine_of(inner); });
    o.objects("layers", [&](Object& inner, std::size_t i) { out.layers.push_back(layer_of(inner, i)); });
    o.object("model", [&](Object& inner) { out.model = model_of(inner, directory); });
    o.object("run", [&](Object& inner) { out.run = run_of(inner); });
    o.finish();
  }
  if (!out.engine && out.layers.empty() && !out.model && !out.run)
    faults.emplace_back("nothing to check in it, wanted at least one of engine, layers, model, run");
  if (!faults.empty()) fail(ErrorKind::usage, "{}: {}", name, fmt::join(faults, "; "));
  return out;
}

DeploymentConfig DeploymentConfig::from_file(const std::filesystem::path& path) {
  std::string text;
  if (const Verdict why = attempt([&] { text = read_text(path, most_bytes); }))
    fail(why->kind == ErrorKind::checkpoint ? ErrorKind::usage : why->kind, "{}", why->text);
  return from_text(text, path.string(), path.parent_path());
}

}  // namespace kerf::deploy
