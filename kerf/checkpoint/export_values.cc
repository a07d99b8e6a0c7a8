#include "kerf/checkpoint/export_values.h"

#include <algorithm>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/scan.h"
#include "kerf/numeric/e4m3.h"
#include "kerf/numeric/e4m3_scan.h"

namespace kerf::checkpoint {

void ExportedValues::Group::add(std::int64_t at, std::uint32_t bits) {
  ++total;
  if (first.size() < Faults::kept) first.push_back({at, bits});
}

ExportedValues::ExportedValues(const TensorEntry& entry)
    : dtype_(entry.dtype), mutex_(std::make_unique<std::mutex>()) {
  const std::int64_t experts = entry.shape.rank() > 0 ? std::max<std::int64_t>(entry.shape[0], 1) : 1;
  bytes_each_ = std::max<std::int64_t>((entry.end - entry.begin) / experts, 1);
}

void ExportedValues::look(std::int64_t begin, std::span<const std::byte> piece) {
  std::array<Group, kinds> found;
  if (dtype_ == tensor::Dtype::f8_e4m3) {
    const std::span codes(reinterpret_cast<const std::uint8_t*>(piece.data()), piece.size());
    if (numeric::regular_scales(codes)) return;
    for (std::size_t i = 0; i < codes.size(); ++i)
      if (!numeric::regular_scale(codes[i]))
        found[numeric::e4m3_is_nan(codes[i]) ? nan_scale : negative_scale].add(
            begin + static_cast<std::int64_t>(i), codes[i]);
  } else if (dtype_ == tensor::Dtype::bf16) {
    internal::for_each_not_finite_bf16(piece, [&](std::size_t i, std::uint16_t bits) {
      found[not_finite].add(begin + 2 * static_cast<std::int64_t>(i), bits);
    });
  }
  if (std::all_of(found.begin(), found.end(), [](const Group& g) { return g.total == 0; })) return;
  const std::scoped_lock lock(*mutex_);
  found_.insert_or_assign(begin, std::move(found));
}

std::string ExportedValues::words(std::size_t kind, const Found& found, const Place& place) const {
  const std::int64_t expert = place.first_expert + found.at / bytes_each_;
  const std::int64_t within = found.at % bytes_each_;
  if (kind == not_finite)
    return fmt::format("layer {}, {}, expert {}, value {} of it as converted, bits 0x{:04X}, in {}",
                       place.layer, place.tensor, expert, within / 2, found.bits, place.file);
  return fmt::format("layer {}, {}, expert {}, byte {} of its converted scales, 0x{:02X}, in {}", place.layer,
                     place.tensor, expert, within, found.bits, place.file);
}

void ExportedValues::report(const Place& place, Faults& faults) const {
  constexpr std::array<const char*, kinds> names = {"NaN block scale", "negative block scale",
                                                    "BF16 weight that is not finite"};
  for (const auto& [begin, groups] : found_)
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      if (groups[kind].total == 0) continue;
      FaultGroup out{names[kind], groups[kind].total, {}};
      for (const Found& found : groups[kind].first) out.first.push_back(words(kind, found, place));
      faults.add(out);
    }
}

}  // namespace kerf::checkpoint
