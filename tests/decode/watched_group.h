// A group that tells of every collective before it begins.
#pragma once

#include <functional>
#include <string_view>
#include <utility>

#include "tests/decode/forwarding_group.h"

namespace kerf::test {

// Calls `hook` before every collective.
class Watched final : public ForwardingGroup {
 public:
  using Hook = std::function<void(std::string_view what)>;
  Watched(comm::Group& below, Hook hook) : ForwardingGroup(below), hook_(std::move(hook)) {}

 private:
  void before(std::string_view what) override { hook_(what); }
  Hook hook_;
};

}  // namespace kerf::test
