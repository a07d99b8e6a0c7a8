// Deployments from JSON: every key arrives, and whatever is wrong is refused, all of it at once.
#include "kerf/deploy/config.h"

#include <gtest/gtest.h>

#include <fstream>

#include "kerf/base/error.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

using deploy::DeploymentConfig;

std::string refusal(const std::string& text) {
  const Verdict v = attempt([&] { (void)DeploymentConfig::from_text(text, "d.json"); });
  EXPECT_TRUE(v) << text;
  if (!v) return {};
  EXPECT_EQ(v->kind, ErrorKind::usage) << v->text;
  EXPECT_TRUE(v->text.starts_with("d.json: ")) << v->text;
  return v->text;
}

void expect_refused(const std::string& text, std::initializer_list<std::string> words) {
  const std::string got = refusal(text);
  for (const std::string& word : words)
    EXPECT_NE(got.find(word), std::string::npos) << "no '" << word << "' in: " << got;
}

TEST(DeploymentConfig, EveryKeyArrives) {
  const DeploymentConfig c = DeploymentConfig::from_text(R"({
    "requirements": {"attention_backend": "A", "mnnvl_tp": [2, 4], "mnnvl_backends": ["m"],
                     "kv_dtypes": ["b"], "rope": "stock", "kv_heads": 3, "head_size": 5},
    "engine": {"attention_backend": "B", "trtllm_attention": false, "tensor_parallel": 4,
               "flashinfer_all_reduce": true, "all_reduce_backend": "c"},
    "layers": [
      {"name": "first", "attention_backend": "D", "rope": "library",
       "decode_metadata": {"block_table": [8, 16], "seq_lens": [8]},
       "kv_cache": {"backend": "E", "own_update": true, "shared_with": "zeroth", "nvfp4": true,
                    "nvfp4_fa2": true, "dtype": "f", "layout": "NHD", "heads": 6, "head_size": 7}},
      {"rope": "stock", "decode_metadata": {"wrapper": "W"}}],
    "model": {"config": "m/config.json", "experts": 8, "hidden": 256, "intermediate": 64, "top_k": 2,
              "layers": 9, "bf16_layers": 1},
    "run": {"ranks": 4, "ep": 2, "tp": 4, "batch": 16, "act": "bf16", "backend": "reference",
            "device": "cuda", "group": "mpi", "memory_gib_per_rank": 1.5}})",
                                                         "d.json", "/models");
  EXPECT_EQ(c.requirements.attention_backend, "A");
  EXPECT_EQ(c.requirements.mnnvl_tp, (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(c.requirements.mnnvl_backends, std::vector<std::string>{"m"});
  EXPECT_EQ(c.requirements.kv_dtypes, std::vector<std::string>{"b"});
  EXPECT_EQ(c.requirements.rope, deploy::Rope::stock);
  EXPECT_EQ(c.requirements.kv_heads, 3);
  EXPECT_EQ(c.requirements.head_size, 5);
  ASSERT_TRUE(c.engine);
  EXPECT_EQ(c.engine->attention_backend, "B");
  EXPECT_EQ(c.engine->trtllm_attention, false);
  EXPECT_EQ(c.engine->tensor_parallel, 4);
  EXPECT_TRUE(c.engine->flashinfer_all_reduce);
  EXPECT_EQ(c.engine->all_reduce_backend, "c");
  ASSERT_EQ(c.layers.size(), 2U);
  EXPECT_EQ(c.layers[0].name, "first");
  EXPECT_EQ(c.layers[0].backend, "D");
  EXPECT_EQ(c.layers[0].rope, deploy::Rope::library);
  const auto& arrays = std::get<deploy::TrtllmMetadata>(c.layers[0].decode.value());
  EXPECT_EQ(arrays.block_table, (tensor::Shape{8, 16}));
  EXPECT_EQ(arrays.seq_lens, tensor::Shape{8});
  const deploy::KvCache& kv = c.layers[0].kv_cache.value();
  EXPECT_EQ(kv.backend, "E");
  EXPECT_TRUE(kv.own_update && kv.nvfp4 && kv.nvfp4_fa2);
  EXPECT_EQ(kv.shared_with, "zeroth");
  EXPECT_EQ(kv.dtype, "f");
  EXPECT_EQ(kv.layout, "NHD");
  EXPECT_EQ(kv.heads, 6);
  EXPECT_EQ(kv.head_size, 7);
  EXPECT_EQ(c.layers[1].name, "layer 1");
  EXPECT_EQ(std::get<deploy::WrapperMetadata>(c.layers[1].decode.value()).wrapper, "W");
  EXPECT_FALSE(c.layers[1].backend);
  EXPECT_FALSE(c.layers[1].kv_cache);
  ASSERT_TRUE(c.model);
  EXPECT_EQ(c.model->config, "/models/m/config.json");
  EXPECT_EQ(c.model->experts, 8);
  EXPECT_EQ(c.model->hidden, 256);
  EXPECT_EQ(c.model->intermediate, 64);
  EXPECT_EQ(c.model->top_k, 2);
  EXPECT_EQ(c.model->layers, 9);
  EXPECT_EQ(c.model->bf16_layers, 1);
  ASSERT_TRUE(c.run);
  EXPECT_EQ(c.run->ranks, 4);
  EXPECT_EQ(c.run->ep, 2);
  EXPECT_EQ(c.run->tp, 4);
  EXPECT_EQ(c.run->tokens, 16);
  EXPECT_EQ(c.run->input, op::Input::bf16);
  EXPECT_EQ(c.run->backend, "reference");
  EXPECT_EQ(c.run->device, "cuda");
  EXPECT_EQ(c.run->group, "mpi");
  EXPECT_EQ(c.run->memory_per_rank, (std::int64_t{3} << 30) / 2);
}

TEST(DeploymentConfig, NullIsAbsent) {
  const DeploymentConfig c = DeploymentConfig::from_text(
      R"({"engine": {"tensor_parallel": 2, "trtllm_attention": null, "attention_backend": null},
          "model": null, "layers": null})",
      "d.json");
  ASSERT_TRUE(c.engine);
  EXPECT_FALSE(c.engine->attention_backend);
  EXPECT_FALSE(c.engine->trtllm_attention);
  EXPECT_FALSE(c.model);
}

// A misspelt key must not pass for a setting that was never made.
TEST(DeploymentConfig, UnknownKeysAreNamedWithThoseThereAre) {
  expect_refused(R"({"engine": {"tensor_parallel": 8, "attention_backnd": "X"}})",
                 {"engine: unknown key 'attention_backnd'", "attention_backend"});
  expect_refused(R"({"run": {}, "modle": {}})", {"unknown key 'modle'", "model"});
  expect_refused(R"({"layers": [{}, {"kv_cache": {"heads": 1, "head_size": 1, "kind": "x"}}]})",
                 {"layers[1].kv_cache: unknown key 'kind'"});
}

TEST(DeploymentConfig, WrongTypesGiveKeyGotAndWanted) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {R"({"engine": 3})", {"engine is 3 (number), wanted an object"}},
           {R"({"engine": {"tensor_parallel": "8"}})",
            {R"(engine.tensor_parallel is "8" (string), wanted an integer from 1 to)"}},
           {R"({"engine": {"tensor_parallel": 8.0}})", {"engine.tensor_parallel is 8.0"}},
           {R"({"engine": {"tensor_parallel": true}})", {"engine.tensor_parallel is true (boolean)"}},
           {R"({"engine": {"tensor_parallel": 0}})", {"engine.tensor_parallel is 0"}},
           {R"({"engine": {"tensor_parallel": -8}})", {"engine.tensor_parallel is -8"}},
           {R"({"engine": {"tensor_parallel": 18446744073709551615}})",
            {"engine.tensor_parallel is 18446744073709551615"}},
           {R"({"engine": {"tensor_parallel": 99999999999999999999999}})", {"engine.tensor_parallel is"}},
           {R"({"engine": {}})", {"engine: wanted tensor_parallel"}},
           {R"({"engine": {"tensor_parallel": 1, "trtllm_attention": 1}})",
            {"engine.trtllm_attention is 1 (number), wanted true or false"}},
           {R"({"engine": {"tensor_parallel": 1, "attention_backend": ""}})",
            {"engine.attention_backend is", "wanted a string that is not empty"}},
           {R"({"layers": {}})", {"layers is {} (object), wanted an array of objects"}},
           {R"({"layers": [3]})", {"layers is [3] (array), wanted an array of objects"}},
           {R"({"layers": [{"rope": "both"}]})",
            {R"(layers[0].rope is "both" (string), wanted library or stock)"}},
           {R"({"layers": [{"kv_cache": {"heads": 1}}]})",
            {"layers[0].kv_cache: wanted heads and head_size"}},
           {R"({"layers": [{"decode_metadata": {}}]})",
            {"layers[0].decode_metadata: wanted either wrapper, or block_table"}},
           {R"({"layers": [{"decode_metadata": {"wrapper": "W", "seq_lens": [8]}}]})",
            {"wanted either wrapper, or block_table"}},
           {R"({"layers": [{"decode_metadata": {"block_table": [1,2,3,4,5,6,7,8,9], "seq_lens": [1]}}]})",
            {"block_table is", "an array of at most 8 integers"}},
           {R"({"model": {"experts": 8}})",
            {"model: wanted config, or experts, hidden, intermediate and top_k"}},
           {R"({"run": {"memory_gib_per_rank": 0}})", {"run.memory_gib_per_rank is 0", "above 0"}},
           {R"({"run": {"memory_gib_per_rank": 1e300}})", {"run.memory_gib_per_rank is 1e+300"}},
           {R"({"requirements": {"mnnvl_tp": [8, "16"]}, "run": {}})", {"requirements.mnnvl_tp is"}},
       })
    for (const std::string& word : words) expect_refused(text, {word});
}

TEST(DeploymentConfig, AllFaultsComeAtOnce) {
  expect_refused(
      R"({"engine": {"tensor_parallel": 0, "x": 1}, "run": {"ranks": "y"}, "z": 2})",
      {"engine.tensor_parallel is 0", "engine: unknown key 'x'", "run.ranks is \"y\"", "unknown key 'z'"});
}

// Text that others wrote, or that was written to harm.
TEST(DeploymentConfig, HostileTextIsRefused) {
  expect_refused("", {"not valid JSON"});
  expect_refused("{", {"not valid JSON"});
  expect_refused("[]", {"got [] (array), wanted an object"});
  expect_refused("3", {"wanted an object"});
  expect_refused("{}", {"nothing to check"});
  expect_refused(R"({"layers": []})", {"nothing to check"});
  expect_refused(R"({"run": {}, "run": {"ranks": 2}})", {"the key 'run' comes twice"});
  expect_refused(R"({"run": {"ranks": 1e999}})", {"out of range"});
  expect_refused(std::string(R"({"run": {}})") + '\0' + "x", {"a zero byte"});
  expect_refused(std::string(100'000, '['), {"nested deeper"});
  std::string deep;
  for (int i = 0; i < 50'000; ++i) deep += R"({"run":)";
  expect_refused(deep, {"nested deeper"});
  expect_refused(std::string(1'000'001, ' '), {"1000001 bytes, wanted at most 1000000"});
  const std::string got = refusal("{\"run\": {\"ranks\": \"" + std::string(5000, 'A') + "\\u001b[2J\"}}");
  EXPECT_LT(got.size(), 1000U);
  EXPECT_EQ(got.find('\x1b'), std::string::npos);
}

TEST(DeploymentConfig, FromAFileItsPathsStartThere) {
  const TempDir dir;
  std::ofstream(dir.path() / "d.json") << R"({"model": {"config": "m"}})";
  EXPECT_EQ(DeploymentConfig::from_file(dir.path() / "d.json").model->config, dir.path() / "m");
  std::ofstream(dir.path() / "e.json") << R"({"model": {"config": "/m"}})";
  EXPECT_EQ(DeploymentConfig::from_file(dir.path() / "e.json").model->config, "/m");
  for (const char* name : {"absent.json", "."}) {
    const Verdict v = attempt([&] { (void)DeploymentConfig::from_file(dir.path() / name); });
    ASSERT_TRUE(v);
    EXPECT_EQ(v->kind, ErrorKind::usage);
    EXPECT_NE(v->text.find(name), std::string::npos) << v->text;
  }
}

}  // namespace
}  // namespace kerf::test
