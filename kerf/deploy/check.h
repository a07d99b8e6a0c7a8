// May this machine serve this model, deployed like this? Named checks, each with every reason against it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/deploy/config.h"
#include "kerf/deploy/engine.h"
#include "kerf/deploy/machine.h"

#pragma GCC visibility push(default)
namespace kerf::deploy {

// One check's answer.
struct Check {
  std::string_view name;           // one of those that run_checks() lists
  std::string_view question;       // what it asks, in a few words
  bool asked = false;              // false: the configuration says nothing about it
  Reasons reasons;                 // why not; none: it holds
  std::vector<std::string> notes;  // what was found besides

  // Whether nothing speaks against it.
  [[nodiscard]] bool ok() const { return reasons.empty(); }
};

// Every check, in a fixed order, whether asked or not. Of the engine: engine, attention, decode-metadata,
// rope, kv-insert. Of kerf: parts (device, group and backend are in this build), model (its config can be
// read and its shapes are kerf's; a router that is not is a note), placement (ep, tp and batch can be run),
// memory (the most that a rank needs is there). Throws only what is no verdict on the deployment:
// Error{memory}, Error{bug}.
std::vector<Check> run_checks(const DeploymentConfig& config, const Machine& machine);

// Every reason of every check, each led by the name of its check. None: the deployment is supported. Throws
// as run_checks().
Reasons unsupported(const DeploymentConfig& config, const Machine& machine);

}  // namespace kerf::deploy
#pragma GCC visibility pop
