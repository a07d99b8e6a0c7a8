// One tensor an expert and projection: "{prefix}{root}{e}.{projection}{part}".
#include <span>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/layer.h"

namespace kerf::checkpoint::internal {

namespace {

constexpr std::size_t kParts = 4;
// [projection][part]; null where the file has no such tensor.
using ExpertParts = std::array<std::array<const Located*, kParts>, 3>;

class PerExpertLayer final : public Layer {
 public:
  explicit PerExpertLayer(LayerSource from) : Layer(std::move(from)) {
    // Grown as experts are found: the configuration's count is not to be trusted with an allocation.
    for (std::int64_t e = 0; e < source().experts; ++e) {
      const ExpertParts tensors = locate(e);
      const ExpertKind kind = check(e, tensors);
      if (e == 0) {
        set_kind(kind);
        if (kind == ExpertKind::nvfp4) expect_blocks();
      }
      check_shapes(e, tensors);
      experts_.push_back(tensors);
    }
  }

  [[nodiscard]] ExpertFiles expert_files(std::int64_t e) const override {
    expect_expert(e);
    const auto stored = [&](Projection p, Part part) {
      const Located* found = located(p, part, e);
      if (found == nullptr) return tensor::StoredTensor{};
      tensor::StoredTensor out = source().table->stored(*found);
      if (out.dtype == tensor::Dtype::f4) {  // the same bytes
        out.dtype = tensor::Dtype::u8;
        out.shape = {rows(p), columns(p) / 2};
      }
      return out;
    };
    return {stored(Projection::gate, Part::weight), stored(Projection::gate, Part::block_scale),
            stored(Projection::up, Part::weight),   stored(Projection::up, Part::block_scale),
            stored(Projection::down, Part::weight), stored(Projection::down, Part::block_scale)};
  }

  [[nodiscard]] std::vector<tensor::Source> stored_block_scales(std::int64_t e) const override {
    expect_nvfp4(e);
    const ExpertFiles files = expert_files(e);
    return {files.gate_sf.source, files.up_sf.source, files.down_sf.source};
  }

  [[nodiscard]] std::unique_ptr<Layer> over(const TensorTable& table) const override {
    return copy_over(*this, table);
  }

  [[nodiscard]] bool has_input_scales() const override {
    for (const ExpertParts& expert : experts_)
      for (const auto& parts : expert)
        if (parts[static_cast<std::size_t>(Part::input_scale)] != nullptr) return true;
    return false;
  }

 protected:
  [[nodiscard]] std::optional<float> scalar(Projection p, Part part, std::int64_t e) const override {
    const Located* found = located(p, part, e);
    if (found == nullptr) return std::nullopt;
    float value = 0;
    source().table->stored(*found).source.read(0, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

  [[nodiscard]] const Located* located(Projection p, Part part, std::int64_t e) const override {
    return experts_[static_cast<std::size_t>(e)][static_cast<std::size_t>(p)][static_cast<std::size_t>(part)];
  }

  [[nodiscard]] std::string tensor_name(Projection p, Part part, std::int64_t e) const override {
    const Dialect& d = *source().dialect;
    return fmt::format("{}{}{}.{}{}", source().prefix, source().root, e,
                       d.projections[static_cast<std::size_t>(p)], d.parts[static_cast<std::size_t>(part)]);
  }

  [[nodiscard]] std::int64_t file_row(Projection /*p*/, std::int64_t row) const override { return row; }

 private:
  [[nodiscard]] ExpertParts locate(std::int64_t e) const {
    ExpertParts out{};
    for (const Projection p : all_projections)
      for (std::size_t part = 0; part < kParts; ++part)
        out[static_cast<std::size_t>(p)][part] = find_full(tensor_name(p, static_cast<Part>(part), e));
    return out;
  }

  // Every weight is there, and of the layer's kind. Missing global and input scales are faults of their own:
  // scales() counts them.
  [[nodiscard]] ExpertKind check(std::int64_t e, const ExpertParts& tensors) const {
    bool any = false;
    for (const auto& parts : tensors)
      for (const Located* located : parts) any = any || located != nullptr;
    if (!any)
      fail(ErrorKind::checkpoint,
           "layer {}: expert {} is missing: no {} in any file, wanted experts 0 to {} (config.json)", index(),
           e, tensor_name(Projection::gate, Part::weight, e), source().experts - 1);
    std::optional<ExpertKind> kind;
    if (e != 0) kind = this->kind();
    for (const Projection p : all_projections) {
      const auto& parts = tensors[static_cast<std::size_t>(p)];
      const Located* weight = parts[0];
      const std::string weight_name = tensor_name(p, Part::weight, e);
      if (weight == nullptr)
        fail(ErrorKind::checkpoint, "layer {}: {} is missing (expert {})", index(), weight_name, e);
      const ExpertKind own = kind_of_weight(weight_name, *weight);
      if (kind && *kind != own)
        fail(ErrorKind::checkpoint,
             "{}: got {} (expert {}), wanted {} as the layer's experts before it: all experts of a layer "
             "must be of one kind",
             where(weight_name, *weight), tensor::name(entry(*weight).dtype), e,
             *kind == ExpertKind::nvfp4 ? "U8 (NVFP4)" : "BF16");
      kind = own;
      if (own == ExpertKind::bf16) {
        for (std::size_t part = 1; part < kParts; ++part)
          if (parts[part] != nullptr)
            fail(ErrorKind::checkpoint,
                 "{}: a scale beside BF16 weights (expert {}), wanted U8 weights or no scale",
                 where(tensor_name(p, static_cast<Part>(part), e), *parts[part]), e);
      } else if (parts[static_cast<std::size_t>(Part::block_scale)] == nullptr) {
        fail(ErrorKind::checkpoint, "layer {}: {} is missing (expert {})", index(),
             tensor_name(p, Part::block_scale, e), e);
      }
    }
    return *kind;
  }

  void check_shapes(std::int64_t e, const ExpertParts& tensors) const {
    for (const Projection p : all_projections) {
      const auto& parts = tensors[static_cast<std::size_t>(p)];
      const std::string weight = tensor_name(p, Part::weight, e);
      if (kind() == ExpertKind::bf16) {
        expect(weight, *parts[0], tensor::Dtype::bf16, {rows(p), columns(p)});
        continue;
      }
      expect_codes(weight, *parts[0], {rows(p), columns(p) / 2});
      expect(tensor_name(p, Part::block_scale, e), *parts[1], tensor::Dtype::f8_e4m3,
             {rows(p), columns(p) / 16});
      for (const Part part : {Part::global_scale, Part::input_scale}) {
        const Located* located = parts[static_cast<std::size_t>(part)];
        if (located == nullptr) continue;
        const std::string scalar_name = tensor_name(p, part, e);
        // A scalar, in either spelling.
        const bool one = entry(*located).shape == tensor::Shape{1};
        expect(scalar_name, *located, tensor::Dtype::f32, one ? tensor::Shape{1} : tensor::Shape{});
      }
    }
  }

  std::vector<ExpertParts> experts_;
};

}  // namespace

std::unique_ptr<Layer> make_per_expert_layer(LayerSource source) {
  return std::make_unique<PerExpertLayer>(std::move(source));
}

}  // namespace kerf::checkpoint::internal
