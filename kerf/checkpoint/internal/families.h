// Model families by model_type (or architecture): what their code does with the routed experts where
// config.json does not say it, or says it in a key whose meaning is theirs. One line a family.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kerf::checkpoint::internal {

// Weights of the chosen experts, where norm_topk_prob is absent. The last two know no such key.
enum class Normalises : unsigned char { unless_told, if_told, always, never };

// What swiglu_limit and swiglu_alpha mean.
enum class Swiglu : unsigned char {
  plain,    // silu(gate) * up: the keys have no meaning
  clamped,  // silu(min(gate, limit)) * clamp(up, limit)
  shifted,  // g * sigmoid(alpha * g) * (clamp(up, limit) + 1), g = min(gate, limit)
};

// How experts that are stacked in one tensor lie there.
enum class Stacked : unsigned char {
  rows,         // [E, out, in], gate rows first
  columns,      // [E, in, out], gate columns first: under feed_forward.experts
  alternating,  // [E, in, out], gate and up columns in turn
  unknown,      // tools have written both
};

struct Family {
  std::string_view name;     // as messages call it; empty: none that is known
  std::string_view scoring;  // what scores where scoring_func is absent
  Normalises normalises = Normalises::unless_told;
  bool selection_bias = false;    // the code adds e_score_correction_bias to the scores
  bool weights_on_input = false;  // routing weights multiply the experts' input, not their output
  Swiglu swiglu = Swiglu::plain;
  double swiglu_limit = 0;  // where the key is absent; 0: none
  Stacked stacked = Stacked::rows;
  bool pools = false;        // Muse Spark's experts: of a width of their own, with a norm after them
  bool every_layer = false;  // has routed experts, where no key says otherwise
  // Where the keys are absent: groups and how many of them are chosen from, and what weights are multiplied
  // by.
  std::int64_t n_group = 0;
  std::int64_t topk_group = 0;
  double scaling = 1.0;
  // The keys that the code reads for what other families say in other keys or not at all. Those that it does
  // not read must say what it does.
  std::string_view scaling_key = "routed_scaling_factor";  // empty: weights are multiplied by nothing
  std::string_view bias_key = {};  // whether there is a selection bias; empty: always as selection_bias says
  bool scoring_told = false;       // scores by what the file says
  bool groups = false;             // chooses inside groups where the file has them
  bool softmax_of_chosen = false;  // softmax over the chosen alone, which adds up to 1 whatever the file says
  double logit_multiplier = 0;     // of output_multiplier, where that is absent; 0: the code does not read it
  double sum_epsilon = 1e-20;      // added to the sum that weights are divided by
  std::string_view activation = "silu";  // where the file names none
  // How its code chooses experts or weighs them where no key that kerf reads says so and kerf computes
  // nothing of the kind; empty elsewhere.
  std::string_view other_routing = {};
  // What its experts are where kerf cannot compute those either; empty elsewhere.
  std::string_view other_experts = {};
};

// The family of a model_type, else of an architecture ("Qwen3MoeForCausalLM"); one without a name where
// neither is known: softmax, normalised unless told.
Family family_of(std::string_view model_type, const std::vector<std::string>& architectures);

// The family of that name; the unknown one for any other.
Family family_named(std::string_view name);

}  // namespace kerf::checkpoint::internal
