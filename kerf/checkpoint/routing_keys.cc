#include "kerf/checkpoint/internal/routing_keys.h"

#include <algorithm>
#include <string>

#include "kerf/base/file.h"
#include "kerf/base/format.h"

namespace kerf::checkpoint::internal {

namespace {

constexpr double kMuseLogitMultiplier = 0.17677669529663689;  // 2^-2.5
constexpr double kMuseSumEpsilon = 1e-15;
constexpr std::int64_t kMostGroups = 256;

constexpr KeyNames kScoring = {"scoring_func", "moe_router_activation_func", "score_function"};
constexpr KeyNames kNormalises = {"norm_topk_prob", "moe_renormalize"};
constexpr KeyNames kGroups = {"n_group", "num_expert_group"};
constexpr KeyNames kScaling = {"routed_scaling_factor"};

// Reads the router's keys one after another; what each may be depends on those before it.
class Reader {
 public:
  Reader(const Keys& keys, const Family& family, bool muse) : keys_(keys), family_(family), muse_(muse) {}

  RouterConfig read(std::int64_t experts, std::int64_t top_k) {
    out_.scoring = scoring();
    out_.norm_topk_prob = normalises();
    read_scaling();
    read_groups();
    check_groups(experts, top_k);
    read_bias();
    out_.weights_on_input =
        keys_.boolean("moe_apply_router_weight_on_input").value_or(family_.weights_on_input);
    if (muse_) {
      out_.logit_multiplier = keys_.number("output_multiplier", true).value_or(kMuseLogitMultiplier);
      out_.sum_epsilon = kMuseSumEpsilon;
    }
    out_.not_computed = what_no_method_computes();
    if (family_.name.empty() && !muse_) {
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

  // "n_group is 8", or where that comes from if the file has none.
  [[nodiscard]] std::string said(KeyNames names, const std::string& value) const {
    if (std::string out = keys_.said(names); !out.empty()) return out;
    if (family_.name.empty()) return fmt::format("{} is {} where there is none", *names.begin(), value);
    return fmt::format("{} is {} in {}'s code where the file has none", *names.begin(), value, family_.name);
  }

  [[nodiscard]] std::string scoring() const {
    const auto told = keys_.any_string(kScoring);
    if (!told) return muse_ ? "sigmoid" : std::string(family_.scoring);
    if (*told != "softmax" && *told != "sigmoid")
      for (const char* key : kScoring)
        if (keys_.find(key) != nullptr)
          unsupported(fmt::format("{} is '{}'", key, shown(*told)), "kerf implements softmax and sigmoid");
    return *told;
  }

  [[nodiscard]] bool normalises() const {
    const auto told = keys_.any_boolean(kNormalises);
    if (family_.normalises == Normalises::always && told == false)
      unsupported(keys_.said(kNormalises), fmt::format("but {} always normalises", family_.name));
    if (family_.normalises == Normalises::never && told == true)
      unsupported(keys_.said(kNormalises), fmt::format("but {} never normalises", family_.name));
    return told.value_or(family_.normalises != Normalises::if_told &&
                         family_.normalises != Normalises::never);
  }

  void read_scaling() {
    out_.routed_scaling = keys_.number("routed_scaling_factor", true).value_or(1.0);
    if (!family_.scales && out_.routed_scaling != 1.0)
      unsupported(keys_.said(kScaling),
                  fmt::format("but {}'s code multiplies by none, wanted 1", family_.name));
    if (keys_.mentions("routed_scaling_factor") || !family_.scales) return;  // null: none
    out_.routed_scaling = family_.scaling;
    if (family_.scaling != 1.0)
      out_.assumptions.push_back(
          fmt::format("no routed_scaling_factor: {}, as in {}'s code", family_.scaling, family_.name));
  }

  void read_groups() {
    const bool silent =
        std::none_of(kGroups.begin(), kGroups.end(), [&](const char* key) { return keys_.mentions(key); });
    out_.n_group = keys_.any_integer(kGroups, 0).value_or(silent ? family_.n_group : 0);
    out_.topk_group =
        keys_.integer("topk_group", 0)
            .value_or(keys_.mentions("topk_group") || out_.n_group <= 1 ? 0 : family_.topk_group);
    if (silent && family_.n_group > 1)
      out_.assumptions.push_back(
          fmt::format("no n_group: {} groups, of which {} are chosen from, as in {}'s code", out_.n_group,
                      out_.topk_group, family_.name));
    if (out_.n_group > 1 && keys_.boolean("use_grouped_topk") == false)
      wrong(fmt::format("use_grouped_topk is false but {}", said(kGroups, fmt::to_string(out_.n_group))),
            "no groups, or use_grouped_topk true");
  }

  void check_groups(std::int64_t experts, std::int64_t top_k) const {
    const std::int64_t n = out_.n_group;
    const std::int64_t best = out_.topk_group;
    const std::string best_said = said({"topk_group"}, fmt::to_string(best));
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
    const auto told = keys_.boolean("use_routing_bias");
    const std::string said = keys_.said({"topk_method"});
    if (method && *method != "greedy" && *method != "noaux_tc" && *method != "group_limited_greedy")
      unsupported(fmt::format("topk_method is '{}'", shown(*method)), "kerf implements noaux_tc and greedy");
    if (method == "group_limited_greedy" && out_.n_group > 1)
      unsupported(fmt::format("topk_method is 'group_limited_greedy' with n_group {}", out_.n_group),
                  "kerf implements noaux_tc and greedy");
    const bool biased = method == "noaux_tc";
    if (method && told && biased != *told)
      wrong(fmt::format("{} but {}", said, keys_.said({"use_routing_bias"})),
            "a selection bias in both or in neither");
    out_.selection_bias = method || told ? biased || told == true : muse_ || family_.selection_bias;
    if ((method || told) && !out_.selection_bias)
      out_.no_bias_by = method ? said : keys_.said({"use_routing_bias"});
  }

  // As decode/router.h puts methods together; here with file and key. Empty where one computes it.
  [[nodiscard]] std::string what_no_method_computes() const {
    if (!family_.other_routing.empty())
      return fmt::format("{}: {} chooses and weighs experts {}, which kerf does not compute", keys_.file(),
                         family_.name, family_.other_routing);
    const auto beside = [&](const std::string& key, const std::string& other, std::string_view implemented) {
      return fmt::format("{}: {} beside {}, kerf implements {}", keys_.file(), key, other, implemented);
    };
    const std::string scaling = said(kScaling, fmt::format("{}", out_.routed_scaling));
    const std::string groups = said(kGroups, fmt::to_string(out_.n_group));
    if (out_.scoring == "softmax") {
      const std::string scores = said(kScoring, "\"softmax\"");
      if (out_.routed_scaling != 1.0) return beside(scaling, scores, "1 with softmax");
      if (out_.n_group > 1) return beside(groups, scores, "groups with sigmoid alone");
      if (out_.selection_bias)
        return beside(keys_.said({"topk_method", "use_routing_bias"}), scores,
                      "a selection bias with sigmoid alone");
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
  bool muse_;
  RouterConfig out_;
};

}  // namespace

RouterConfig read_router(const Keys& keys, const Family& family, bool muse, std::int64_t experts,
                         std::int64_t top_k) {
  return Reader(keys, family, muse).read(experts, top_k);
}

}  // namespace kerf::checkpoint::internal
