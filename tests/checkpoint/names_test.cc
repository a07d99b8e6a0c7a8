#include "kerf/checkpoint/internal/names.h"

#include <gtest/gtest.h>

namespace kerf::checkpoint::internal {
namespace {

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

TEST(Names, Experts) {
  const ExpertName one = parse_expert_name("mlp.experts.17.up_proj.weight_scale_2");
  EXPECT_EQ(one.naming, ExpertNaming::per_expert);
  EXPECT_EQ(one.expert, 17);
  EXPECT_EQ(one.suffix, "up_proj.weight_scale_2");
  EXPECT_EQ(parse_expert_name("mlp.experts.gate_up_proj_input_scale").naming, ExpertNaming::fused);
  EXPECT_EQ(parse_expert_name("mlp.experts.down_proj").naming, ExpertNaming::fused);
  EXPECT_EQ(parse_expert_name(post_norm_name).naming, ExpertNaming::post_norm);
  for (const char* other :
       {"mlp.experts.", "mlp.experts.x", "mlp.experts.1.up_proj", "mlp.experts.1.up_proj.bias",
        "mlp.experts.01.up_proj.weight", "mlp.experts.1.up_proj.weight_packed",
        "mlp.experts.gate_up_proj_bias", "mlp.experts.1.q_proj.weight"})
    EXPECT_EQ(parse_expert_name(other).naming, ExpertNaming::unknown) << other;
  for (const char* other :
       {"", "mlp.gate.weight", "mlp.expert.1.up_proj.weight", "mlp.shared_experts.up_proj.weight"})
    EXPECT_EQ(parse_expert_name(other).naming, ExpertNaming::none) << other;
}

}  // namespace
}  // namespace kerf::checkpoint::internal
