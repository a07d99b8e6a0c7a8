#include "kerf/deploy/engine.h"

#include <algorithm>

#include "kerf/base/format.h"

namespace kerf::deploy {

namespace {

template <typename T>
bool contains(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

Reasons unsupported(const EngineConfig& engine, const Requirements& wanted) {
  Reasons out;
  if (engine.attention_backend && *engine.attention_backend != wanted.attention_backend)
    out.push_back(fmt::format("attention_backend is '{}', wanted '{}'", *engine.attention_backend,
                              wanted.attention_backend));
  if (engine.trtllm_attention == false)
    out.push_back(
        fmt::format("trtllm_attention is false: the decode of '{}' attention is wanted in its "
                    "TRT-LLM form (true, or left to the engine)",
                    wanted.attention_backend));
  const std::int64_t tp = engine.tensor_parallel;
  if (!engine.flashinfer_all_reduce)
    out.push_back(fmt::format("flashinfer_all_reduce is off at TP {}, wanted on", tp));
  if (contains(wanted.mnnvl_tp, tp) && !contains(wanted.mnnvl_backends, engine.all_reduce_backend))
    out.push_back(fmt::format("all_reduce_backend is '{}' at TP {}, wanted one that can go over MNNVL: {}",
                              engine.all_reduce_backend, tp, fmt::join(wanted.mnnvl_backends, ", ")));
  return out;
}

void check_attention(std::string_view layer, std::string_view backend, const Requirements& wanted) {
  if (backend != wanted.attention_backend)
    fail(ErrorKind::unsupported, "{} runs the '{}' attention backend, wanted '{}'", layer, backend,
         wanted.attention_backend);
}

Reasons trtllm_decode(const DecodeMetadata& metadata) {
  if (const auto* other = std::get_if<WrapperMetadata>(&metadata))
    return {fmt::format("decode metadata are kept by '{}', wanted a block table and sequence lengths",
                        other->wrapper)};
  const auto& arrays = std::get<TrtllmMetadata>(metadata);
  Reasons out;
  if (arrays.block_table.rank() != 2)
    out.push_back(fmt::format("block_table is {}, wanted [B, blocks]", arrays.block_table.text()));
  if (arrays.seq_lens.rank() != 1)
    out.push_back(fmt::format("seq_lens is {}, wanted [B]", arrays.seq_lens.text()));
  if (out.empty() && arrays.block_table[0] != arrays.seq_lens[0])
    out.push_back(fmt::format("block_table is {} and seq_lens is {}, wanted both of the same B",
                              arrays.block_table.text(), arrays.seq_lens.text()));
  return out;
}

bool library_rope(Rope rope) { return rope == Rope::library; }

std::string_view name(Rope rope) { return library_rope(rope) ? "library" : "stock"; }

Reasons bf16_kv_insert(const KvCache& cache, const Requirements& wanted) {
  Reasons out;
  if (cache.backend != wanted.attention_backend)
    out.push_back(fmt::format("keys and values are stored by '{}', wanted '{}'", cache.backend,
                              wanted.attention_backend));
  if (cache.own_update) out.emplace_back("the layer stores keys and values in its own way (own_update)");
  if (cache.shared_with)
    out.push_back(
        fmt::format("the layer shares the cache of '{}', wanted one of its own", *cache.shared_with));
  if (cache.nvfp4) out.emplace_back("the cache holds NVFP4, wanted bf16");
  if (cache.nvfp4_fa2) out.emplace_back("the cache is read as NVFP4 by FA2, wanted bf16");
  if (!contains(wanted.kv_dtypes, cache.dtype))
    out.push_back(fmt::format("the cache's dtype is '{}', wanted {}", cache.dtype,
                              fmt::join(wanted.kv_dtypes, " or ")));
  if (cache.layout != "HND")
    out.push_back(fmt::format("the cache's layout is '{}', wanted HND", cache.layout));
  if (wanted.kv_heads && cache.heads != *wanted.kv_heads)
    out.push_back(fmt::format("heads is {}, wanted {}", cache.heads, *wanted.kv_heads));
  if (wanted.head_size && cache.head_size != *wanted.head_size)
    out.push_back(fmt::format("head_size is {}, wanted {}", cache.head_size, *wanted.head_size));
  return out;
}

}  // namespace kerf::deploy
