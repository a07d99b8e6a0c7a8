#include "kerf/tactics/setting.h"

#include <sstream>

#include "kerf/base/format.h"

namespace kerf::tactics {

Setting setting_of(const op::Backend& backend, const layout::ExpertsShape& shape, std::int64_t num_experts,
                   std::int64_t top_k) {
  return {std::string(backend.package()), backend.device(), shape, num_experts, top_k};
}

std::string sizes_text(const Setting& s) {
  return fmt::format("experts {} of {}, {} x {}, top {}", s.shape.experts, s.num_experts, s.shape.hidden,
                     s.shape.intermediate, s.top_k);
}

std::string text_of(const std::vector<op::Tactic>& tactics) {
  std::string text;
  for (const op::Tactic t : tactics)
    text += fmt::format("{}{},{}", text.empty() ? "" : " ", t.tile, t.config);
  return text;
}

std::vector<op::Tactic> tactics_from(const std::string& text) {
  std::vector<op::Tactic> out;
  std::istringstream in(text);
  char comma = 0;
  for (op::Tactic t; in >> t.tile >> comma >> t.config;) out.push_back(t);
  if (text_of(out) != text) fail(ErrorKind::bug, "no tactics: '{}'", text);
  return out;
}

}  // namespace kerf::tactics
