// config.json as models' makers publish them: sizes, layers, routing and activation as the model's own code
// has them (transformers 5.24, SGLang 0.5.23, vLLM), or the key for which the model is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/decode/router.h"
#include "tests/checkpoint/refusal.h"

namespace kerf::checkpoint {
namespace {

using routing::Method;
using test::refusal;
using test::TempDir;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelConfig read(std::string_view config) {
  const TempDir dir;
  std::ofstream(dir.path() / "config.json") << config;
  return read_model_config(dir.path());
}

struct Model {
  const char* name;
  const char* config;
  const char* family;
  std::int64_t layers;  // those with experts, and the first of them
  std::int64_t first;
  std::int64_t experts;
  std::int64_t top_k;
  std::int64_t hidden;
  std::int64_t intermediate;
  std::int64_t shared;
  // As the routing methods are called, and whether a bias takes part in choosing.
  Method method;
  bool bias;
  bool normalises;
  double scaling = 1;
  std::int64_t n_group = 0;
  std::int64_t topk_group = 0;
  double epsilon = 1e-20;
};

std::ostream& operator<<(std::ostream& to, const Model& model) { return to << model.name; }

class Models : public testing::TestWithParam<Model> {};

TEST_P(Models, AreReadAsTheirCodeReadsThem) {
  const Model& m = GetParam();
  const ModelConfig c = read(m.config);
  EXPECT_EQ(c.family, m.family);
  EXPECT_EQ(routed_layers(c), m.layers);
  std::int64_t first = 0;
  while (first < c.layers && !c.expert_layers.may_be_in(first)) ++first;
  EXPECT_EQ(first, m.first);
  EXPECT_EQ(c.experts, m.experts);
  EXPECT_EQ(c.top_k, m.top_k);
  EXPECT_EQ(c.hidden, m.hidden);
  EXPECT_EQ(c.intermediate, m.intermediate);
  EXPECT_EQ(c.shared_experts, m.shared);
  EXPECT_EQ(c.activation, "silu");
  EXPECT_TRUE(c.swiglu.plain());
  EXPECT_FALSE(c.router.weights_on_input);
  const routing::Router router = decode::router_of(c);
  EXPECT_EQ(router.method, m.method);
  EXPECT_EQ(c.router.selection_bias, m.bias);
  EXPECT_EQ(router.norm_topk_prob, m.normalises);
  EXPECT_EQ(router.routed_scaling, static_cast<float>(m.scaling));
  EXPECT_EQ(router.n_group > 1 ? router.n_group : 0, m.n_group);
  EXPECT_EQ(router.topk_group > 1 ? router.topk_group : 0, m.topk_group);
  EXPECT_EQ(router.sum_epsilon, static_cast<float>(m.epsilon));
  EXPECT_EQ(router.logit_multiplier, 1.0F);
  EXPECT_THAT(c.unknown_keys, IsEmpty());
}

constexpr auto softmax_then_normalise = Method::renormalize;

INSTANTIATE_TEST_SUITE_P(
    Published, Models,
    testing::Values(
        Model{
            "Ling 2.0",
            R"({"architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe", "hidden_act": "silu",
                  "num_hidden_layers": 20, "hidden_size": 2048, "intermediate_size": 5120, "num_experts": 256,
                  "moe_intermediate_size": 512, "num_shared_experts": 1, "num_experts_per_tok": 8,
                  "n_group": 8, "topk_group": 4, "norm_topk_prob": true, "first_k_dense_replace": 1,
                  "score_function": "sigmoid", "moe_router_enable_expert_bias": true,
                  "routed_scaling_factor": 2.5, "moe_shared_expert_intermediate_size": 512,
                  "router_dtype": "fp32", "use_bias": false, "use_qkv_bias": false, "use_qk_norm": true,
                  "output_router_logits": false, "num_nextn_predict_layers": 0})",
            "ling", 19, 1, 256, 8, 2048, 512, 1, Method::deepseek_v3, true, true, 2.5, 8, 4},
        Model{
            "Ling 1",
            R"({"architectures": ["BailingMoeForCausalLM"], "model_type": "bailing_moe", "hidden_act": "silu",
                  "num_hidden_layers": 28, "hidden_size": 2048, "intermediate_size": 5632, "num_experts": 64,
                  "moe_intermediate_size": 1408, "num_shared_experts": 2, "num_experts_per_tok": 6,
                  "norm_topk_prob": true, "first_k_dense_replace": 0, "use_bias": false})",
            "ling-1", 28, 0, 64, 6, 2048, 1408, 2, softmax_then_normalise, false, true},
        Model{"K-EXAONE",
              R"({"architectures": ["ExaoneMoEForCausalLM"], "model_type": "exaone_moe", "hidden_act": "silu",
                  "first_last_k_dense_replace": 1, "hidden_size": 6144, "intermediate_size": 18432,
                  "is_moe_layer": [false, true, true, true], "moe_intermediate_size": 2048, "n_group": 1,
                  "norm_topk_prob": true, "num_experts": 128, "num_experts_per_tok": 8,
                  "num_hidden_layers": 4, "num_shared_experts": 1, "routed_scaling_factor": 2.5,
                  "scoring_func": "sigmoid", "sliding_window_pattern": "LLLG", "topk_group": 1,
                  "topk_method": "noaux_tc"})",
              "exaone-moe", 3, 1, 128, 8, 6144, 2048, 1, Method::minimax2, true, true, 2.5},
        Model{"Trinity (AFMoE)",
              R"({"architectures": ["AfmoeForCausalLM"], "model_type": "afmoe", "hidden_act": "silu",
                  "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 1024,
                  "num_hidden_layers": 32, "num_dense_layers": 2, "num_experts": 128,
                  "num_experts_per_tok": 8, "num_shared_experts": 1, "num_expert_groups": 1,
                  "num_limited_groups": 1, "n_group": 1, "topk_group": 1, "score_func": "sigmoid",
                  "route_norm": true, "route_scale": 2.826, "mup_enabled": true, "load_balance_coeff": 0.001,
                  "global_attn_every_n_layers": 4, "use_grouped_mm": true})",
              "afmoe", 30, 2, 128, 8, 2048, 1024, 1, Method::minimax2, true, true, 2.826},
        Model{"Hunyuan-A13B",
              R"({"architectures": ["HunYuanMoEV1ForCausalLM"], "model_type": "hunyuan_v1_moe",
                  "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 3072,
                  "moe_intermediate_size": [3072, 3072, 3072, 3072], "moe_topk": [8, 8, 8, 8],
                  "num_experts": 64, "num_hidden_layers": 4, "num_shared_expert": [1, 1, 1, 1],
                  "use_mixed_mlp_moe": true, "moe_drop_tokens": false, "moe_layer_num_skipped": 0,
                  "moe_random_routing_dropped_token": false, "group_limited_greedy": false, "n_group": false,
                  "topk_group": false, "routed_scaling_factor": 1.0, "norm_topk_prob": true,
                  "mlp_bias": false})",
              "hunyuan", 4, 0, 64, 8, 4096, 3072, 1, softmax_then_normalise, false, true},
        Model{"Hy3",
              R"({"architectures": ["HYV3ForCausalLM"], "model_type": "hy_v3", "hidden_act": "silu",
                  "hidden_size": 4096, "intermediate_size": 13312, "moe_intermediate_size": 1536,
                  "num_hidden_layers": 80, "first_k_dense_replace": 1, "num_experts": 192,
                  "num_experts_per_tok": 8, "num_shared_experts": 1, "router_scaling_factor": 2.826,
                  "route_norm": true, "moe_router_enable_expert_bias": true, "moe_router_use_sigmoid": true,
                  "enable_moe_fp32_combine": true, "mlp_bias": false})",
              "hunyuan-3", 79, 1, 192, 8, 4096, 1536, 1, Method::minimax2, true, true, 2.826},
        Model{"LFM2-8B-A1B",
              R"({"architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "hidden_size": 2048,
                  "num_hidden_layers": 24, "intermediate_size": 7168, "moe_intermediate_size": 1792,
                  "num_experts": 32, "num_experts_per_tok": 4, "num_dense_layers": 2, "conv_bias": false,
                  "conv_L_cache": 3, "norm_topk_prob": true, "use_expert_bias": true,
                  "routed_scaling_factor": 1.0})",
              "lfm2-moe", 22, 2, 32, 4, 2048, 1792, 0, Method::minimax2, true, true, 1, 0, 0, 1e-6},
        Model{"LFM2 without a bias",
              R"({"model_type": "lfm2_moe", "hidden_size": 2048, "num_hidden_layers": 4,
                  "moe_intermediate_size": 1792, "num_experts": 32, "num_experts_per_tok": 4,
                  "num_dense_layers": 2, "norm_topk_prob": true, "use_expert_bias": false})",
              "lfm2-moe", 2, 2, 32, 4, 2048, 1792, 0, Method::minimax2, false, true, 1, 0, 0, 1e-6},
        Model{"Step-3",
              R"({"architectures": ["Step3VLForConditionalGeneration"], "model_type": "step3_vl",
                  "text_config": {"model_type": "step3_text", "architectures": ["Step3TextForCausalLM"],
                    "hidden_size": 7168, "intermediate_size": 18432, "num_attention_groups": 1,
                    "num_hidden_layers": 6, "moe_intermediate_size": 5120, "moe_num_experts": 48,
                    "moe_top_k": 3, "share_expert_dim": 5120, "norm_expert_weight": false,
                    "moe_layers_enum": "4,5"},
                  "vision_config": {"hidden_act": "quick_gelu"}})",
              "step-3", 2, 4, 48, 3, 7168, 5120, 1, Method::softmax, false, false},
        Model{"Step-3.5, no layer with a limit",
              R"({"architectures": ["Step3p7ForConditionalGeneration"], "model_type": "step3p7",
                  "text_config": {"model_type": "step3p5", "architectures": ["Step3p5ForCausalLM"],
                    "hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 5,
                    "moe_intermediate_size": 1280, "moe_num_experts": 288, "moe_top_k": 8,
                    "share_expert_dim": 1280, "moe_layers_enum": "3,4", "moe_router_activation": "sigmoid",
                    "moe_router_scaling_factor": 3.0, "need_fp32_gate": true, "norm_expert_weight": true,
                    "use_moe_router_bias": true, "use_moe": true, "swiglu_limits": [0.0, 0, null, 0.0, 0.0],
                    "swiglu_limits_shared": [0.0, 0.0, 0.0, 0.0, 16.0]}})",
              "step-3.5", 2, 3, 288, 8, 4096, 1280, 1, Method::minimax2, true, true, 3.0},
        Model{"Qwen3-Omni",
              R"({"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe",
                  "thinker_config": {"model_type": "qwen3_omni_moe_thinker",
                    "audio_config": {"num_hidden_layers": 32},
                    "text_config": {"model_type": "qwen3_omni_moe_text", "hidden_act": "silu",
                      "hidden_size": 2048, "intermediate_size": 768, "moe_intermediate_size": 768,
                      "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
                      "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
                      "shared_expert_intermediate_size": 0}},
                  "talker_config": {"text_config": {"num_experts": 64, "num_experts_per_tok": 6}}})",
              "qwen3-omni-moe", 48, 0, 128, 8, 2048, 768, 0, softmax_then_normalise, false, true},
        Model{"InternVL3.5",
              R"({"architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "hidden_size": 4096,
                  "llm_config": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
                    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
                    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
                    "num_hidden_layers": 48, "norm_topk_prob": true, "decoder_sparse_step": 1},
                  "vision_config": {"hidden_act": "gelu"}})",
              "qwen3-moe", 48, 0, 128, 8, 2048, 768, 0, softmax_then_normalise, false, true},
        Model{"DeepSeek-VL2",
              R"({"architectures": ["DeepseekVLV2ForCausalLM"], "model_type": "deepseek_vl_v2",
                  "language_config": {"architectures": ["DeepseekV2ForCausalLM"],
                    "model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_size": 2560,
                    "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_group": 1,
                    "n_routed_experts": 72, "n_shared_experts": 2, "num_experts_per_tok": 6,
                    "num_hidden_layers": 30, "topk_group": 1, "topk_method": "greedy"},
                  "projector_config": {"model_type": "mlp_projector"}})",
              "deepseek-v2", 29, 1, 72, 6, 2560, 1536, 2, Method::softmax, false, false},
        Model{
            "Command A+ (Cohere)",
            R"({"architectures": ["Cohere2MoeForCausalLM"], "model_type": "cohere2_moe", "hidden_act": "silu",
                  "hidden_size": 8192, "intermediate_size": 2048, "num_hidden_layers": 4, "num_experts": 64,
                  "num_experts_per_tok": 4, "num_shared_experts": 1, "expert_selection_fn": "softmax",
                  "norm_topk_prob": false, "shared_expert_combination_strategy": "average",
                  "first_k_dense_replace": 1})",
            "cohere-moe", 3, 1, 64, 4, 8192, 2048, 1, softmax_then_normalise, false, true},
        Model{"Cohere's by sigmoid",
              R"({"model_type": "cohere2_moe", "hidden_size": 8192, "intermediate_size": 2048,
                  "num_hidden_layers": 4, "num_experts": 64, "num_experts_per_tok": 4,
                  "expert_selection_fn": "sigmoid", "norm_topk_prob": true})",
              "cohere-moe", 4, 0, 64, 4, 8192, 2048, 0, Method::minimax2, false, true},
        Model{"Laguna",
              R"({"architectures": ["LagunaForCausalLM"], "model_type": "laguna", "hidden_act": "silu",
                  "hidden_size": 2048, "intermediate_size": 8192, "moe_intermediate_size": 512,
                  "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"], "num_experts": 256,
                  "num_experts_per_tok": 8, "shared_expert_intermediate_size": 512, "gating": "per-head",
                  "moe_routed_scaling_factor": 2.5, "moe_apply_router_weight_on_input": false,
                  "moe_router_logit_softcapping": 0.0})",
              "laguna", 2, 1, 256, 8, 2048, 512, 1, Method::minimax2, true, true, 2.5},
        Model{"Granite-MoE hybrid",
              R"({"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid",
                  "hidden_act": "silu", "hidden_size": 1536, "intermediate_size": 512, "num_hidden_layers": 40,
                  "num_local_experts": 64, "num_experts_per_tok": 6, "shared_intermediate_size": 1024,
                  "mamba_n_groups": 1, "time_step_limit": [0.0, Infinity], "logits_scaling": 6,
                  "residual_multiplier": 0.22, "router_aux_loss_coef": 0.0001})",
              "granite-moe", 40, 0, 64, 6, 1536, 512, 1, softmax_then_normalise, false, true},
        Model{"OLMoE",
              R"({"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "hidden_act": "silu",
                  "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16, "num_experts": 64,
                  "num_experts_per_tok": 8, "norm_topk_prob": false, "router_aux_loss_coef": 0.01})",
              "olmoe", 16, 0, 64, 8, 2048, 1024, 0, Method::softmax, false, false},
        Model{"Jamba",
              R"({"architectures": ["JambaForCausalLM"], "model_type": "jamba", "hidden_act": "silu",
                  "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_experts": 16,
                  "num_experts_per_tok": 2, "expert_layer_offset": 1, "expert_layer_period": 2,
                  "router_aux_loss_coef": 0.001, "use_mamba_kernels": true})",
              "jamba", 16, 1, 16, 2, 4096, 14336, 0, Method::softmax, false, false},
        Model{"dots.llm1",
              R"({"architectures": ["Dots1ForCausalLM"], "model_type": "dots1", "hidden_act": "silu",
                  "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408,
                  "num_hidden_layers": 62, "first_k_dense_replace": 1, "n_routed_experts": 128,
                  "n_shared_experts": 2, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1,
                  "norm_topk_prob": true, "scoring_func": "noaux_tc", "routed_scaling_factor": 2.5})",
              "dots1", 61, 1, 128, 6, 4096, 1408, 2, Method::minimax2, true, true, 2.5},
        Model{"Solar-Open",
              R"({"architectures": ["SolarOpenForCausalLM"], "model_type": "solar_open", "hidden_act": "silu",
                  "hidden_size": 4096, "intermediate_size": 10240, "moe_intermediate_size": 1280,
                  "num_hidden_layers": 48, "first_k_dense_replace": 0, "n_routed_experts": 128,
                  "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1,
                  "norm_topk_prob": true, "routed_scaling_factor": 1.0})",
              "solar", 48, 0, 128, 8, 4096, 1280, 1, Method::minimax2, true, true},
        Model{"Qwen3.5-MoE",
              R"({"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
                  "text_config": {"model_type": "qwen3_5_moe_text", "hidden_act": "silu", "hidden_size": 2048,
                    "moe_intermediate_size": 512, "num_experts": 256, "num_experts_per_tok": 8,
                    "num_hidden_layers": 40, "shared_expert_intermediate_size": 512,
                    "output_router_logits": false, "router_aux_loss_coef": 0.001}})",
              "qwen3.5-moe", 40, 0, 256, 8, 2048, 512, 1, softmax_then_normalise, false, true},
        Model{
            "GLM-5",
            R"({"architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "hidden_act": "silu",
                  "hidden_size": 6144, "intermediate_size": 12288, "moe_intermediate_size": 2048,
                  "num_hidden_layers": 78, "first_k_dense_replace": 3, "moe_layer_freq": 1,
                  "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1,
                  "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
                  "norm_topk_prob": true, "routed_scaling_factor": 2.5, "index_topk": 2048,
                  "num_nextn_predict_layers": 1})",
            "glm-5", 75, 3, 256, 8, 6144, 2048, 1, Method::minimax2, true, true, 2.5},
        Model{"Mistral-4",
              R"({"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
                  "projector_hidden_act": "gelu",
                  "text_config": {"model_type": "mistral4", "hidden_act": "silu", "hidden_size": 4096,
                    "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 36,
                    "first_k_dense_replace": 0, "n_routed_experts": 128, "n_shared_experts": 1,
                    "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
                    "routed_scaling_factor": 1.0}})",
              "mistral-4", 36, 0, 128, 4, 4096, 2048, 1, softmax_then_normalise, false, true}));

struct Refused {
  const char* name;
  const char* config;
  const char* says;
  bool routing_alone;  // the experts are computed for routes that come with their weights
};

std::ostream& operator<<(std::ostream& to, const Refused& model) { return to << model.name; }

class RefusedModels : public testing::TestWithParam<Refused> {};

TEST_P(RefusedModels, AreNamedWithKeyAndValue) {
  const Refused& m = GetParam();
  const auto open = [&] { (void)read(m.config); };
  if (!m.routing_alone) {
    EXPECT_THAT(refusal(open, ErrorKind::unsupported), HasSubstr(std::string("config.json: ") + m.says));
    return;
  }
  EXPECT_EQ(refusal(open, ErrorKind::unsupported), "accepted");
  EXPECT_THAT(refusal([&] { (void)decode::router_of(read(m.config)); }, ErrorKind::unsupported),
              HasSubstr(m.says));
}

INSTANTIATE_TEST_SUITE_P(
    Published, RefusedModels,
    testing::Values(
        Refused{"LongCat-Flash",
                R"({"architectures": ["LongcatFlashForCausalLM"], "model_type": "longcat_flash",
                    "hidden_size": 6144, "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048,
                    "num_layers": 28, "moe_topk": 12, "n_routed_experts": 512, "zero_expert_num": 256,
                    "zero_expert_type": "identity", "routed_scaling_factor": 6.0, "router_bias": false})",
                "zero_expert_num is 256", false},
        Refused{"LongCat-Flash without those that compute nothing",
                R"({"model_type": "longcat_flash", "hidden_size": 6144, "expert_ffn_hidden_size": 2048,
                    "num_layers": 28, "num_hidden_layers": 56, "moe_topk": 12, "n_routed_experts": 512,
                    "zero_expert_num": 0})",
                "longcat chooses and weighs experts by softmax with a selection bias", true},
        Refused{"ERNIE-4.5",
                R"({"architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe",
                    "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 12288,
                    "moe_capacity": [64, 64, 64], "moe_gate": "topk", "moe_intermediate_size": 1536,
                    "moe_k": 6, "moe_layer_start_index": 1, "moe_layer_end_index": -1,
                    "moe_layer_interval": 1, "moe_num_experts": 64, "moe_num_shared_experts": 2,
                    "moe_use_aux_free": true, "num_hidden_layers": 28, "use_bias": false})",
                "ernie-4.5 chooses and weighs experts by softmax with a bias", true},
        Refused{"ERNIE-4.5-VL",
                R"({"architectures": ["Ernie4_5_VLMoeForConditionalGeneration"],
                    "model_type": "ernie4_5_moe_vl", "hidden_size": 2560, "num_hidden_layers": 28,
                    "moe_num_experts": [64, 64], "moe_intermediate_size": [1536, 512], "moe_k": 6,
                    "moe_layer_start_index": [1, 1]})",
                "model_type is \"ernie4_5_moe_vl\": ernie-4.5-vl has two kinds of experts", false},
        Refused{"Step-3.5 with limits in some layers",
                R"({"model_type": "step3p5", "hidden_size": 4096, "num_hidden_layers": 2,
                    "moe_intermediate_size": 1280, "moe_num_experts": 288, "moe_top_k": 8,
                    "moe_layers_enum": "1", "swiglu_limits": [0.0, 7.0]})",
                "swiglu_limits is [0.0,7.0]", false},
        Refused{"Hunyuan with other numbers in some layers",
                R"({"model_type": "hunyuan_v1_moe", "hidden_act": "silu", "hidden_size": 4096,
                    "intermediate_size": 3072, "moe_topk": [8, 4], "num_experts": 64,
                    "num_hidden_layers": 2})",
                "moe_topk is [8,4] (array), kerf implements the same in every layer", false},
        Refused{"Nemotron-H",
                R"({"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h",
                    "hidden_size": 2688, "intermediate_size": 1856, "moe_intermediate_size": 1856,
                    "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128,
                    "n_shared_experts": 1, "num_experts_per_tok": 6, "num_hidden_layers": 4,
                    "hybrid_override_pattern": "MEM*", "norm_topk_prob": true, "routed_scaling_factor": 2.5,
                    "n_group": 1, "topk_group": 1, "mlp_hidden_act": "relu2",
                    "time_step_limit": [0.0, Infinity]})",
                "mlp_hidden_act is 'relu2' (ReLU2, not gated), kerf implements silu", false},
        Refused{"Nemotron-H whose file names no activation, in llm_config",
                R"({"architectures": ["NemotronH_Nano_VL_V2"], "llm_config": {"model_type": "nemotron_h",
                    "hidden_size": 2688, "moe_intermediate_size": 1856, "n_routed_experts": 128,
                    "num_experts_per_tok": 6, "num_hidden_layers": 4}})",
                "hidden_act is 'relu2' (ReLU2, not gated) in nemotron-h's code where the file has none",
                false},
        Refused{"Nemotron 3 Super's latent experts",
                R"({"model_type": "nemotron_h", "mlp_hidden_act": "silu", "hidden_size": 4096,
                    "moe_intermediate_size": 2688, "moe_latent_size": 1024, "n_routed_experts": 512,
                    "num_experts_per_tok": 22, "num_hidden_layers": 4})",
                "moe_latent_size is 1024", false},
        Refused{"Gemma-4",
                R"({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text",
                    "enable_moe_block": true, "hidden_size": 2816, "moe_intermediate_size": 704,
                    "num_experts": 128, "top_k_experts": 8, "num_hidden_layers": 30}})",
                "hidden_act is 'gelu_pytorch_tanh' (GeGLU) in gemma-4's code where the file has none", false},
        Refused{"Phi-3.5-MoE",
                R"({"architectures": ["PhiMoEForCausalLM"], "model_type": "phimoe", "hidden_act": "silu",
                    "hidden_size": 4096, "intermediate_size": 6400, "num_hidden_layers": 32,
                    "num_local_experts": 16, "num_experts_per_tok": 2, "router_jitter_noise": 0.01,
                    "input_jitter_noise": 0.01, "router_aux_loss_coef": 0.0})",
                "phimoe chooses and weighs experts by sparsemixer", true},
        Refused{"DBRX", R"({"model_type": "dbrx", "d_model": 6144, "ffn_config": {"moe_num_experts": 16}})",
                "model_type is \"dbrx\": dbrx has experts that are stacked", false},
        // Keys that another family's code reads, or the same family's code does not.
        Refused{"groups in a family without",
                R"({"model_type": "minimax_m2", "hidden_size": 3072, "intermediate_size": 1536,
                    "num_local_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 2, "n_group": 8,
                    "topk_group": 4})",
                "n_group is 8, but minimax-m2's code chooses from all experts, wanted 1", false},
        Refused{"scores that the family's code does not have",
                R"({"model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 768,
                    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 2,
                    "score_func": "sigmoid"})",
                "score_func is \"sigmoid\", but qwen3-moe's code scores by softmax", false},
        Refused{"a bias that the family's code does not have",
                R"({"model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 768,
                    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 2,
                    "use_expert_bias": true})",
                "use_expert_bias is true, but qwen3-moe's code has no selection bias", false},
        Refused{"scaling under another family's name",
                R"({"model_type": "deepseek_v3", "hidden_size": 7168, "moe_intermediate_size": 2048,
                    "n_routed_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 2,
                    "route_scale": 2.5})",
                "route_scale is 2.5, but deepseek-v3's code reads routed_scaling_factor, wanted 1", false},
        Refused{"scaling where the family's code has none",
                R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
                    "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2,
                    "routed_scaling_factor": 2.5})",
                "routed_scaling_factor is 2.5, but mixtral's code multiplies by none, wanted 1", false},
        Refused{"two parts for text",
                R"({"text_config": {"hidden_size": 256}, "llm_config": {"hidden_size": 128}})",
                "text_config and llm_config are both there", false}));

}  // namespace
}  // namespace kerf::checkpoint
