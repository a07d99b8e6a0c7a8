#include "kerf/decode/same_model.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/base/text.h"

namespace kerf::decode {

namespace {

using checkpoint::ModelConfig;

struct Value {
  std::string_view name;
  std::string text;
};

// f64 as its shortest text that reads back as the same number: equal texts are equal values.
std::vector<Value> values_of(const ModelConfig& c) {
  std::vector<Value> out;
  const auto add = [&](std::string_view name, const auto& value) {
    out.push_back({name, fmt::format("{}", value)});
  };
  const auto limit = [](const std::optional<double>& l) { return l ? fmt::format("{}", *l) : "none"; };
  add("architecture", shown(c.architecture));
  add("layers", c.layers);
  add("experts", c.experts);
  add("experts of a token", c.top_k);
  add("width of the experts", c.hidden);
  add("intermediate width", c.intermediate);
  add("width of the model", c.model_hidden);
  add("activation", shown(c.activation));
  add("SwiGLU's alpha", c.swiglu.alpha);
  add("SwiGLU's beta", c.swiglu.beta);
  add("SwiGLU's limit", limit(c.swiglu.limit));
  add("scoring of the router", shown(c.router.scoring));
  add("normalised weights", c.router.norm_topk_prob);
  add("routed scaling", c.router.routed_scaling);
  add("multiplier of logits", c.router.logit_multiplier);
  add("epsilon of the weights' sum", c.router.sum_epsilon);
  add("groups of experts", c.router.n_group);
  add("groups chosen", c.router.topk_group);
  add("selection bias", c.router.selection_bias);
  add("weights on the input", c.router.weights_on_input);
  add("shared experts", c.shared_experts);
  add("norm after the experts",
      c.post_norm ? fmt::format("eps {}, gain around {} {}", c.post_norm->eps, c.post_norm->gain_center,
                                c.post_norm->gain_before_norm ? "before it" : "after it")
                  : std::string("none"));
  add("pool", c.pool ? fmt::format("eps {}, gain around {}", c.pool->norm_eps, c.pool->gain_center)
                     : std::string("none"));
  return out;
}

}  // namespace

Verdict another_model(const ModelConfig& got, const ModelConfig& wanted) {
  const std::vector<Value> mine = values_of(got);
  const std::vector<Value> theirs = values_of(wanted);
  std::string differing;
  for (std::size_t i = 0; i < mine.size(); ++i)
    if (mine[i].text != theirs[i].text)
      differing += fmt::format("{}{}: got {}, wanted {}", differing.empty() ? "" : "; ", mine[i].name,
                               mine[i].text, theirs[i].text);
  if (differing.empty()) return std::nullopt;
  return because(ErrorKind::checkpoint, "it describes another model: {}", differing);
}

}  // namespace kerf::decode
