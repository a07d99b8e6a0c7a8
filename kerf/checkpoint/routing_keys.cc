#include "kerf/checkpoint/internal/routing_keys.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "kerf/base/file.h"
#include "kerf/base/format.h"

namespace kerf::checkpoint::internal {

namespace {

constexpr std::int64_t kMostGroups = 256;

// All names of one fact after another, so that parts of them are the names of each.
constexpr auto kNames = std::to_array<std::string_view>(
    {// what scores
     "scoring_func", "moe_router_activation_func", "score_function", "score_func", "moe_router_score_func",
     "moe_router_activation", "expert_selection_fn",
     // whether weights are divided by their sum
     "norm_topk_prob", "moe_renormalize", "route_norm", "norm_expert_weight",
     // groups, and how many of them are chosen from
     "n_group", "num_expert_group", "num_expert_groups", "topk_group", "num_limited_groups",
     // what weights are multiplied by
     "routed_scaling_factor", "route_scale", "router_scaling_factor", "moe_routed_scaling_factor",
     "moe_router_scaling_factor",
     // whether there is a selection bias
     "use_routing_bias", "moe_router_enable_expert_bias", "use_expert_bias", "use_moe_router_bias",
     // those with one name
     "topk_method", "use_grouped_topk", "output_multiplier", "moe_apply_router_weight_on_input",
     "moe_router_use_sigmoid"});
constexpr KeyNames kScoring = KeyNames(kNames).subspan(0, 7);
constexpr KeyNames kNormalises = KeyNames(kNames).subspan(7, 4);
constexpr KeyNames kGroups = KeyNames(kNames).subspan(11, 3);
constexpr KeyNames kBestGroups = KeyNames(kNames).subspan(14, 2);
constexpr KeyNames kScaling = KeyNames(kNames).subspan(16, 5);
constexpr KeyNames kBias = KeyNames(kNames).subspan(21, 4);
static_assert(kBias.back() == "use_moe_router_bias" && kScaling.front() == "routed_scaling_factor" &&
              kGroups.front() == "n_group" && kNormalises.front() == "norm_topk_prob");

// Reads the router's keys one after another; what each may be depends on those before it.
class Reader {
 public:
  Reader(const Keys& keys, const Family& family) : keys_(keys), family_(family) {}

  RouterConfig read(std::int64_t experts, std::int64_t top_k) {
    out_.scoring = scoring();
    check_sigmoid();
    out_.norm_topk_prob = normalises();
    read_scaling();
    read_groups();
    check_groups(experts, top_k);
    read_bias();
    out_.weights_on_input =
        keys_.boolean("moe_apply_router_weight_on_input").value_or(family_.weights_on_input);
    read_multiplier();
    out_.sum_epsilon = family_.sum_epsilon;
    out_.not_computed = what_no_method_computes();
    if (family_.name.empty()) {
      if (keys_.said(kScoring).empty())
        out_.assumptions.emplace_back("no scoring_func: softmax is taken for granted");
      if (keys_.said(kNormalises).empty())
        out_.assumptions.emplace_back("no norm_topk_prob: weights that add up to 1 are taken for granted");
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void unsupported(const std::string& said, std::string_view wanted) const {
    fail(ErrorKind::unsupported, "{}: {}, {}", keys_.file(), said, wanted);
  }
  [[noreturn]] void wrong(const std::string& said, const std::string& wanted) const {
    fail(ErrorKind::checkpoint, "{}: {}, wanted {}", keys_.file(), said, wanted);
  }

  // The family's name, or what stands for it: "qwen3-moe's code".
  [[nodiscard]] std::string code() const {
    return family_.name.empty() ? "the code of most models" : fmt::format("{}'s code", family_.name);
  }

  // "n_group is 8", or where that comes from if the file has none.
  [[nodiscard]] std::string said(KeyNames names, const std::string& value) const {
    if (std::string out = keys_.said(names); !out.empty()) return out;
    if (family_.name.empty()) return fmt::format("{} is {} where there is none", names.front(), value);
    return fmt::format("{} is {} in {}'s code where the file has none", names.front(), value, family_.name);
  }

  [[nodiscard]] std::string scoring() const {
    const auto told = keys_.any_string(kScoring);
    if (!told) return std::string(family_.scoring);
    const std::string said = keys_.said(kScoring);
    // dots.llm1 is published with what others call topk_method in its place.
    if (family_.name == "dots1" && *told == "noaux_tc") return "sigmoid";
    if (*told != "softmax" && *told != "sigmoid") unsupported(said, "kerf implements softmax and sigmoid");
    if (!family_.scoring_told && *told != family_.scoring)
      unsupported(said, fmt::format("but {} scores by {}", code(), family_.scoring));
    return *told;
  }

  // Of families that score in one way, and say it in a key of its own.
  void check_sigmoid() const {
    constexpr std::string_view key = "moe_router_use_sigmoid";
    if (const auto told = keys_.boolean(key); told && *told != (out_.scoring == "sigmoid"))
      unsupported(keys_.said(key), fmt::format("but {} scores by {}", code(), out_.scoring));
  }

  [[nodiscard]] bool normalises() const {
    const auto told = keys_.any_boolean(kNormalises);
    if (family_.normalises == Normalises::always && told == false)
      unsupported(keys_.said(kNormalises), fmt::format("but {} always normalises", family_.name));
    if (family_.normalises == Normalises::never && told == true)
      unsupported(keys_.said(kNormalises), fmt::format("but {} never normalises", family_.name));
    if (family_.softmax_of_chosen && out_.scoring == "softmax") return true;
    return told.value_or(family_.normalises != Normalises::if_told &&
                         family_.normalises != Normalises::never);
  }

  void read_scaling() {
    const std::string_view own = family_.scaling_key;
    for (const std::string_view key : kScaling) {
      const double value = keys_.number(key, true).value_or(1.0);
      if (key == own)
        out_.routed_scaling = value;
      else if (value != 1.0)
        unsupported(keys_.said(key), own.empty() ? fmt::format("but {} multiplies by none, wanted 1", code())
                                                 : fmt::format("but {} reads {}, wanted 1", code(), own));
    }
    if (own.empty() || keys_.mentions(own)) return;  // null: none
    out_.routed_scaling = family_.scaling;
    if (family_.scaling != 1.0)
      out_.assumptions.push_back(fmt::format("no {}: {}, as in {}", own, family_.scaling, code()));
  }

  void read_multiplier() {
    constexpr std::string_view key = "output_multiplier";
    out_.logit_multiplier = keys_.number(key, true).value_or(1.0);
    if (family_.logit_multiplier == 0 && out_.logit_multiplier != 1.0)
      unsupported(keys_.said(key), "kerf implements it in Muse Spark's router alone, wanted 1");
    if (family_.logit_multiplier == 0 || keys_.find(key) != nullptr) return;
    out_.logit_multiplier = family_.logit_multiplier;
    out_.assumptions.push_back(fmt::format("no {}: {}, as in {}", key, out_.logit_multiplier, code()));
  }

  // The number of groups under one of these names. false says that there are none (Hunyuan).
  [[nodiscard]] std::optional<std::int64_t> group_count(KeyNames names) const {
    std::optional<std::int64_t> out;
    for (const std::string_view name : names) {
      const nlohmann::json* value = keys_.find(name);
      if (value == nullptr) continue;
      const std::int64_t count = *value == false ? 0 : keys_.integer(name, 0).value_or(0);
      if (out && *out != count)
        wrong(fmt::format("{} but {}", keys_.said(names), keys_.said(name)), "the same");
      out = count;
    }
    return out;
  }

  void read_groups() {
    const auto mentioned = [&](std::string_view key) { return keys_.mentions(key); };
    const bool silent = std::none_of(kGroups.begin(), kGroups.end(), mentioned);
    const bool best_silent = std::none_of(kBestGroups.begin(), kBestGroups.end(), mentioned);
    out_.n_group = group_count(kGroups).value_or(silent ? family_.n_group : 0);
    out_.topk_group =
        group_count(kBestGroups).value_or(!best_silent || out_.n_group <= 1 ? 0 : family_.topk_group);
    if (silent && family_.n_group > 1)
      out_.assumptions.push_back(fmt::format("no n_group: {} groups, of which {} are chosen from, as in {}",
                                             out_.n_group, out_.topk_group, code()));
    if (out_.n_group > 1 && !family_.groups)
      unsupported(keys_.said(kGroups), fmt::format("but {} chooses from all experts, wanted 1", code()));
    if (out_.n_group > 1 && keys_.boolean("use_grouped_topk") == false)
      wrong(fmt::format("use_grouped_topk is false but {}", said(kGroups, fmt::to_string(out_.n_group))),
            "no groups, or use_grouped_topk true");
  }

  void check_groups(std::int64_t experts, std::int64_t top_k) const {
    const std::int64_t n = out_.n_group;
    const std::int64_t best = out_.topk_group;
    const std::string best_said = said(kBestGroups, fmt::to_string(best));
    if (n <= 1) {
      if (best > 1)
        wrong(best_said,
              fmt::format("at most the {} group that there is (n_group)", std::max<std::int64_t>(n, 1)));
      return;
    }
    const std::string n_said = said(kGroups, fmt::to_string(n));
    if (experts % n != 0) wrong(n_said, fmt::format("a number that divides {} experts", experts));
    if (experts / n < 2)
      wrong(n_said, fmt::format("at most {} for {} experts: groups are ranked by their two best", experts / 2,
                                experts));
    if (n > kMostGroups) unsupported(n_said, fmt::format("kerf implements at most {}", kMostGroups));
    if (best < 1 || best > n) wrong(best_said, fmt::format("1 to {} (n_group)", n));
    if (top_k > best * (experts / n))
      wrong(fmt::format("{} experts per token", top_k),
            fmt::format("at most the {} that {} of {} groups hold (topk_group, n_group, {} experts)",
                        best * (experts / n), best, n, experts));
  }

  void read_bias() {
    const auto method = keys_.string("topk_method");
    const auto told = keys_.any_boolean(kBias);
    const std::string said = keys_.said("topk_method");
    if (method && *method != "greedy" && *method != "noaux_tc" && *method != "group_limited_greedy")
      unsupported(fmt::format("topk_method is '{}'", shown(*method)), "kerf implements noaux_tc and greedy");
    if (method == "group_limited_greedy" && out_.n_group > 1)
      unsupported(fmt::format("topk_method is 'group_limited_greedy' with n_group {}", out_.n_group),
                  "kerf implements noaux_tc and greedy");
    for (const std::string_view key : kBias)
      if (!family_.name.empty() && key != family_.bias_key && keys_.find(key) != nullptr &&
          *told != family_.selection_bias)
        unsupported(keys_.said(key),
                    fmt::format("but {} has {} selection bias", code(), family_.selection_bias ? "a" : "no"));
    const bool biased = method == "noaux_tc";
    if (method && told && biased != *told)
      wrong(fmt::format("{} but {}", said, keys_.said(kBias)), "a selection bias in both or in neither");
    out_.selection_bias = method || told ? biased || told == true : family_.selection_bias;
    if ((method || told) && !out_.selection_bias) out_.no_bias_by = method ? said : keys_.said(kBias);
  }

  // As decode/router.h puts methods together; here with file and key. Empty where one computes it.
  [[nodiscard]] std::string what_no_method_computes() const {
    if (!family_.other_routing.empty())
      return fmt::format("{}: {} chooses and weighs experts {}, which kerf does not compute", keys_.file(),
                         family_.name, family_.other_routing);
    const auto beside = [&](const std::string& key, const std::string& other, std::string_view implemented) {
      return fmt::format("{}: {} beside {}, kerf implements {}", keys_.file(), key, other, implemented);
    };
    const std::string scaling =
        said(KeyNames(&family_.scaling_key, 1), fmt::format("{}", out_.routed_scaling));
    const std::string groups = said(kGroups, fmt::to_string(out_.n_group));
    if (out_.scoring == "softmax") {
      const std::string scores = said(kScoring, "\"softmax\"");
      if (out_.routed_scaling != 1.0) return beside(scaling, scores, "1 with softmax");
      if (out_.n_group > 1) return beside(groups, scores, "groups with sigmoid alone");
      if (out_.selection_bias)
        return beside(keys_.find("topk_method") != nullptr ? keys_.said("topk_method") : keys_.said(kBias),
                      scores, "a selection bias with sigmoid alone");
    }
    if (out_.scoring != "sigmoid" || out_.norm_topk_prob || out_.weights_on_input) return {};
    const std::string raw = said(kNormalises, "false");
    if (out_.routed_scaling != 1.0) return beside(raw, scaling, "true there");
    if (out_.n_group > 1) return beside(raw, groups, "true there");
    if (out_.selection_bias) return beside(raw, "a selection bias", "true there");
    return {};
  }

  const Keys& keys_;
  const Family& family_;
  RouterConfig out_;
};

}  // namespace

RouterConfig read_router(const Keys& keys, const Family& family, std::int64_t experts, std::int64_t top_k) {
  return Reader(keys, family).read(experts, top_k);
}

std::span<const std::string_view> router_key_names() { return kNames; }

}  // namespace kerf::checkpoint::internal
