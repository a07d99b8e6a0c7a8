#include "kerf/checkpoint/internal/families.h"

#include <algorithm>
#include <array>

namespace kerf::checkpoint::internal {

namespace {

struct Row {
  Family family;
  // Model types, and what precedes "For..." in architectures.
  std::array<std::string_view, 6> types;
  std::array<std::string_view, 6> architectures;
};

constexpr auto always = Normalises::always;
constexpr auto if_told = Normalises::if_told;
constexpr auto never = Normalises::never;

// By the code of transformers 5.24, and of vLLM and SGLang where that says more.
constexpr auto kRows = std::to_array<Row>({
    {{.name = "muse-spark",
      .scoring = "sigmoid",
      .normalises = always,
      .selection_bias = true,
      .every_layer = true},
     {"muse_spark", "muse_spark_text"},
     {"MuseSpark", "MuseSpark1x"}},
    // softmax over all experts
    {{.name = "qwen3-moe", .scoring = "softmax", .normalises = if_told, .every_layer = true},
     {"qwen3_moe", "qwen2_moe"},
     {"Qwen3Moe", "Qwen2Moe"}},
    {{.name = "qwen3-next", .scoring = "softmax", .every_layer = true}, {"qwen3_next"}, {"Qwen3Next"}},
    {{.name = "qwen3.5-moe", .scoring = "softmax", .normalises = always, .every_layer = true},
     {"qwen3_5_moe", "qwen3_5_moe_text"},
     {"Qwen3_5Moe"}},
    {{.name = "qwen3-vl-moe",
      .scoring = "softmax",
      .normalises = always,
      .stacked = Stacked::unknown,
      .every_layer = true},
     {"qwen3_vl_moe", "qwen3_vl_moe_text"},
     {"Qwen3VLMoe"}},
    {{.name = "mixtral", .scoring = "softmax", .normalises = always, .every_layer = true},
     {"mixtral", "minimax"},
     {"Mixtral", "MiniMax"}},
    {{.name = "olmoe", .scoring = "softmax", .normalises = if_told, .every_layer = true},
     {"olmoe", "flex_olmo"},
     {"Olmoe", "FlexOlmo"}},
    {{.name = "hunyuan", .scoring = "softmax", .normalises = always, .every_layer = true},
     {"hunyuan_v1_moe"},
     {"HunYuanMoEV1"}},
    {{.name = "mellum", .scoring = "softmax"}, {"mellum"}, {"Mellum"}},
    {{.name = "mistral-4", .scoring = "softmax"}, {"mistral4"}, {"Mistral4"}},
    {{.name = "jamba", .scoring = "softmax", .normalises = never}, {"jamba"}, {"Jamba"}},
    {{.name = "deepseek-v2", .scoring = "softmax", .normalises = if_told},
     {"deepseek_v2", "deepseek_ocr2_text"},
     {"DeepseekV2"}},
    // softmax over the chosen: the same numbers
    {{.name = "granite-moe", .scoring = "softmax", .normalises = always, .every_layer = true},
     {"granitemoe", "granitemoeshared", "granitemoehybrid", "granitemoe_swa", "jetmoe"},
     {"GraniteMoe", "GraniteMoeShared", "GraniteMoeHybrid", "GraniteMoeSWA", "JetMoe"}},
    {{.name = "gpt-oss",
      .scoring = "softmax",
      .normalises = always,
      .swiglu = Swiglu::shifted,
      .swiglu_limit = 7.0,
      .stacked = Stacked::alternating,
      .every_layer = true},
     {"gpt_oss"},
     {"GptOss"}},
    // sigmoid, with a bias that takes part in choosing alone
    {{.name = "deepseek-v3",
      .scoring = "sigmoid",
      .selection_bias = true,
      .n_group = 8,
      .topk_group = 4,
      .scaling = 2.5},
     {"deepseek_v3", "deepseek_v32", "axk1"},
     {"DeepseekV3", "DeepseekV32", "AXK1"}},
    {{.name = "kimi-k2",
      .scoring = "sigmoid",
      .selection_bias = true,
      .n_group = 8,
      .topk_group = 4,
      .scaling = 2.5},
     {"kimi_k2", "kimi_k25"},
     {"KimiK2", "KimiK25"}},
    {{.name = "kimi-linear", .scoring = "sigmoid", .selection_bias = true, .scaling = 2.446},
     {"kimi_linear"},
     {"KimiLinear"}},
    {{.name = "ling",
      .scoring = "sigmoid",
      .selection_bias = true,
      .n_group = 8,
      .topk_group = 4,
      .scaling = 2.5},
     {"bailing_hybrid"},
     {"BailingHybrid"}},
    {{.name = "glm-4-moe", .scoring = "sigmoid", .selection_bias = true},
     {"glm4_moe", "glm4v_moe", "glm4v_moe_text"},
     {"Glm4Moe", "Glm4vMoe"}},
    {{.name = "glm-4-moe-lite", .scoring = "sigmoid", .selection_bias = true, .scaling = 1.8},
     {"glm4_moe_lite"},
     {"Glm4MoeLite"}},
    {{.name = "glm-5", .scoring = "sigmoid", .selection_bias = true, .scaling = 2.5},
     {"glm_moe_dsa"},
     {"GlmMoeDsa"}},
    {{.name = "glm-5-next",
      .scoring = "sigmoid",
      .selection_bias = true,
      .swiglu = Swiglu::clamped,
      .swiglu_limit = 10.0,
      .scaling = 2.5},
     {"glm5_next", "glm5_next_text"},
     {"Glm5Next"}},
    {{.name = "minimax-m2",
      .scoring = "sigmoid",
      .normalises = always,
      .selection_bias = true,
      .every_layer = true,
      .scales = false},
     {"minimax_m2"},
     {"MiniMaxM2"}},
    {{.name = "minimax-m3",
      .scoring = "sigmoid",
      .normalises = always,
      .selection_bias = true,
      .swiglu = Swiglu::shifted,
      .swiglu_limit = 7.0,
      .every_layer = true,
      .scaling = 2.0},
     {"minimax_m3_vl", "minimax_m3_vl_text"},
     {"MiniMaxM3VL", "MiniMaxM3"}},
    {{.name = "mimo-v2", .scoring = "sigmoid", .selection_bias = true}, {"mimo_v2_flash"}, {"MiMoV2Flash"}},
    {{.name = "dots1", .scoring = "sigmoid", .normalises = if_told, .selection_bias = true},
     {"dots1"},
     {"Dots1"}},
    {{.name = "exaone-moe", .scoring = "sigmoid", .selection_bias = true, .scaling = 2.5},
     {"exaone_moe"},
     {"ExaoneMoe"}},
    {{.name = "solar", .scoring = "sigmoid", .selection_bias = true}, {"solar_open"}, {"SolarOpen"}},
    {{.name = "afmoe", .scoring = "sigmoid", .normalises = always, .selection_bias = true, .scales = false},
     {"afmoe"},
     {"Afmoe"}},
    {{.name = "nemotron-h", .scoring = "sigmoid", .selection_bias = true}, {"nemotron_h"}, {"NemotronH"}},
    // sigmoid of the chosen logit, on the experts' input
    {{.name = "llama-4",
      .scoring = "sigmoid",
      .normalises = if_told,
      .weights_on_input = true,
      .stacked = Stacked::columns,
      .every_layer = true},
     {"llama4", "llama4_text"},
     {"Llama4"}},
    // what kerf does not compute
    {{.name = "phimoe",
      .scoring = "softmax",
      .every_layer = true,
      .other_routing =
          "by sparsemixer, a softmax of its own for each choice over the logits that are near the largest"},
     {"phimoe"},
     {"PhiMoE", "Phimoe"}},
    {{.name = "ernie-4.5",
      .scoring = "softmax",
      .other_routing = "by softmax with a bias that takes part in choosing alone (moe_statics)"},
     {"ernie4_5_moe", "ernie4_5_vl_moe", "ernie4_5_vl_moe_text"},
     {"Ernie4_5_Moe", "Ernie4_5_VLMoe"}},
    {{.name = "longcat",
      .scoring = "softmax",
      .scaling = 6.0,
      .other_routing = "by softmax with a selection bias, over experts and as many as zero_expert_num that "
                       "compute nothing"},
     {"longcat_flash"},
     {"LongcatFlash"}},
    {{.name = "hunyuan-3",
      .scoring = "sigmoid",
      .other_routing = "with weights multiplied by router_scaling_factor (2.826 where the file has none)"},
     {"hy_v3"},
     {"HYV3"}},
    {{.name = "lfm2-moe",
      .scoring = "sigmoid",
      .other_routing = "by sigmoid with a selection bias and 1e-6 added to the sum"},
     {"lfm2_moe"},
     {"Lfm2Moe"}},
    {{.name = "deepseek-v4",
      .scoring = "sqrtsoftplus",
      .swiglu = Swiglu::clamped,
      .swiglu_limit = 10.0,
      .other_routing = "by the square root of softplus, and in the first layers by a table of tokens"},
     {"deepseek_v4"},
     {"DeepseekV4"}},
    {{.name = "gemma-4",
      .scoring = "softmax",
      .other_routing =
          "with a norm and a gain before the logits and a factor for each expert (per_expert_scale)"},
     {"gemma4", "gemma4_text", "diffusion_gemma", "diffusion_gemma_text"},
     {"Gemma4", "DiffusionGemma"}},
    {{.name = "zaya",
      .scoring = "softmax",
      .other_routing = "by an MLP over the states of routers before it"},
     {"zaya"},
     {"Zaya"}},
    {{.name = "inkling",
      .scoring = "sigmoid",
      .other_routing =
          "with weights that shared experts take part in and factors of its own (route_scale, global_scale)"},
     {"inkling", "inkling_text", "inkling2", "inkling2_text", "inkling2_loop", "inkling2_loop_text"},
     {"Inkling", "Inkling2", "Inkling2Loop"}},
});

template <typename List>
bool holds(const List& list, std::string_view name) {
  return !name.empty() && std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

Family family_of(std::string_view model_type, const std::vector<std::string>& architectures) {
  for (const Row& row : kRows)
    if (holds(row.types, model_type)) return row.family;
  for (const std::string& architecture : architectures) {
    const std::string_view whole = architecture;
    const std::string_view base = whole.substr(0, whole.find("For"));
    for (const Row& row : kRows)
      if (holds(row.architectures, base)) return row.family;
  }
  return {"", "softmax"};
}

Family family_named(std::string_view name) {
  for (const Row& row : kRows)
    if (row.family.name == name) return row.family;
  return {"", "softmax"};
}

}  // namespace kerf::checkpoint::internal
