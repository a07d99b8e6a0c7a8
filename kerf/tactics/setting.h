// What a measurement of tactics holds for: kernels, device and sizes. All of it is compared before a
// measurement is believed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/op/op.h"

namespace kerf::tactics {

struct Setting {
  std::string package;           // op::Backend::package()
  std::string device;            // op::Backend::device()
  layout::ExpertsShape shape;    // experts on a rank, H, and I or a slice of it
  std::int64_t num_experts = 0;  // E of the model
  std::int64_t top_k = 0;

  friend bool operator==(const Setting&, const Setting&) = default;
};

Setting setting_of(const op::Backend& backend, const layout::ExpertsShape& shape, std::int64_t num_experts,
                   std::int64_t top_k);

// "experts 64 of 64, 1024 x 128, top 8"
std::string sizes_text(const Setting& setting);

// Nothing where a measurement made for `made` holds for `wanted`, else what differs first (package, device,
// sizes) with both values. Error kind: unsupported.
Verdict foreign(const Setting& made, const Setting& wanted);

// "8,0 16,2" and back: what ranks tell each other. Error{bug} for other text.
std::string text_of(const std::vector<op::Tactic>& tactics);
std::vector<op::Tactic> tactics_from(const std::string& text);

}  // namespace kerf::tactics
