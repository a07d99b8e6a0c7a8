// What the configuration says of layers and routing, through the commands: the same answer from each.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/onehot.h"

namespace kerf::test {
namespace {

using nlohmann::json;

json model(int layers, const json& more) {
  json out = {{"hidden_size", 256},
              {"moe_intermediate_size", 128},
              {"num_experts", 8},
              {"num_experts_per_tok", 2},
              {"num_hidden_layers", layers},
              {"hidden_act", "silu"},
              {"quantization_config", {{"quant_algo", "NVFP4"}, {"group_size", 16}}}};
  out.update(more);
  return out;
}

// NVFP4 layers and BF16 layers that plan counts.
std::pair<int, int> planned(const json& config) {
  const TempDir dir;
  std::ofstream(dir.path() / "config.json") << config.dump();
  const Ran ran = run_program({"plan", (dir.path() / "config.json").string(), "--json"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  if (ran.code != 0) return {-1, -1};
  return {json_of(ran)["nvfp4_layers"].get<int>(), json_of(ran)["bf16_layers"].get<int>()};
}

// Published sizes: DeepSeek-V3, Llama-4 Maverick, Qwen3 with other steps, Kimi-Linear-like lists.
TEST(PlanLayers, CountsThoseWithExpertsAlone) {
  using Two = std::pair<int, int>;
  EXPECT_EQ(planned(model(61, {{"first_k_dense_replace", 3}, {"moe_layer_freq", 1}})), (Two{58, 0}));
  EXPECT_EQ(planned(model(48, {{"interleave_moe_layer_step", 2}})), (Two{24, 0}));
  EXPECT_EQ(planned(model(94, {{"decoder_sparse_step", 2}, {"mlp_only_layers", json::array()}})),
            (Two{47, 0}));
  EXPECT_EQ(planned(model(94, {{"decoder_sparse_step", 1}, {"mlp_only_layers", {0, 1}}})), (Two{92, 0}));
  EXPECT_EQ(planned(model(4, {{"mlp_layer_types", {"dense", "sparse", "sparse", "sparse"}}})), (Two{3, 0}));
  EXPECT_EQ(planned(model(4, json::object())), (Two{4, 0}));
  // Of layers left out of the quantisation those without experts do not count either.
  json excluded = model(4, {{"first_k_dense_replace", 1}});
  excluded["quantization_config"]["exclude_modules"] = {"model.layers.0.mlp*", "model.layers.1.mlp*"};
  EXPECT_EQ(planned(excluded), (Two{2, 1}));
}

Onehot two_layers() {
  Onehot onehot({.layers = {checkpoint::ExpertKind::nvfp4, checkpoint::ExpertKind::nvfp4}});
  onehot.config["decoder_sparse_step"] = std::to_string(1);
  return onehot;
}

void remove_layer_1(Onehot& onehot) {
  const auto of_it = [](const auto& t) { return t.first.starts_with("model.layers.1.mlp.experts"); };
  for (auto& shard : onehot.shards) std::erase_if(shard.tensors, of_it);
  std::erase_if(onehot.index, of_it);
}

TEST(MissingLayer, EveryCommandSaysSoAndNamedLayersRun) {
  const TempDir dir;
  Onehot onehot = two_layers();
  remove_layer_1(onehot);
  onehot.write(dir.path());
  const std::string path = dir.path().string();
  const Ran verify = run_program({"verify", path});
  EXPECT_EQ(verify.code, 3);
  EXPECT_TRUE(contains(verify.out, "layer without its routed experts: 1"));
  EXPECT_TRUE(contains(
      verify.out, "layer 1, no tensor of any, wanted 4 experts (config.json: decoder_sparse_step is 1)"));
  const Ran inspect = run_program({"inspect", path});
  EXPECT_EQ(inspect.code, 0) << inspect.err;
  EXPECT_TRUE(contains(inspect.out, "layer without its routed experts"));
  const TempDir out;
  const std::string to = (out.path() / "export").string();
  for (const std::vector<std::string>& command : {std::vector<std::string>{"decode", path, "--seconds", "0"},
                                                  {"decode", path, "--seconds", "0", "--layers", "1"},
                                                  {"export", path, to}})
    expect_refusal(run_program(command), 3, {"layer 1", "decoder_sparse_step is 1"});
  EXPECT_EQ(run_program({"decode", path, "--seconds", "0", "--layers", "0"}).code, 0);
  EXPECT_EQ(run_program({"export", path, to, "--layers", "0"}).code, 0);
  EXPECT_EQ(run_program({"decode", to, "--seconds", "0"}).code, 0);
  // plan goes by the configuration, and says why.
  const Ran plan = run_program({"plan", path, "--json"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(json_of(plan)["nvfp4_layers"], 2);
  EXPECT_TRUE(contains(plan.err, "layer without its routed experts"));
}

TEST(RoutingOfTheConfiguration, IsJudgedAlikeByEveryCommand) {
  const TempDir dir;
  Onehot onehot = two_layers();
  onehot.config["scoring_func"] = R"("sigmoid")";
  onehot.config["n_group"] = std::to_string(3);
  onehot.config["topk_group"] = std::to_string(2);
  onehot.write(dir.path());
  const std::string path = dir.path().string();
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"verify", path},
        {"inspect", path},
        {"plan", path},
        {"decode", path},
        {"run", path, "--layer", "0", "--in", path, "--out", (dir.path() / "out").string()}})
    expect_refusal(run_program(command), 3,
                   {"config.json: n_group is 3, wanted a number that divides 4 experts"});
}

}  // namespace
}  // namespace kerf::test
