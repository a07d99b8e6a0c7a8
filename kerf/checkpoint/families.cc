#include "kerf/checkpoint/internal/families.h"

#include <algorithm>
#include <array>

namespace kerf::checkpoint::internal {

namespace {

struct Row {
  Family family;
  // Model types, and what precedes "For..." in architectures.
  std::array<std::string_view, 6> types;
  std::array<std::string_view, 4> architectures;
};

constexpr auto always = Normalises::always;
constexpr auto if_told = Normalises::if_told;
constexpr auto unless_told = Normalises::unless_told;

constexpr std::array<Row, 16> kRows = {{
    {{"muse-spark", "sigmoid", always, true},
     {"muse_spark", "muse_spark_text"},
     {"MuseSpark", "MuseSpark1x"}},
    {{"qwen3-moe", "softmax", if_told}, {"qwen3_moe", "qwen2_moe"}, {"Qwen3Moe", "Qwen2Moe"}},
    {{"qwen3-next", "softmax", unless_told}, {"qwen3_next"}, {"Qwen3Next"}},
    {{"qwen3.5-moe", "softmax", always}, {"qwen3_5_moe", "qwen3_5_moe_text"}, {"Qwen3_5Moe"}},
    {{"qwen3-vl-moe", "softmax", always, false, false, Swiglu::plain, Stacked::unknown},
     {"qwen3_vl_moe", "qwen3_vl_moe_text"},
     {"Qwen3VLMoe"}},
    {{"mixtral", "softmax", always}, {"mixtral", "minimax"}, {"Mixtral", "MiniMax"}},
    {{"deepseek-v3", "sigmoid", unless_told, true},
     {"deepseek_v3", "deepseek_v32"},
     {"DeepseekV3", "DeepseekV32"}},
    {{"deepseek-v2", "softmax", if_told}, {"deepseek_v2"}, {"DeepseekV2"}},
    {{"kimi-k2", "sigmoid", unless_told, true},
     {"kimi_k2", "kimi_k25", "kimi_linear"},
     {"KimiK2", "KimiK25", "KimiLinear"}},
    {{"glm-4-moe", "sigmoid", unless_told, true},
     {"glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm4v_moe_text", "glm_moe_dsa"},
     {"Glm4Moe", "Glm4MoeLite", "Glm4vMoe", "GlmMoeDsa"}},
    {{"glm-5-next", "sigmoid", unless_told, true, false, Swiglu::clamped},
     {"glm5_next", "glm5_next_text"},
     {"Glm5Next"}},
    {{"minimax-m2", "sigmoid", always, true}, {"minimax_m2"}, {"MiniMaxM2"}},
    {{"minimax-m3", "sigmoid", always, true, false, Swiglu::shifted},
     {"minimax_m3_vl", "minimax_m3_vl_text"},
     {"MiniMaxM3VL", "MiniMaxM3"}},
    {{"gpt-oss", "softmax", always, false, false, Swiglu::shifted, Stacked::alternating},
     {"gpt_oss"},
     {"GptOss"}},
    {{"llama-4", "sigmoid", if_told, false, true, Swiglu::plain, Stacked::columns},
     {"llama4", "llama4_text"},
     {"Llama4"}},
    {{"nemotron-h", "sigmoid", unless_told, true}, {"nemotron_h"}, {"NemotronH"}},
}};

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
