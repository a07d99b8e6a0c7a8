// The checks together: which are asked, what each says about a deployment, and that no reason is left out.
#include "kerf/deploy/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "kerf/comm/nccl.h"
#include "kerf/cuda/library.h"
#include "kerf/decode/grid_shape.h"
#include "kerf/decode/memory_plan.h"
#include "kerf/deploy/parts.h"
#include "tests/support/gpu.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

using deploy::Check;
using deploy::DeploymentConfig;

constexpr deploy::Machine large = {std::int64_t{1} << 40, 4};

Check check(const DeploymentConfig& config, std::string_view name, const deploy::Machine& machine = large) {
  for (const Check& c : deploy::run_checks(config, machine))
    if (c.name == name) return c;
  ADD_FAILURE() << "no check " << name;
  return {};
}

// 48 experts of 256 x 3072, two layers, one of them BF16, in code.
DeploymentConfig sound() {
  DeploymentConfig c;
  c.engine = deploy::EngineConfig{"FLASHINFER", true, 8, true, "mnnvl"};
  deploy::AttentionLayer layer{"layers.0", "FLASHINFER", deploy::TrtllmMetadata{{8, 4}, {8}},
                               deploy::Rope::library, deploy::KvCache{}};
  layer.kv_cache->heads = 1;
  layer.kv_cache->head_size = 128;
  c.layers = {layer, layer};
  c.layers[1].name = "layers.1";
  c.model = deploy::ModelSizes{};
  c.model->experts = 48;
  c.model->hidden = 256;
  c.model->intermediate = 3072;
  c.model->top_k = 8;
  c.model->layers = 2;
  c.model->bf16_layers = 1;
  c.run = deploy::RunConfig{};
  c.run->ranks = 8;
  return c;
}

TEST(Checks, ASoundDeploymentHasNoReason) {
  const std::vector<Check> checks = deploy::run_checks(sound(), large);
  const std::vector<std::string_view> names = {"engine", "attention", "decode-metadata", "rope",  "kv-insert",
                                               "parts",  "model",     "placement",       "memory"};
  ASSERT_EQ(checks.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(checks[i].name, names[i]);
    EXPECT_TRUE(checks[i].asked) << names[i];
    EXPECT_EQ(checks[i].reasons, deploy::Reasons{}) << names[i];
  }
  EXPECT_EQ(deploy::unsupported(sound(), large), deploy::Reasons{});
}

TEST(Checks, WhatIsNotDescribedIsNotAsked) {
  DeploymentConfig c;
  c.engine = deploy::EngineConfig{};
  for (const Check& one : deploy::run_checks(c, large))
    EXPECT_EQ(one.asked, one.name == "engine") << one.name;
  c.engine.reset();
  c.layers = {{"layers.0", {}, {}, deploy::Rope::stock, {}}};
  for (const Check& one : deploy::run_checks(c, large)) EXPECT_EQ(one.asked, one.name == "rope") << one.name;
}

TEST(Checks, NoRanksAreAMistakeOfTheCallers) {
  DeploymentConfig c = sound();
  c.run->ranks = 0;
  const Verdict v = attempt([&] { (void)deploy::run_checks(c, large); });
  ASSERT_TRUE(v);
  EXPECT_EQ(*v, (Reason{ErrorKind::usage, "run.ranks is 0, wanted 1 or more"}));
  EXPECT_EQ(attempt([] { (void)decode::grid_shape(0, {}, 1); })->kind, ErrorKind::usage);
}

// One fault in every check, two in some: all of them come out, each led by its check.
TEST(Checks, EveryReasonOfEveryCheck) {
  DeploymentConfig c = sound();
  c.engine->flashinfer_all_reduce = false;
  c.engine->all_reduce_backend = "trtllm";
  c.layers[0].backend = "TRITON";
  c.layers[1].backend = "FLASH_ATTN";
  c.layers[1].decode = deploy::WrapperMetadata{"Wrapper"};
  c.layers[1].rope = deploy::Rope::stock;
  c.requirements.rope = deploy::Rope::library;
  c.layers[0].kv_cache->nvfp4 = true;
  c.layers[1].kv_cache->dtype = "fp8";
  if (why_no_gpu().empty()) GTEST_SKIP() << "there is a GPU";
  c.run->device = "cuda";
  c.run->group = "nccl";
  c.run->ranks = 5;
  c.run->tp = 5;
  const deploy::Reasons reasons = deploy::unsupported(c, large);
  const std::vector<std::string> wanted = {
      "engine: flashinfer_all_reduce",
      "engine: all_reduce_backend",
      "attention: layers.0 runs the 'TRITON'",
      "attention: layers.1 runs the 'FLASH_ATTN'",
      "decode-metadata: layers.1: ",
      "rope: layers.1: rope is 'stock', wanted 'library'",
      "kv-insert: layers.0: the cache holds NVFP4",
      "kv-insert: layers.1: the cache's dtype is 'fp8'",
      "parts: device cuda: " + why_no_gpu(),
      "parts: group nccl: " +
          deploy::lacking("group", "nccl")->text.substr(std::string("group nccl: ").size()),
      "placement: 48 experts over 5 ranks",
      "placement: experts of hidden 256 x intermediate 3072 cannot be cut 5 ways",
  };
  ASSERT_EQ(reasons.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_TRUE(reasons[i].starts_with(wanted[i])) << reasons[i] << ", wanted " << wanted[i];
}

TEST(Checks, RopeIsEithersUnlessOneIsRequired) {
  DeploymentConfig c = sound();
  c.layers[1].rope = deploy::Rope::stock;
  const Check either = check(c, "rope");
  EXPECT_TRUE(either.ok());
  EXPECT_EQ(either.notes, std::vector<std::string>{"1 of 2 layers run the library's RoPE, 1 the stock op"});
  c.requirements.rope = deploy::Rope::stock;
  EXPECT_EQ(check(c, "rope").reasons, deploy::Reasons{"layers.0: rope is 'library', wanted 'stock'"});
}

// Legal and illegal cuts and placements, and what decode would do where none was asked for.
TEST(Checks, Placement) {
  DeploymentConfig c = sound();
  for (const std::int64_t ranks : {1, 2, 3, 4, 6, 8, 12, 16, 24, 48}) {
    c.run->ranks = ranks;
    EXPECT_EQ(check(c, "placement").reasons, deploy::Reasons{}) << ranks;
  }
  c.run->ranks = 7;
  EXPECT_FALSE(check(c, "placement").ok());
  EXPECT_FALSE(check(c, "memory").asked);
  // I = 128 does not split 4 ways: EP alone, unless the cut was asked for.
  c.model->intermediate = 128;
  c.run->ranks = 4;
  const Check ep = check(c, "placement");
  EXPECT_TRUE(ep.ok());
  EXPECT_TRUE(ep.notes.at(0).starts_with("EP alone (--mode ep): expert TP is not possible"))
      << ep.notes.at(0);
  c.run->tp = 4;
  EXPECT_FALSE(check(c, "placement").ok());
  // A grid: two rows of two slices.
  c.run->tp = 2;
  const Check grid = check(c, "placement");
  EXPECT_EQ(grid.reasons, deploy::Reasons{});
  EXPECT_EQ(grid.notes.at(0), "4 ranks: 12 experts each; EP 2 x TP 2, 24 experts of a row, slices 64 wide");
  c.run->ep = 4;
  EXPECT_EQ(check(c, "placement").reasons,
            deploy::Reasons{"ep 4 x tp 2 is not 4 ranks; wanted ep 2 or tp 1"});
}

// The most that a rank needs, to the byte, against what is there.
TEST(Checks, MemoryIsComparedToTheByte) {
  DeploymentConfig c = sound();
  decode::MemoryRequest request;
  request.experts = 48;
  request.hidden = 256;
  request.intermediate = 3072;
  request.top_k = 8;
  request.nvfp4_layers = 1;
  request.bf16_layers = 1;
  request.ranks = 8;
  request.tp = 8;
  request.workers = 1;  // 4 cores for 8 ranks
  const decode::MemoryPlan plan = decode::memory_plan(request);
  const std::int64_t needed = std::max(plan.reshard, plan.steady);
  c.run->memory_per_rank = needed;
  EXPECT_TRUE(check(c, "memory").ok());
  c.run->memory_per_rank = needed - 1;
  EXPECT_FALSE(check(c, "memory").ok());
  // Nothing said: the machine's, in equal parts.
  c.run->memory_per_rank.reset();
  EXPECT_TRUE(check(c, "memory", {8 * needed, 4}).ok());
  const Check small = check(c, "memory", {8 * needed - 1, 4});
  ASSERT_EQ(small.reasons.size(), 1U);
  EXPECT_NE(small.reasons[0].find("this machine's, in equal parts"), std::string::npos) << small.reasons[0];
}

TEST(Checks, TheModelsConfigIsRead) {
  const TempDir dir;
  const auto write = [&](const std::string& more) {
    std::ofstream(dir.path() / "config.json")
        << R"({"num_hidden_layers": 3, "num_experts": 16, "num_experts_per_tok": 4, "hidden_size": 256,
               "moe_intermediate_size": 128, "hidden_act": "silu")"
        << more << "}";
  };
  write("");
  DeploymentConfig c;
  c.model = deploy::ModelSizes{};
  c.model->config = dir.path();
  Check model = check(c, "model");
  EXPECT_EQ(model.reasons, deploy::Reasons{});
  EXPECT_EQ(model.notes.back(), "3 NVFP4 and 0 BF16 layers of 16 experts, 256 x 128, top 4");
  // What the configuration says itself comes first.
  c.model->top_k = 2;
  c.model->bf16_layers = 1;
  EXPECT_EQ(check(c, "model").notes.back(), "2 NVFP4 and 1 BF16 layers of 16 experts, 256 x 128, top 2");
  c.model->bf16_layers.reset();
  // Excluded layers are BF16 ones.
  write(R"(, "quantization_config": {"quant_algo": "NVFP4", "ignore": ["model.layers.0.mlp.experts*"]})");
  EXPECT_EQ(check(c, "model").notes.back(), "2 NVFP4 and 1 BF16 layers of 16 experts, 256 x 128, top 2");

  write(R"(, "scoring_func": "tanh")");
  model = check(c, "model");
  ASSERT_EQ(model.reasons.size(), 1U);
  EXPECT_NE(model.reasons[0].find("scoring_func is \"tanh\""), std::string::npos) << model.reasons[0];
  EXPECT_FALSE(check(c, "placement").asked);
  c.model->config = dir.path() / "nowhere" / "config.json";
  model = check(c, "model");
  ASSERT_EQ(model.reasons.size(), 1U);
  EXPECT_NE(model.reasons[0].find("nowhere"), std::string::npos) << model.reasons[0];
}

TEST(Checks, ShapesThatTheLayoutCannotHold) {
  DeploymentConfig c = sound();
  c.model->hidden = 96;
  const Check model = check(c, "model");
  ASSERT_EQ(model.reasons.size(), 2U);  // as NVFP4, and as BF16
  EXPECT_NE(model.reasons[0].find("96"), std::string::npos);
  c = sound();
  c.model->top_k = 49;
  EXPECT_EQ(check(c, "model").reasons, deploy::Reasons{"top_k is 49, wanted 1 to the 48 experts"});
  c = sound();
  c.model->bf16_layers = 3;
  EXPECT_EQ(check(c, "model").reasons, deploy::Reasons{"bf16_layers is 3, but there are 2 layers"});
}

// The words of a refusal are the library's own, wherever they show.
TEST(Parts, TheReasonComesFromOnePlace) {
  const Verdict library = cuda::library();
  if (!library) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(library->kind, ErrorKind::device);
  const auto parts = deploy::optional_parts();
  const auto cuda = std::find_if(parts.begin(), parts.end(), [](const auto& p) { return p.name == "cuda"; });
  ASSERT_NE(cuda, parts.end());
  EXPECT_EQ(cuda->absent(), library);
  const Verdict lacking = deploy::lacking("device", "cuda");
  ASSERT_TRUE(lacking);
  EXPECT_EQ(lacking->kind, ErrorKind::device);
  EXPECT_NE(lacking->text.find(library->text), std::string::npos) << lacking->text;
  EXPECT_FALSE(deploy::lacking("device", "cpu"));
  EXPECT_FALSE(deploy::lacking("group", "local"));
  const Verdict nccl = comm::nccl_absent("");
  ASSERT_TRUE(nccl);  // without a device there is none either
  EXPECT_EQ(deploy::lacking("group", "nccl")->text,
            "group nccl: " + nccl->text + "; it has the group 'local'");
  EXPECT_EQ(deploy::lacking("group", "cpu")->kind, ErrorKind::usage);
  EXPECT_EQ(deploy::lacking("device", "tpu")->text, "there is no device 'tpu'; there are cpu, cuda");
}

TEST(Machine, ThisOneHasSomething) {
  const deploy::Machine machine = deploy::this_machine();
  EXPECT_GT(machine.memory, std::int64_t{1} << 20);
  EXPECT_LT(machine.memory, std::int64_t{1} << 50);
  EXPECT_GE(machine.cores, 1);
}

}  // namespace
}  // namespace kerf::test
