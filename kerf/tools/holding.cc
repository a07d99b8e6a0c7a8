#include "kerf/tools/internal/holding.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/numeric/e4m3_scan.h"

namespace kerf::tools::internal {

namespace {

using checkpoint::ExpertKind;
using checkpoint::Faults;

bool finite_bf16(std::uint16_t bits) { return (bits & 0x7F80U) != 0x7F80U; }

// One tensor of experts: those of each are read and looked at by all workers.
class Look {
 public:
  Look(const checkpoint::ExportFile& file, const checkpoint::ExportedLayer& layer, std::int64_t first,
       const Workers& workers, Faults& faults)
      : file_(file), layer_(layer), first_(first), workers_(workers), faults_(faults) {}

  void tensor(const layout::WeightTensor& wanted) {
    const std::string name = layer_.prefix + std::string(checkpoint::exported_experts) + wanted.name;
    const checkpoint::TensorEntry entry = file_.entry(name);
    if (entry.dtype != wanted.dtype || entry.shape != wanted.shape) {
      faults_.add("tensor of another shape",
                  fmt::format("{}, {}: got {} {}, wanted {} {}", file_.path().string(), name,
                              tensor::name(entry.dtype), entry.shape.text(), tensor::name(wanted.dtype),
                              wanted.shape.text()));
      return;
    }
    const bool scales = wanted.dtype == tensor::Dtype::f8_e4m3;
    if (!scales && wanted.dtype != tensor::Dtype::bf16) return;  // every code of a weight is a number
    checkpoint::ExportReader reader(file_, name);
    std::vector<std::byte> expert(static_cast<std::size_t>((entry.end - entry.begin) / wanted.shape[0]));
    for (std::int64_t e = 0; e < wanted.shape[0]; ++e) {
      reader.read(e, 1, expert, workers_);
      scales ? look_at_scales(name, e, expert) : look_at_values(name, e, expert);
    }
  }

 private:
  void look_at_scales(const std::string& name, std::int64_t e, std::span<const std::byte> bytes) {
    const std::span codes(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    if (numeric::regular_scales(codes)) return;
    for (std::size_t at = 0; at < codes.size(); ++at)
      if (!numeric::regular_scale(codes[at]))
        faults_.add(
            (codes[at] & 0x7FU) == 0x7FU ? "NaN block scale" : "negative block scale",
            fmt::format("layer {}, {}, expert {}, byte {} of its converted scales, 0x{:02X}, in {}",
                        layer_.index, name, first_ + e, at, codes[at], file_.path().filename().string()));
  }
  void look_at_values(const std::string& name, std::int64_t e, std::span<const std::byte> bytes) {
    for (std::size_t at = 0; at + 1 < bytes.size(); at += 2) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + at, sizeof(bits));
      if (!finite_bf16(bits))
        faults_.add(
            "BF16 weight that is not finite",
            fmt::format("layer {}, {}, expert {}, value {} of it as converted, bits 0x{:04X}, in {}",
                        layer_.index, name, first_ + e, at / 2, bits, file_.path().filename().string()));
    }
  }

  const checkpoint::ExportFile& file_;
  const checkpoint::ExportedLayer& layer_;
  std::int64_t first_;
  const Workers& workers_;
  Faults& faults_;
};

}  // namespace

Holding holding(const checkpoint::ExportFacts& facts, const checkpoint::ModelConfig& config) {
  const auto& p = facts.placement;
  Holding out;
  out.nvfp4 = {config.experts / (p.tp > 1 ? p.ep : p.ranks), config.hidden, 0};
  if (facts.width > 0) out.slice = layout::slice_of(facts.width, p.tp, facts.rank % p.tp);
  out.nvfp4.intermediate = out.slice.width;
  out.bf16 = {config.experts / p.ranks, config.hidden, facts.bf16_width};
  out.first_nvfp4 = out.nvfp4.experts * (p.tp > 1 ? facts.rank / p.tp : facts.rank);
  out.first_bf16 = out.bf16.experts * facts.rank;
  return out;
}

void check_exported_experts(const checkpoint::ExportFile& file, const checkpoint::ExportedLayer& layer,
                            const checkpoint::ModelConfig& config, const Workers& workers, Faults& faults) {
  const Holding held = holding(file.facts(), config);
  if (layer.kind == ExpertKind::nvfp4) {
    Look look(file, layer, held.first_nvfp4, workers, faults);
    for (const layout::WeightTensor& t : layout::nvfp4_weights(held.nvfp4)) look.tensor(t);
  } else {
    Look look(file, layer, held.first_bf16, workers, faults);
    for (const layout::WeightTensor& t : layout::bf16_weights(held.bf16)) look.tensor(t);
  }
}

}  // namespace kerf::tools::internal
