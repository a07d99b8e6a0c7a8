// The CUDA op as sizes: what its steps need of a device's memory. Known in every build and on any machine, so
// that a plan for a device can be made without one; the op itself asks here, too.
#pragma once

#include <cstdint>

#include "kerf/op/op.h"

namespace kerf::op {

// Of a run on such experts, at any tactic with the step's tile: bytes of scratch, 32-bit counters, and bytes
// that runs keep for one another. Shapes are taken to make sense.
std::int64_t device_scratch_bytes(Arithmetic arithmetic, const layout::ExpertsShape& shape,
                                  const routing::MetadataShape& step);
std::int64_t device_counter_words(Arithmetic arithmetic, const routing::MetadataShape& step);
std::int64_t device_kept_bytes(Arithmetic arithmetic, const layout::ExpertsShape& shape,
                               const routing::MetadataShape& step);

// Device memory that the host's way into the op (RoutedExperts::body) takes for one run, and gives back: rows
// in, metadata, scratch, rows out; in bytes. sums: f32 rows. metadata_words()'s errors.
std::int64_t device_body_bytes(Arithmetic arithmetic, const layout::ExpertsShape& shape,
                               const routing::MetadataShape& step, bool sums);

}  // namespace kerf::op
