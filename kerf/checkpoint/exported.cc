// Layers of an export (export_facts.h): what stands beside the experts, and their scales, is as in any
// checkpoint; the experts themselves are in the converted layout, for decode to read.
#include <span>

#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/layer.h"

namespace kerf::checkpoint::internal {

namespace {

class ExportedExperts final : public Layer {
 public:
  ExportedExperts(LayerSource from, const ExportedLayer& facts)
      : Layer(std::move(from)), has_inputs_(facts.has_inputs) {
    set_kind(facts.kind);
    if (facts.kind == ExpertKind::bf16) return;
    expect_blocks();
    ws2_ = scalars(exported_ws2);
    if (has_inputs_) inputs_ = scalars(exported_inputs);
  }

  [[nodiscard]] ExpertFiles expert_files(std::int64_t /*e*/) const override {
    fail(ErrorKind::unsupported, "layer {}: an export has its experts in the converted layout", index());
  }
  [[nodiscard]] std::vector<tensor::Source> stored_block_scales(std::int64_t e) const override {
    (void)expert_files(e);
    return {};
  }
  [[nodiscard]] std::unique_ptr<Layer> over(const TensorTable& table) const override {
    return copy_over(*this, table);
  }

  [[nodiscard]] bool has_input_scales() const override { return has_inputs_; }

 protected:
  [[nodiscard]] std::optional<float> scalar(Projection p, Part part, std::int64_t e) const override {
    const Located* found = part == Part::global_scale ? ws2_ : part == Part::input_scale ? inputs_ : nullptr;
    if (found == nullptr) return std::nullopt;
    const std::int64_t at = static_cast<std::int64_t>(p) * source().experts + e;
    float value = 0;
    source().table->stored(*found).source.read(at * static_cast<std::int64_t>(sizeof(value)),
                                               std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  [[nodiscard]] const Located* located(Projection /*p*/, Part part, std::int64_t /*e*/) const override {
    return part == Part::input_scale ? inputs_ : ws2_;
  }
  [[nodiscard]] std::string tensor_name(Projection p, Part part, std::int64_t /*e*/) const override {
    return fmt::format("{} ({})", full_name(part == Part::input_scale ? exported_inputs : exported_ws2),
                       source().dialect->projections[static_cast<std::size_t>(p)]);
  }
  [[nodiscard]] std::int64_t file_row(Projection /*p*/, std::int64_t row) const override { return row; }

 private:
  [[nodiscard]] const Located* scalars(std::string_view suffix) const {
    const std::string name = full_name(suffix);
    const Located* found = find_full(name);
    if (found == nullptr) fail(ErrorKind::checkpoint, "layer {}: {} is missing", index(), name);
    expect(name, *found, tensor::Dtype::f32, {3, source().experts});
    return found;
  }

  bool has_inputs_;
  const Located* ws2_ = nullptr;
  const Located* inputs_ = nullptr;
};

}  // namespace

std::unique_ptr<Layer> make_exported_layer(LayerSource source, const ExportedLayer& facts) {
  static constexpr Dialect exported{.name = "exported",
                                    .projections = {"gate", "up", "down"},
                                    .parts = {"", "", ".weight_scale_2", ".input_scale"}};
  source.dialect = &exported;
  return std::make_unique<ExportedExperts>(std::move(source), facts);
}

}  // namespace kerf::checkpoint::internal
