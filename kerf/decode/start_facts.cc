#include "kerf/decode/start_facts.h"

#include <bit>
#include <string>
#include <utility>

#include "kerf/base/build_info.h"
#include "kerf/base/format.h"
#include "kerf/checkpoint/digest.h"
#include "kerf/checkpoint/export_facts.h"
#include "kerf/checkpoint/export_file.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/runtime.h"
#include "kerf/tactics/setting.h"

namespace kerf::decode {

namespace {

using checkpoint::LayerScales;
using comm::Facts;

// A backend that does not exist is refused where it is needed, in words of its own.
std::string package_of(const std::string& backend) {
  std::string package = "(no such backend)";
  (void)attempt([&] { package = op::backend(backend).package(); });
  return package;
}

std::string text_of(const std::vector<tactics::PreferredList>& lists) {
  std::string out;
  for (const tactics::PreferredList& list : lists)
    out += fmt::format("{}{} on {}, {} {}: {}", out.empty() ? "" : "; ", list.setting.package,
                       list.setting.device, op::name(list.arithmetic), tactics::sizes_text(list.setting),
                       tactics::text_of(list.tactics));
  return out;
}

std::string text_of(const checkpoint::ModelConfig& c) {
  return fmt::format("{}, {} layers, {} experts of {} x {}, top {}, model width {}", c.architecture, c.layers,
                     c.experts, c.hidden, c.intermediate, c.top_k, c.model_hidden);
}

// A layer's scales by their names: [E] each, or nothing.
struct NamedScales {
  std::string_view name;
  std::span<const float> values;
};
std::vector<NamedScales> named(const LayerScales& s) {
  return {{"gate's weight_scale_2", s.ws2_gate}, {"up's weight_scale_2", s.ws2_up},
          {"down's weight_scale_2", s.ws2_down}, {"gate's input_scale", s.in_gate},
          {"up's input_scale", s.in_up},         {"down's input_scale", s.in_down}};
}

checkpoint::Digest digest_of(const LayerScales& scales) {
  std::vector<float> all;
  for (const NamedScales& n : named(scales)) {
    all.push_back(static_cast<float>(n.values.size()));
    all.insert(all.end(), n.values.begin(), n.values.end());
  }
  return checkpoint::digest_of(std::as_bytes(std::span<const float>(all)));
}

Facts scale_by_scale(std::int64_t layer, const LayerScales& scales) {
  Facts out;
  for (const NamedScales& n : named(scales))
    for (std::size_t e = 0; e < n.values.size(); ++e)
      out.push_back({fmt::format("layer {}, {} of expert {}", layer, n.name, e),
                     fmt::format("{} (0x{:08x})", n.values[e], std::bit_cast<std::uint32_t>(n.values[e])),
                     ErrorKind::checkpoint});
  return out;
}

}  // namespace

Facts facts_of(const Rank& rank, const std::string& backend) {
  const int tp = rank.row().size();
  return {{"kerf", std::string(version()), ErrorKind::unsupported},
          {"backend", backend, ErrorKind::usage},
          {"kernel package", package_of(backend), ErrorKind::unsupported},
          {"layout", std::string(checkpoint::export_layout), ErrorKind::unsupported},
          {"placement", fmt::format("{} ranks, EP {} x TP {}", rank.group.size(), rank.group.size() / tp, tp),
           ErrorKind::usage}};
}

Facts facts_of(const checkpoint::Checkpoint& from) {
  Facts out = {{"model", text_of(from.config()), ErrorKind::checkpoint}};
  if (const checkpoint::ExportFile* file = from.exported(); file != nullptr) {
    out.push_back({"export", checkpoint::text_of(file->id()), ErrorKind::checkpoint});
    return out;
  }
  out.push_back({"configuration files' digest", from.fingerprint().config, ErrorKind::checkpoint});
  out.push_back({"headers' digest", from.fingerprint().tensors, ErrorKind::checkpoint});
  return out;
}

Facts facts_of(const ModelSize& model) {
  return {{"model", fmt::format("{} experts, top {}", model.experts, model.top_k), ErrorKind::usage}};
}

Facts facts_of(const RuntimeOptions& o) {
  const auto yes = [](bool b) { return std::string(b ? "yes" : "no"); };
  Facts out;
  const auto add = [&out](std::string name, std::string value) {
    out.push_back({std::move(name), std::move(value), ErrorKind::usage});
  };
  const std::vector<std::int64_t>& layers = o.build.layers;
  add("layers", layers.empty() ? "all" : fmt::format("{}", fmt::join(layers, ",")));
  add("activation", o.build.input == op::Input::nvfp4 ? "nvfp4" : "bf16");
  add("uneven slices", yes(o.build.fit.uneven));
  add("padding", yes(o.build.fit.pad));
  add("expert TP", yes(o.expert_tp));
  add("block", std::string(name(o.block)));
  add("probe", fmt::format("{} tokens, seed {}", o.probe.tokens, o.probe.seed));
  add("most tokens of a step", fmt::format("{}", o.max_tokens));
  add("tokens of the warm-up", fmt::format("{}", o.warm_tokens));
  add("largest tile", fmt::format("{}", o.largest_tile));
  add("preferred tactics", tactics::text_of(o.preferred));
  add("lists of tactics", text_of(o.lists));
  add("seconds of tuning", fmt::format("{}", o.tune.seconds));
  add("tactic cache", yes(!o.tune.cache.empty()));
  add("tail", std::string(tail::name(o.tail.kind)));
  add("sum of rows", std::string(tail::name(o.tail.row_sum)));
  out.insert(out.end(), o.facts.begin(), o.facts.end());
  return out;
}

void require_same_scales(comm::Group& group, std::span<const std::int64_t> layers,
                         std::span<const LayerScales> scales) {
  // A digest a layer first: the values themselves are some megabytes for a large model on many ranks.
  std::vector<checkpoint::Digest> mine;
  for (const LayerScales& s : scales) mine.push_back(digest_of(s));
  const auto all =
      comm::gathered(group, std::span<const checkpoint::Digest>(mine), "comparing global scales");
  for (std::size_t i = 0; i < mine.size(); ++i) {
    bool same = true;
    for (std::size_t at = i; at < all.size(); at += mine.size()) same = same && all[at] == all[i];
    if (!same)
      comm::require_same(group, "finding the global scale that differs",
                         [&] { return scale_by_scale(layers[i], scales[i]); });
  }
}

}  // namespace kerf::decode
