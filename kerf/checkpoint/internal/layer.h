// What layers of all dialects share: global scales, the scan of block scales, checks of dtype and shape.
// Stacked or not, a layer says where each number lies, by its dialect; everything that judges numbers is
// here.
#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <string>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/checkpoint/export_facts.h"
#include "kerf/checkpoint/internal/names.h"
#include "kerf/checkpoint/internal/tensor_table.h"

namespace kerf::checkpoint::internal {

// What a layer is made from. `table` must outlive the layer.
struct LayerSource {
  const TensorTable* table = nullptr;
  std::int64_t index = 0;
  std::string prefix;  // "model.layers.0."
  std::string root;    // "mlp.experts."
  const Dialect* dialect = nullptr;
  std::int64_t experts = 0;  // E, H, I of the configuration
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t model_hidden = 0;
  std::string quant_algo = {};  // of this layer's experts
  // Where there is none: what says so, or what does not.
  std::string no_algo_by = "neither hf_quant_config.json nor config.json gives them a quant_algo";
  std::string no_block = {};  // MoeLayer::no_block()
};

class Layer : public MoeLayer {
 public:
  explicit Layer(LayerSource source) : source_(std::move(source)) {}

  [[nodiscard]] std::int64_t index() const final { return source_.index; }
  [[nodiscard]] const std::string& prefix() const final { return source_.prefix; }
  [[nodiscard]] const std::string& root() const final { return source_.root; }
  [[nodiscard]] ExpertKind kind() const final { return kind_; }
  [[nodiscard]] std::string_view dialect() const final { return source_.dialect->name; }
  [[nodiscard]] bool copies() const final { return source_.dialect->transposed; }
  [[nodiscard]] ExpertViews expert(std::int64_t e) const final;
  LayerScales scales(Faults& faults) const final;
  std::int64_t scan_block_scales(std::int64_t e, Faults& faults) const final;
  void scan_values(std::int64_t e, Faults& faults) const final;
  void scan_extras(Faults& faults) const final;
  [[nodiscard]] const std::string& no_block() const final { return source_.no_block; }
  [[nodiscard]] BlockFiles block(bool pool) const final;
  void check_block(Faults& faults) const final;
  void scan_block(Faults& faults) const final;
  [[nodiscard]] std::optional<tensor::TensorView> find(std::string_view suffix) const final;
  [[nodiscard]] std::optional<tensor::StoredTensor> stored(std::string_view suffix) const final;
  [[nodiscard]] std::int64_t expert_bytes() const final;
  // Whether the layer has a norm after its experts, BF16 [H], and a selection bias, F32 or BF16 [E].
  // Error{checkpoint} where the tensor is something else.
  [[nodiscard]] bool has_post_norm() const;
  [[nodiscard]] bool has_selection_bias() const;
  [[nodiscard]] std::string full_name(std::string_view suffix) const final;
  // The algorithm that the configuration gives these experts.
  [[nodiscard]] const std::string& quant_algo() const { return source_.quant_algo; }
  // The same layer, read by the readers of another table of the same files, which must outlive it.
  [[nodiscard]] virtual std::unique_ptr<Layer> over(const TensorTable& table) const = 0;
  // From headers alone: whether any expert of this NVFP4 layer has an input scale.
  [[nodiscard]] virtual bool has_input_scales() const = 0;
  [[nodiscard]] bool weight_only() const override {
    return kind() == ExpertKind::nvfp4 && quant_algo() == "W4A16_NVFP4";
  }

 protected:
  // A global or input scale of expert e as it is stored; nothing where the tensor is not there.
  [[nodiscard]] virtual std::optional<float> scalar(Projection projection, Part part,
                                                    std::int64_t e) const = 0;
  // The tensor itself; null where the file has none.
  [[nodiscard]] virtual const Located* located(Projection projection, Part part, std::int64_t e) const = 0;
  // The tensor that holds (or should hold) it, as messages name it.
  [[nodiscard]] virtual std::string tensor_name(Projection projection, Part part, std::int64_t e) const = 0;
  // The row (of an expert's matrix in that tensor, as [out, in]) that the projection's row `row` is.
  [[nodiscard]] virtual std::int64_t file_row(Projection projection, std::int64_t row) const = 0;

  [[nodiscard]] const LayerSource& source() const { return source_; }
  [[nodiscard]] const Located* find_full(std::string_view name) const { return source_.table->find(name); }
  [[nodiscard]] TensorEntry entry(const Located& located) const { return source_.table->entry(located); }
  [[nodiscard]] std::int64_t rows(Projection p) const {
    return p == Projection::down ? source_.hidden : source_.intermediate;
  }
  [[nodiscard]] std::int64_t columns(Projection p) const {
    return p == Projection::down ? source_.intermediate : source_.hidden;
  }
  void set_kind(ExpertKind kind) { kind_ = kind; }
  template <typename Own>
  static std::unique_ptr<Layer> copy_over(const Own& layer, const TensorTable& table) {
    auto out = std::make_unique<Own>(layer);
    static_cast<Layer&>(*out).source_.table = &table;
    return out;
  }

  // "weight_scale_2", as this dialect calls it.
  [[nodiscard]] std::string_view part_name(Part part) const {
    return checkpoint::part_name(*source_.dialect, part);
  }

  // U8 or F4: nvfp4, BF16: bf16; Error{checkpoint} for any other dtype of a weight.
  [[nodiscard]] ExpertKind kind_of_weight(const std::string& name, const Located& located) const;
  // Two codes a byte along the last dimension: `shape` as U8, twice the last dimension as F4.
  void expect_codes(const std::string& name, const Located& located, const tensor::Shape& shape) const;
  // Error{checkpoint} with layer, tensor, file, got and wanted unless the tensor is so.
  void expect(const std::string& name, const Located& located, tensor::Dtype dtype,
              const tensor::Shape& shape) const;
  void expect_dtype(const std::string& name, const Located& located, tensor::Dtype dtype) const;
  // "layer 0: <name> in <file>"
  [[nodiscard]] std::string where(const std::string& name, const Located& located) const;
  // Error{usage} unless e is an expert.
  void expect_expert(std::int64_t e) const;
  // And Error{bug} for BF16 experts.
  void expect_nvfp4(std::int64_t e) const;
  // Error{unsupported} where H or I are not whole NVFP4 blocks.
  void expect_blocks() const;

 private:
  // The values of a BF16 or F32 tensor that are not finite, as faults of this kind.
  void scan_finite(const std::string& name, const Located& located, const std::string& kind,
                   Faults& faults) const;
  // The faults among the block scales [rows, blocks] of one projection, one by one.
  void walk_block_scales(const tensor::StoredTensor& scales, Projection p, std::int64_t e,
                         Faults& faults) const;
  // ", in <file>" as the end of a fault's place; empty where the tensor is not there.
  [[nodiscard]] std::string in_file(const Located* located) const;

  LayerSource source_;
  ExpertKind kind_ = ExpertKind::nvfp4;
};

// Both check every tensor's presence, dtype and shape from the headers; Error{checkpoint} that says what was
// got and wanted, and in which layer, tensor, expert and file.
std::unique_ptr<Layer> make_per_expert_layer(LayerSource source);
std::unique_ptr<Layer> make_stacked_layer(LayerSource source);
// The same of a layer of an export, for what stands beside its experts.
std::unique_ptr<Layer> make_exported_layer(LayerSource source, const ExportedLayer& facts);

}  // namespace kerf::checkpoint::internal
