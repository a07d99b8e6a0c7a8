// What a measurement of tactics holds for: kernels, device and sizes. All of it is compared before a
// measurement is believed. The number of worker threads is no part of it: a list is an order of tactics,
// which every way of sharing a machine's cores between its ranks may look up. Only the tuner's cache, which
// answers for one way to start, holds it too (cache.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/op/op.h"

#pragma GCC visibility push(default)
namespace kerf::tactics {

// What makes times comparable.
struct Setting {
  std::string package;           // op::Backend::package()
  std::string device;            // op::Backend::device()
  layout::ExpertsShape shape;    // experts on a rank, H, and I or a slice of it
  std::int64_t num_experts = 0;  // E of the model
  std::int64_t top_k = 0;

  friend bool operator==(const Setting&, const Setting&) = default;
};

// That of experts of a shape on a backend. Error{device} where its device does not answer.
Setting setting_of(const op::Backend& backend, const layout::ExpertsShape& shape, std::int64_t num_experts,
                   std::int64_t top_k);

// "experts 64 of 64, 1024 x 128, top 8"
std::string sizes_text(const Setting& setting);

// "8,0 16,2" and back: what ranks tell each other. Error{bug} for other text.
std::string text_of(const std::vector<op::Tactic>& tactics);
std::vector<op::Tactic> tactics_from(const std::string& text);

}  // namespace kerf::tactics
#pragma GCC visibility pop
