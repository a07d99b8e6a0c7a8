// Looks at every byte of a checkpoint's routed experts that can be wrong: dtypes and shapes, all global
// scales, all block scales, BF16 weights, and what stands beside the experts (a norm, a selection bias).
// (Every e2m1 code is a number: they are not read.)
#pragma once

#include <cstdint>
#include <functional>

#include "kerf/base/threads.h"
#include "kerf/checkpoint/checkpoint.h"
#include "kerf/checkpoint/faults.h"

namespace kerf::tools {

struct VerifyReport {
  checkpoint::Faults faults;  // layers ascending, within a layer by kind and expert
  std::int64_t layers = 0;
  std::int64_t experts = 0;  // of all layers together
  std::int64_t bytes_checked = 0;
};

// `progress` is called with experts done and in all, from any worker, one call at a time. The report is the
// same at any thread count. Throws only what is no finding about values (Error{memory}, ...).
VerifyReport verify(const checkpoint::Checkpoint& checkpoint, const Workers& workers,
                    const std::function<void(std::int64_t done, std::int64_t total)>& progress = {});

}  // namespace kerf::tools
