#include "kerf/checkpoint/internal/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kerf::checkpoint::internal {
namespace {

using ::testing::ElementsAre;

TEST(Names, Layers) {
  const auto name = parse_layer_name("model.language_model.layers.61.mlp.gate.weight");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->prefix, "model.language_model.layers.61.");
  EXPECT_EQ(name->layer, 61);
  EXPECT_EQ(name->rest, "mlp.gate.weight");
  for (const char* other :
       {"", "model.layers.", "model.layers.x.y", "model.layers.1", "model.layers.01.y", "layers.1.y",
        "mtp.layers.0.y", "model.layers.-1.y", "model.layers.9999999999.y", "model.layersx.1.y"})
    EXPECT_FALSE(parse_layer_name(other)) << other;
}

std::vector<std::string_view> names_of(Dialects set) {
  std::vector<std::string_view> out;
  for (std::size_t i = 0; i < dialects().size(); ++i)
    if ((set >> i & 1U) != 0) out.push_back(dialects()[i].name);
  return out;
}

TEST(Names, Experts) {
  const ExpertName one = parse_expert_name("mlp.experts.17.up_proj.weight_scale_2");
  EXPECT_EQ(one.naming, ExpertNaming::per_expert);
  EXPECT_EQ(one.expert, 17);
  EXPECT_EQ(one.suffix, "up_proj.weight_scale_2");
  EXPECT_EQ(one.root, "mlp.experts.");
  const auto dialects_of = [](std::string_view rest) { return names_of(parse_expert_name(rest).dialects); };
  EXPECT_THAT(names_of(one.dialects), ElementsAre("per-expert"));
  EXPECT_THAT(dialects_of("mlp.experts.0.up_proj.weight_scale"),
              ElementsAre("per-expert", "compressed-tensors"));
  EXPECT_THAT(dialects_of("block_sparse_moe.experts.0.w3.weight_packed"),
              ElementsAre("compressed-tensors-w1-w3-w2"));
  EXPECT_THAT(dialects_of("mlp.experts.gate_up_proj_input_scale"), ElementsAre("fused", "gpt-oss"));
  EXPECT_THAT(dialects_of("mlp.experts.down_proj"), ElementsAre("fused", "fused-bare", "gpt-oss"));
  EXPECT_THAT(dialects_of("mlp.experts.down_proj.weight_scale"), ElementsAre("fused-dotted", "fused-bare"));
  EXPECT_THAT(dialects_of("feed_forward.experts.gate_up_proj"), ElementsAre("llama4"));
  EXPECT_THAT(dialects_of("feed_forward.experts.3.gate_proj.weight_packed"),
              ElementsAre("compressed-tensors"));
  EXPECT_EQ(parse_expert_name("mlp.experts.down_proj").naming, ExpertNaming::stacked);
  EXPECT_EQ(parse_expert_name(post_norm_name).naming, ExpertNaming::post_norm);
  for (const char* other :
       {"mlp.experts.", "mlp.experts.x", "mlp.experts.1.up_proj", "mlp.experts.1.up_proj.bias",
        "mlp.experts.01.up_proj.weight", "mlp.experts.1.up_proj.weight_zero_point",
        "mlp.experts.gate_up_proj_bias", "mlp.experts.1.q_proj.weight", "mlp.experts.1.w4.weight",
        "feed_forward.experts.gate_up_proj.weight", "mlp.experts.gate_up_proj_weight_packed"})
    EXPECT_EQ(parse_expert_name(other).naming, ExpertNaming::unknown) << other;
  for (const char* other :
       {"", "mlp.gate.weight", "mlp.expert.1.up_proj.weight", "mlp.shared_experts.up_proj.weight",
        "block_sparse_moe.gate.weight", "feed_forward.shared_expert.up_proj.weight"})
    EXPECT_EQ(parse_expert_name(other).naming, ExpertNaming::none) << other;
}

}  // namespace
}  // namespace kerf::checkpoint::internal
