#include "kerf/tools/internal/logical_tensors.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kerf/base/format.h"
#include "kerf/checkpoint/dialect.h"

namespace kerf::tools::internal {

namespace {

using checkpoint::Dialect;
using checkpoint::ExpertKind;
using checkpoint::Part;
using tensor::Dtype;
using tensor::Shape;

std::span<const std::byte> expert_of(const Bytes& all, std::int64_t e, std::int64_t experts) {
  const std::size_t each = all.size() / static_cast<std::size_t>(experts);
  return std::span(all).subspan(static_cast<std::size_t>(e) * each, each);
}

Bytes bytes_of(std::span<const float> values) {
  const auto raw = std::as_bytes(values);
  return {raw.begin(), raw.end()};
}

// The values that a stacked tensor of scales held: [E, 2] or [2E] (gate, up of each), [E], or one.
Bytes stacked_scales(const Shape& shape, std::span<const float> gate, std::span<const float> up) {
  const std::int64_t count = shape.elements();
  std::vector<float> out;
  for (std::size_t e = 0; e < gate.size() && std::ssize(out) < count; ++e) {
    out.push_back(gate[e]);
    if (count == 2 * std::ssize(gate)) out.push_back(up[e]);
  }
  if (std::ssize(out) != count)
    fail(ErrorKind::checkpoint, "scales of shape {} for {} experts", shape.text(), gate.size());
  return bytes_of(out);
}

// The name of ModelOpt's dialect that names projections as `d` does.
const Dialect& without_divisors(const Dialect& d) {
  if (!d.divisors) return d;
  for (const Dialect& other : checkpoint::dialects())
    if (!other.divisors && !other.stacked && other.projections == d.projections) return other;
  fail(ErrorKind::bug, "no dialect of scales for {}", d.name);
}

class Writer {
 public:
  Writer(const checkpoint::ExportedLayer& facts, const checkpoint::ModelConfig& config,
         const Logical& logical, const checkpoint::LayerScales& scales)
      : facts_(facts),
        config_(config),
        logical_(logical),
        scales_(scales),
        dialect_(without_divisors(checkpoint::dialect_named(facts.dialect))) {}

  std::vector<LogicalTensor> run() {
    if (dialect_.stacked)
      stacked();
    else
      per_expert();
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool nvfp4() const { return facts_.kind == ExpertKind::nvfp4; }
  [[nodiscard]] std::string part(std::size_t projection, Part p) const {
    return fmt::format("{}{}", dialect_.projections[projection], dialect_.parts[static_cast<std::size_t>(p)]);
  }
  [[nodiscard]] const Shape& scale_shape(const std::string& name) const {
    const auto found = facts_.scale_shapes.find(name);
    if (found == facts_.scale_shapes.end())
      fail(ErrorKind::checkpoint, "layer {}: the export does not say what shape {} had", facts_.index, name);
    return found->second;
  }
  // Codes: two a byte for U8; F4 says so in its last dimension.
  void weight(const std::string& name, std::vector<std::int64_t> dims, std::span<const std::byte> bytes,
              Bytes own) {
    if (nvfp4() && facts_.codes == Dtype::f4) dims.back() *= 2;
    add(name, nvfp4() ? facts_.codes : Dtype::bf16, Shape(dims), bytes, std::move(own));
  }
  void add(const std::string& name, Dtype dtype, const Shape& shape, std::span<const std::byte> bytes,
           Bytes own = {}) {
    out_.push_back({{facts_.prefix + facts_.root + name, dtype, shape}, std::move(own), bytes});
  }

  // [E, rows, columns] of `unit` bytes as the dialect has it: gate and up alternating, then turned.
  [[nodiscard]] Bytes ordered(const Bytes& from, std::int64_t rows, std::int64_t columns, std::int64_t unit,
                              bool both) const {
    const bool alternating = both && dialect_.alternating;
    if (!alternating && !dialect_.transposed) return {};
    Bytes out(from.size());
    const std::int64_t e_bytes = rows * columns * unit;
    for (std::int64_t e = 0; e < config_.experts; ++e)
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t half = rows / 2;
        const std::int64_t at = !alternating ? r : r < half ? 2 * r : 2 * (r - half) + 1;
        const std::byte* const row = from.data() + e * e_bytes + r * columns * unit;
        std::byte* const to = out.data() + e * e_bytes;
        if (!dialect_.transposed) {
          std::memcpy(to + at * columns * unit, row, static_cast<std::size_t>(columns * unit));
          continue;
        }
        for (std::int64_t c = 0; c < columns; ++c)
          std::memcpy(to + (c * rows + at) * unit, row + c * unit, static_cast<std::size_t>(unit));
      }
    return out;
  }

  [[nodiscard]] std::vector<std::int64_t> dims(std::int64_t rows, std::int64_t columns) const {
    if (dialect_.transposed) std::swap(rows, columns);
    return {config_.experts, rows, columns};
  }

  void stacked() {
    const std::int64_t h = config_.hidden;
    const std::int64_t i = config_.intermediate;
    struct Half {
      std::size_t projection;
      std::int64_t rows, columns;
      const Bytes& weights;
      const Bytes* scales;
      const std::vector<float>&ws2, &ws2_up, &in, &in_up;
    };
    const Matrices& w = logical_.weights;
    const Bytes* const sf = nvfp4() ? &logical_.scales->gate_up : nullptr;
    const Bytes* const down_sf = nvfp4() ? &logical_.scales->down : nullptr;
    const checkpoint::LayerScales& s = scales_;
    for (const Half& half : {Half{0, 2 * i, h, w.gate_up, sf, s.ws2_gate, s.ws2_up, s.in_gate, s.in_up},
                             Half{2, h, i, w.down, down_sf, s.ws2_down, s.ws2_down, s.in_down, s.in_down}}) {
      const bool both = half.projection == 0;
      const std::int64_t columns = half.columns / w.per_unit;
      weight(part(half.projection, Part::weight), dims(half.rows, columns), half.weights,
             ordered(half.weights, half.rows, columns, w.unit, both));
      if (!nvfp4()) continue;
      add(part(half.projection, Part::block_scale), Dtype::f8_e4m3, Shape(dims(half.rows, half.columns / 16)),
          *half.scales, ordered(*half.scales, half.rows, half.columns / 16, 1, both));
      const auto values = [&](Part p, std::span<const float> gate, std::span<const float> up) {
        const std::string name = part(half.projection, p);
        add(name, Dtype::f32, scale_shape(name), {}, stacked_scales(scale_shape(name), gate, up));
      };
      values(Part::global_scale, half.ws2, half.ws2_up);
      if (facts_.has_inputs) values(Part::input_scale, half.in, half.in_up);
    }
  }

  // Expert e's rows of gate, up or down.
  static std::span<const std::byte> rows_of(const Matrices& m, std::int64_t e, std::size_t projection) {
    if (projection == 2) return expert_of(m.down, e, m.experts);
    const auto both = expert_of(m.gate_up, e, m.experts);
    return both.subspan(projection == 1 ? both.size() / 2 : 0, both.size() / 2);
  }

  void per_expert() {
    const std::int64_t h = config_.hidden;
    const std::int64_t i = config_.intermediate;
    const std::array<const std::vector<float>*, 3> ws2 = {&scales_.ws2_gate, &scales_.ws2_up,
                                                          &scales_.ws2_down};
    const std::array<const std::vector<float>*, 3> inputs = {&scales_.in_gate, &scales_.in_up,
                                                             &scales_.in_down};
    for (std::int64_t e = 0; e < config_.experts; ++e)
      for (std::size_t p = 0; p < 3; ++p) {
        const std::int64_t rows = p == 2 ? h : i;
        const std::int64_t columns = p == 2 ? i : h;
        const auto name = [&](Part which) { return fmt::format("{}.{}", e, part(p, which)); };
        const auto scalar = [&](Part which, const std::vector<float>& values) {
          add(name(which), Dtype::f32, scale_shape(std::string(checkpoint::part_name(dialect_, which))), {},
              bytes_of(std::span(values).subspan(static_cast<std::size_t>(e), 1)));
        };
        weight(name(Part::weight), {rows, columns / logical_.weights.per_unit},
               rows_of(logical_.weights, e, p), {});
        if (!nvfp4()) continue;
        add(name(Part::block_scale), Dtype::f8_e4m3, {rows, columns / 16}, rows_of(*logical_.scales, e, p));
        scalar(Part::global_scale, *ws2[p]);
        if (facts_.has_inputs) scalar(Part::input_scale, *inputs[p]);
      }
  }

  const checkpoint::ExportedLayer& facts_;
  const checkpoint::ModelConfig& config_;
  const Logical& logical_;
  const checkpoint::LayerScales& scales_;
  const Dialect& dialect_;
  std::vector<LogicalTensor> out_;
};

}  // namespace

Matrices::Matrices(const checkpoint::ModelConfig& c, std::int64_t bytes, std::int64_t values)
    : experts(c.experts), hidden(c.hidden), intermediate(c.intermediate), unit(bytes), per_unit(values) {
  gate_up.resize(static_cast<std::size_t>(experts * 2 * intermediate * row()));
  down.resize(static_cast<std::size_t>(experts * hidden * column_bytes(intermediate)));
}

void Matrices::place(std::int64_t e, std::int64_t first, std::int64_t width, const Bytes& gate,
                     const Bytes& up, const Bytes& part) {
  const std::int64_t kept = std::clamp<std::int64_t>(intermediate - first, 0, width);
  std::byte* const rows = gate_up.data() + (e * 2 * intermediate + first) * row();
  std::memcpy(rows, gate.data(), static_cast<std::size_t>(kept * row()));
  std::memcpy(rows + intermediate * row(), up.data(), static_cast<std::size_t>(kept * row()));
  for (std::int64_t h = 0; h < hidden; ++h)
    std::memcpy(down.data() + (e * hidden + h) * column_bytes(intermediate) + column_bytes(first),
                part.data() + h * column_bytes(width), static_cast<std::size_t>(column_bytes(kept)));
}

std::vector<LogicalTensor> logical_tensors(const checkpoint::ExportedLayer& facts,
                                           const checkpoint::ModelConfig& config, const Logical& logical,
                                           const checkpoint::LayerScales& scales) {
  return Writer(facts, config, logical, scales).run();
}

}  // namespace kerf::tools::internal
