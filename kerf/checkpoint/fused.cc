// All experts of a layer in one tensor a projection, gate and up stacked in one, gate rows first:
//   gate_up_proj [E, 2I, H], its scales [E, 2I, H/16], its global scales 2E values (gate, up an expert);
//   down_proj    [E, H, I],  its scales [E, H, I/16],  its global scales E values.
#include <cstring>

#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/layer.h"

namespace kerf::checkpoint::internal {

namespace {

constexpr std::size_t kParts = 4;
constexpr std::array<std::string_view, 2> kStacks = {"gate_up_proj", "down_proj"};

std::size_t stack_of(Projection p) { return p == Projection::down ? 1 : 0; }

class FusedLayer final : public Layer {
 public:
  explicit FusedLayer(LayerSource from) : Layer(std::move(from)) {
    for (std::size_t s = 0; s < kStacks.size(); ++s)
      for (std::size_t part = 0; part < kParts; ++part)
        stacks_[s][part] = find_full(stack_name(s, static_cast<Part>(part)));
    for (std::size_t s = 0; s < kStacks.size(); ++s) {
      const std::string weight = stack_name(s, Part::weight);
      if (stacks_[s][0] == nullptr) fail(ErrorKind::checkpoint, "layer {}: {} is missing", index(), weight);
      const ExpertKind own = kind_of_weight(weight, *stacks_[s][0]);
      if (s == 0) {
        set_kind(own);
        if (own == ExpertKind::nvfp4) expect_blocks();
      }
      if (own != kind())
        fail(ErrorKind::checkpoint, "{}: got {}, wanted {} as {}: all experts of a layer must be of one kind",
             where(weight, *stacks_[s][0]), tensor::name(stacks_[s][0]->entry->dtype),
             kind() == ExpertKind::nvfp4 ? "U8 (NVFP4)" : "BF16", kStacks[0]);
      check_stack(s);
    }
  }

  [[nodiscard]] std::string_view dialect() const override { return "fused"; }

  [[nodiscard]] ExpertViews expert(std::int64_t e) const override {
    expect_expert(e);
    const auto view = [&](Projection p, Part part) { return slice(p, part, e); };
    ExpertViews out;
    out.gate = view(Projection::gate, Part::weight);
    out.up = view(Projection::up, Part::weight);
    out.down = view(Projection::down, Part::weight);
    if (kind() == ExpertKind::nvfp4) {
      out.gate_sf = view(Projection::gate, Part::block_scale);
      out.up_sf = view(Projection::up, Part::block_scale);
      out.down_sf = view(Projection::down, Part::block_scale);
    }
    return out;
  }

  [[nodiscard]] bool has_input_scales() const override {
    return stacks_[0][static_cast<std::size_t>(Part::input_scale)] != nullptr ||
           stacks_[1][static_cast<std::size_t>(Part::input_scale)] != nullptr;
  }

 protected:
  [[nodiscard]] std::optional<float> scalar(Projection p, Part part, std::int64_t e) const override {
    const Located* found = located(p, part, e);
    if (found == nullptr) return std::nullopt;
    const tensor::TensorView view = source().table.view(*found);
    const std::int64_t values = view.shape.elements();
    std::int64_t at = 0;  // one value serves all
    if (values == source().experts * per_expert(p))
      at = e * per_expert(p) + (p == Projection::up ? 1 : 0);
    else if (values == source().experts)
      at = e;
    float value = 0;
    std::memcpy(&value, view.bytes.data() + at * static_cast<std::int64_t>(sizeof(value)), sizeof(value));
    return value;
  }

  [[nodiscard]] const Located* located(Projection p, Part part, std::int64_t /*e*/) const override {
    return stacks_[stack_of(p)][static_cast<std::size_t>(part)];
  }

  [[nodiscard]] std::string tensor_name(Projection p, Part part, std::int64_t /*e*/) const override {
    const bool scalar_part = part == Part::global_scale || part == Part::input_scale;
    const char* half = p == Projection::gate ? " (gate)" : p == Projection::up ? " (up)" : "";
    return stack_name(stack_of(p), part) + (scalar_part ? half : "");
  }

  [[nodiscard]] std::int64_t first_row(Projection p) const override {
    return p == Projection::up ? source().intermediate : 0;
  }

 private:
  // Global scales an expert has in the stack of p.
  static std::int64_t per_expert(Projection p) { return p == Projection::down ? 1 : 2; }

  [[nodiscard]] std::string stack_name(std::size_t stack, Part part) const {
    const std::string weight = fmt::format("{}mlp.experts.{}", source().prefix, kStacks[stack]);
    return part == Part::weight ? weight : fmt::format("{}_{}", weight, name(part));
  }

  void check_stack(std::size_t s) const {
    const std::int64_t e = source().experts;
    const Projection p = s == 0 ? Projection::gate : Projection::down;
    const std::int64_t stacked_rows = rows(p) * per_expert(p);
    const auto& parts = stacks_[s];
    const std::string weight = stack_name(s, Part::weight);
    if (kind() == ExpertKind::bf16) {
      for (std::size_t part = 1; part < kParts; ++part)
        if (parts[part] != nullptr)
          fail(ErrorKind::checkpoint, "{}: a scale beside BF16 weights, wanted U8 weights or no scale",
               where(stack_name(s, static_cast<Part>(part)), *parts[part]));
      expect(weight, *parts[0], tensor::Dtype::bf16, {e, stacked_rows, columns(p)});
      return;
    }
    expect(weight, *parts[0], tensor::Dtype::u8, {e, stacked_rows, columns(p) / 2});
    const std::string scale = stack_name(s, Part::block_scale);
    if (parts[1] == nullptr) fail(ErrorKind::checkpoint, "layer {}: {} is missing", index(), scale);
    expect(scale, *parts[1], tensor::Dtype::f8_e4m3, {e, stacked_rows, columns(p) / 16});
    for (const Part part : {Part::global_scale, Part::input_scale}) {
      const Located* located = parts[static_cast<std::size_t>(part)];
      if (located != nullptr) check_scalars(stack_name(s, part), *located, part, per_expert(p));
    }
  }

  // E experts' values, `each` an expert: as one vector or with E as the first dimension. Input scales may be
  // shared by gate and up, or by all.
  void check_scalars(const std::string& tensor, const Located& located, Part part, std::int64_t each) const {
    expect_dtype(tensor, located, tensor::Dtype::f32);
    const tensor::Shape& shape = located.entry->shape;
    const std::int64_t e = source().experts;
    const std::int64_t values = shape.elements();
    const bool by_expert = shape.rank() == 1 || (shape.rank() > 1 && shape[0] == e);
    const bool input = part == Part::input_scale;
    if ((values == each * e && by_expert) || (input && ((values == e && by_expert) || values == 1))) return;
    fail(ErrorKind::checkpoint, "{}: got F32 {}, wanted {}[{}]{} ({} experts of config.json)",
         where(tensor, located), shape.text(), each == 2 ? fmt::format("[{}, 2] or ", e) : "", each * e,
         input ? fmt::format(", [{}] or one value", e) : "", e);
  }

  // [rows of p, ...] of expert e.
  [[nodiscard]] tensor::TensorView slice(Projection p, Part part, std::int64_t e) const {
    const tensor::TensorView whole =
        source().table.view(*stacks_[stack_of(p)][static_cast<std::size_t>(part)]);
    const std::size_t expert_bytes = whole.bytes.size() / static_cast<std::size_t>(source().experts);
    const std::size_t bytes = expert_bytes / static_cast<std::size_t>(per_expert(p));
    const std::size_t begin = static_cast<std::size_t>(e) * expert_bytes + (p == Projection::up ? bytes : 0);
    return {whole.dtype, {rows(p), whole.shape[2]}, whole.bytes.subspan(begin, bytes)};
  }

  std::array<std::array<const Located*, kParts>, 2> stacks_{};
};

}  // namespace

std::unique_ptr<Layer> make_fused_layer(LayerSource source) {
  return std::make_unique<FusedLayer>(std::move(source));
}

}  // namespace kerf::checkpoint::internal
