// All experts of a layer in one tensor a projection, gate and up in one. Where a dialect is not transposed:
//
//   gate_up_proj [E, 2I, H], gate rows first; block scales [E, 2I, H/16]; global scales [2E]: gate, up of
//   each down_proj    [E, H, I]; block scales [E, H, I/16]; global scales [E]
//
// Transposed: [E, H, 2I] and [E, I, H] (codes [E, H/2, 2I] bytes, block scales [E, H/16, 2I]), gate columns
// first or gate and up columns in turn. Those are turned when an expert is read: bytes move, none changes.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <span>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/layer.h"

namespace kerf::checkpoint::internal {

namespace {

constexpr std::size_t kParts = 4;
constexpr std::int64_t kTile = 64;  // of a matrix that is turned

std::size_t stack_of(Projection p) { return p == Projection::down ? 1 : 0; }

// One expert's matrix [rows, in] of elements of `size` bytes, in a file as [in, width]: column `first`, then
// every `step`th. A row lies in pieces all over it, so that all of it is read when the first byte is, and is
// turned then; it is kept as long as this is.
class TurnedReader final : public tensor::Reader {
 public:
  struct Place {
    std::int64_t size, rows, in, width, first, step;
  };
  TurnedReader(tensor::Source file, const Place& place) : file_(std::move(file)), place_(place) {}

  void read(std::int64_t offset, std::span<std::byte> to) const override {
    std::call_once(once_, [&] { turn(); });
    std::copy_n(turned_.begin() + offset, to.size(), to.begin());
  }
  void will_need(std::int64_t /*offset*/, std::int64_t /*bytes*/) const noexcept override {
    file_.reader()->will_need(file_.begin(), file_.bytes());
  }

 private:
  template <typename Element>
  void turn_elements(std::span<const std::byte> from) const {
    const auto [size, rows, in, width, first, step] = place_;
    std::byte* to = turned_.data();
    for (std::int64_t r0 = 0; r0 < rows; r0 += kTile)
      for (std::int64_t k0 = 0; k0 < in; k0 += kTile)
        for (std::int64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
          for (std::int64_t k = k0; k < std::min(in, k0 + kTile); ++k)
            std::memcpy(to + (r * in + k) * size, from.data() + (k * width + first + r * step) * size,
                        sizeof(Element));
  }
  void turn() const {
    std::vector<std::byte> from(static_cast<std::size_t>(file_.bytes()));
    file_.read(0, from);
    turned_.resize(static_cast<std::size_t>(place_.rows * place_.in * place_.size));
    place_.size == 2 ? turn_elements<std::uint16_t>(from) : turn_elements<std::uint8_t>(from);
  }

  tensor::Source file_;
  Place place_;
  mutable std::once_flag once_;
  mutable std::vector<std::byte> turned_;
};

class StackedLayer final : public Layer {
 public:
  explicit StackedLayer(LayerSource from) : Layer(std::move(from)) {
    for (std::size_t s = 0; s < stacks_.size(); ++s)
      for (std::size_t part = 0; part < kParts; ++part)
        stacks_[s][part] = find_full(stack_name(s, static_cast<Part>(part)));
    for (std::size_t s = 0; s < stacks_.size(); ++s) {
      const std::string weight = stack_name(s, Part::weight);
      if (stacks_[s][0] == nullptr) fail(ErrorKind::checkpoint, "layer {}: {} is missing", index(), weight);
      const ExpertKind own = kind_of_weight(weight, *stacks_[s][0]);
      if (s == 0) {
        set_kind(own);
        if (own == ExpertKind::nvfp4) expect_blocks();
      }
      if (own != kind())
        fail(ErrorKind::checkpoint, "{}: got {}, wanted {} as {}: all experts of a layer must be of one kind",
             where(weight, *stacks_[s][0]), tensor::name(entry(*stacks_[s][0]).dtype),
             kind() == ExpertKind::nvfp4 ? "U8 (NVFP4)" : "BF16", source().dialect->projections[0]);
      check_stack(s);
    }
  }

  [[nodiscard]] ExpertFiles expert_files(std::int64_t e) const override {
    expect_expert(e);
    const auto file = [&](Projection p, Part part) {
      return source().dialect->transposed ? turned(p, part, e) : in_place(p, part, e);
    };
    ExpertFiles out;
    out.gate = file(Projection::gate, Part::weight);
    out.up = file(Projection::up, Part::weight);
    out.down = file(Projection::down, Part::weight);
    if (kind() == ExpertKind::nvfp4) {
      out.gate_sf = file(Projection::gate, Part::block_scale);
      out.up_sf = file(Projection::up, Part::block_scale);
      out.down_sf = file(Projection::down, Part::block_scale);
    }
    return out;
  }

  // Each stack's are in one piece, turned or not.
  [[nodiscard]] std::vector<tensor::Source> stored_block_scales(std::int64_t e) const override {
    expect_nvfp4(e);
    return {expert_source(Projection::gate, Part::block_scale, e),
            expert_source(Projection::down, Part::block_scale, e)};
  }

  [[nodiscard]] std::unique_ptr<Layer> over(const TensorTable& table) const override {
    return copy_over(*this, table);
  }

  [[nodiscard]] bool has_input_scales() const override {
    return stacks_[0][static_cast<std::size_t>(Part::input_scale)] != nullptr ||
           stacks_[1][static_cast<std::size_t>(Part::input_scale)] != nullptr;
  }

 protected:
  [[nodiscard]] std::optional<float> scalar(Projection p, Part part, std::int64_t e) const override {
    const Located* found = located(p, part, e);
    if (found == nullptr) return std::nullopt;
    const tensor::StoredTensor stored = source().table->stored(*found);
    const std::int64_t values = stored.shape.elements();
    std::int64_t at = 0;  // one value serves all
    if (values == source().experts * per_expert(p))
      at = e * per_expert(p) + (p == Projection::up ? 1 : 0);
    else if (values == source().experts)
      at = e;
    float value = 0;
    stored.source.read(at * static_cast<std::int64_t>(sizeof(value)),
                       std::as_writable_bytes(std::span(&value, 1)));
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

  [[nodiscard]] std::int64_t file_row(Projection p, std::int64_t row) const override {
    if (p == Projection::down) return row;
    const bool up = p == Projection::up;
    return source().dialect->alternating ? 2 * row + (up ? 1 : 0) : row + (up ? source().intermediate : 0);
  }

 private:
  // Global scales an expert has in the stack of p.
  static std::int64_t per_expert(Projection p) { return p == Projection::down ? 1 : 2; }

  [[nodiscard]] std::string stack_name(std::size_t stack, Part part) const {
    const Dialect& d = *source().dialect;
    return fmt::format("{}{}{}{}", source().prefix, source().root, d.projections[stack == 0 ? 0 : 2],
                       d.parts[static_cast<std::size_t>(part)]);
  }

  // [E, out, in] or, transposed, [E, in, out], of the stack of p.
  [[nodiscard]] tensor::Shape stack_shape(Projection p, std::int64_t in) const {
    const std::int64_t out = rows(p) * per_expert(p);
    if (source().dialect->transposed) return {source().experts, in, out};
    return {source().experts, out, in};
  }

  void check_stack(std::size_t s) const {
    const Projection p = s == 0 ? Projection::gate : Projection::down;
    const auto& parts = stacks_[s];
    const std::string weight = stack_name(s, Part::weight);
    if (kind() == ExpertKind::bf16) {
      for (std::size_t part = 1; part < kParts; ++part)
        if (parts[part] != nullptr)
          fail(ErrorKind::checkpoint, "{}: a scale beside BF16 weights, wanted U8 weights or no scale",
               where(stack_name(s, static_cast<Part>(part)), *parts[part]));
      expect(weight, *parts[0], tensor::Dtype::bf16, stack_shape(p, columns(p)));
      return;
    }
    expect_codes(weight, *parts[0], stack_shape(p, columns(p) / 2));
    const std::string scale = stack_name(s, Part::block_scale);
    if (parts[1] == nullptr) fail(ErrorKind::checkpoint, "layer {}: {} is missing", index(), scale);
    expect(scale, *parts[1], tensor::Dtype::f8_e4m3, stack_shape(p, columns(p) / 16));
    for (const Part part : {Part::global_scale, Part::input_scale}) {
      const Located* located = parts[static_cast<std::size_t>(part)];
      if (located != nullptr) check_scalars(stack_name(s, part), *located, part, per_expert(p));
    }
  }

  // E experts' values, `each` an expert: as one vector or with E as the first dimension. Input scales may be
  // shared by gate and up, or by all; so may global ones in some dialects.
  void check_scalars(const std::string& tensor, const Located& located, Part part, std::int64_t each) const {
    expect_dtype(tensor, located, tensor::Dtype::f32);
    const tensor::Shape shape = entry(located).shape;
    const std::int64_t e = source().experts;
    const std::int64_t values = shape.elements();
    const bool by_expert = shape.rank() == 1 || (shape.rank() > 1 && shape[0] == e);
    const bool shared = part == Part::input_scale || source().dialect->shared_scales;
    if ((values == each * e && by_expert) || (shared && ((values == e && by_expert) || values == 1))) return;
    const bool halves = shared && each == 2;
    fail(ErrorKind::checkpoint,
         "{}: got F32 {}, wanted {}[{}]{}, or as many values with {} as the first dimension{} ({} experts of "
         "config.json)",
         where(tensor, located), shape.text(), each == 2 ? fmt::format("[{}, 2] or ", e) : "", each * e,
         halves ? fmt::format(" or [{}]", e) : "", e, shared ? ", or one value" : "", e);
  }

  // Expert e's part of the stack of p.
  [[nodiscard]] tensor::Source expert_source(Projection p, Part part, std::int64_t e) const {
    const tensor::Source all =
        source().table->stored(*stacks_[stack_of(p)][static_cast<std::size_t>(part)]).source;
    const std::int64_t bytes = all.bytes() / source().experts;
    return all.part(e * bytes, bytes);
  }

  // Elements of a row of p's matrix, as they are stored: bytes of codes, scales, BF16 values.
  [[nodiscard]] std::int64_t stored_columns(Projection p, Part part) const {
    if (part == Part::block_scale) return columns(p) / 16;
    return kind() == ExpertKind::bf16 ? columns(p) : columns(p) / 2;
  }

  [[nodiscard]] tensor::Dtype stored_dtype(Part part) const {
    if (part == Part::block_scale) return tensor::Dtype::f8_e4m3;
    return kind() == ExpertKind::bf16 ? tensor::Dtype::bf16 : tensor::Dtype::u8;
  }

  // [rows of p, ...] of expert e, as the file has it.
  [[nodiscard]] tensor::StoredTensor in_place(Projection p, Part part, std::int64_t e) const {
    const tensor::Source expert = expert_source(p, part, e);
    const std::int64_t bytes = expert.bytes() / per_expert(p);
    return {stored_dtype(part),
            {rows(p), stored_columns(p, part)},
            expert.part(p == Projection::up ? bytes : 0, bytes)};
  }

  // The same of a file that has it as [in, out].
  [[nodiscard]] tensor::StoredTensor turned(Projection p, Part part, std::int64_t e) const {
    const tensor::Dtype dtype = stored_dtype(part);
    const std::int64_t out = rows(p);
    const bool alternating = source().dialect->alternating && p != Projection::down;
    const TurnedReader::Place place{tensor::bits(dtype) / 8,
                                    out,
                                    stored_columns(p, part),
                                    out * per_expert(p),
                                    p == Projection::up ? (alternating ? 1 : out) : 0,
                                    alternating ? 2 : 1};
    const std::int64_t bytes = place.rows * place.in * place.size;
    return {
        dtype, {out, place.in}, {std::make_shared<TurnedReader>(expert_source(p, part, e), place), 0, bytes}};
  }

  std::array<std::array<const Located*, kParts>, 2> stacks_{};
};

}  // namespace

std::unique_ptr<Layer> make_stacked_layer(LayerSource source) {
  return std::make_unique<StackedLayer>(std::move(source));
}

}  // namespace kerf::checkpoint::internal
