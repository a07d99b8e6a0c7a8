// A layer's experts under the names that its checkpoint had for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/checkpoint/export_facts.h"
#include "kerf/checkpoint/safetensors.h"

namespace kerf::tools::internal {

using Bytes = std::vector<std::byte>;

// One kind of numbers of a layer, of all experts: gate and up [E, 2I, H / per] and down [E, H, I / per].
struct Matrices {
  std::int64_t experts = 0, hidden = 0, intermediate = 0;
  std::int64_t unit = 1;      // bytes of one step along K
  std::int64_t per_unit = 1;  // values of one such step
  Bytes gate_up, down;

  Matrices(const checkpoint::ModelConfig& config, std::int64_t bytes, std::int64_t values);
  [[nodiscard]] std::int64_t row() const { return hidden / per_unit * unit; }
  [[nodiscard]] std::int64_t column_bytes(std::int64_t width) const { return width / per_unit * unit; }

  // Expert e's slice [first, first + width), as layout::restore() gave it, where it belongs. What was padded
  // is left.
  void place(std::int64_t e, std::int64_t first, std::int64_t width, const Bytes& gate, const Bytes& up,
             const Bytes& part);
};

struct Logical {
  Matrices weights;
  std::optional<Matrices> scales;  // NVFP4
};

// A tensor to write, and its bytes.
struct LogicalTensor {
  checkpoint::NamedShape shape;
  Bytes own;                         // small ones, and those whose order is another
  std::span<const std::byte> bytes;  // into the matrices, where `own` is empty
  [[nodiscard]] std::span<const std::byte> data() const { return own.empty() ? bytes : std::span(own); }
};

// The source's tensors, names, dtypes and bytes; of a dialect that stores divisors, those of ModelOpt's in
// its place. Views into `logical`, which must outlive them.
std::vector<LogicalTensor> logical_tensors(const checkpoint::ExportedLayer& facts,
                                           const checkpoint::ModelConfig& config, const Logical& logical,
                                           const checkpoint::LayerScales& scales);

}  // namespace kerf::tools::internal
