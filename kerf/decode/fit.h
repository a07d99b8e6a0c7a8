// The widths at which a model's experts are held. That of the files, or a wider one with zeros where padding
// is asked for; asked the same way by whoever plans and whoever builds.
#pragma once

#include <cstdint>

#include "kerf/base/error.h"
#include "kerf/layout/geometry.h"
#include "kerf/op/op.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Experts of one kind as a rank is to hold them whole.
struct Whole {
  op::Arithmetic arithmetic = op::Arithmetic::w4a4;
  std::int64_t experts = 0;       // on this rank
  std::int64_t hidden = 0;        // H
  std::int64_t intermediate = 0;  // the model's I
  std::int64_t slices = 1;        // that NVFP4 experts will be cut into; BF16 experts are not cut

  // What they are converted at: I, or with fit.pad the next width that can be cut so.
  [[nodiscard]] layout::ExpertsShape shape(const layout::Fit& fit) const;
};

// Nothing where the backend runs such experts. The reason is the backend's, or (unsupported) that I cannot be
// padded, or (usage) less than 1 slice; it says so where --pad would help.
Verdict unfit(const op::Backend& backend, const Whole& experts, const layout::Fit& fit);

}  // namespace kerf::decode
#pragma GCC visibility pop
