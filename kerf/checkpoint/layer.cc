#include "kerf/checkpoint/internal/layer.h"

#include <span>
#include <utility>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/base/function_ref.h"
#include "kerf/checkpoint/internal/scan.h"
#include "kerf/numeric/e4m3.h"
#include "kerf/numeric/e4m3_scan.h"
#include "kerf/numeric/nvfp4.h"

namespace kerf::checkpoint::internal {

namespace {

// Faults of one kind as they are found. A damaged file may hold nothing but faults: places beyond the kept
// ones are not spelt out.
struct Found {
  explicit Found(std::string kind) : group{std::move(kind), 0, {}} {}

  void add(FunctionRef<std::string()> place) {
    ++group.total;
    if (group.first.size() < Faults::kept) group.first.push_back(place());
  }

  FaultGroup group;
};

std::span<const std::uint8_t> codes_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

}  // namespace

std::optional<tensor::StoredTensor> Layer::stored(std::string_view suffix) const {
  const Located* located = find_full(full_name(suffix));
  if (located == nullptr) return std::nullopt;
  return source_.table->stored(*located);
}

std::optional<tensor::TensorView> Layer::find(std::string_view suffix) const {
  if (const auto found = stored(suffix)) return found->read();
  return std::nullopt;
}

std::int64_t Layer::expert_bytes() const {
  const std::int64_t weights = 3 * source_.hidden * source_.intermediate;
  return kind_ == ExpertKind::bf16 ? weights * 2 : weights / 2 + weights / numeric::nvfp4_block;
}

ExpertViews Layer::expert(std::int64_t e) const {
  const ExpertFiles files = expert_files(e);
  return {files.gate.read(),  files.gate_sf.read(), files.up.read(),
          files.up_sf.read(), files.down.read(),    files.down_sf.read()};
}

std::int64_t Layer::scan_block_scales(std::int64_t e, Faults& faults) const {
  std::int64_t bytes = 0;
  bool regular = true;
  for (const tensor::Source& stored : stored_block_scales(e)) {
    bytes += stored.bytes();
    for_each_piece(stored, [&](std::int64_t /*at*/, std::span<const std::byte> piece) {
      regular = numeric::regular_scales(codes_of(piece)) && regular;
    });
  }
  if (regular) return bytes;
  const ExpertFiles files = expert_files(e);
  const std::array<const tensor::StoredTensor*, 3> scales = {&files.gate_sf, &files.up_sf, &files.down_sf};
  for (const Projection p : all_projections)
    walk_block_scales(*scales[static_cast<std::size_t>(p)], p, e, faults);
  return bytes;
}

void Layer::expect_nvfp4(std::int64_t e) const {
  expect_expert(e);
  if (kind_ != ExpertKind::nvfp4)
    fail(ErrorKind::bug, "layer {} has BF16 experts, which have no block scales", index());
}

void Layer::walk_block_scales(const tensor::StoredTensor& scales, Projection p, std::int64_t e,
                              Faults& faults) const {
  const std::string name = tensor_name(p, Part::block_scale, e);
  const std::string file = in_file(located(p, Part::block_scale, e));
  const std::int64_t row_bytes = scales.shape[1];
  Found nan{"NaN block scale"};
  Found negative{"negative block scale"};
  for_each_piece(scales.source, [&](std::int64_t begin, std::span<const std::byte> piece) {
    std::int64_t at = begin;
    for (const std::uint8_t byte : codes_of(piece)) {
      const std::int64_t here = at++;
      if (numeric::regular_scale(byte)) continue;
      (numeric::e4m3_is_nan(byte) ? nan : negative).add([&] {
        return fmt::format("layer {}, {}, expert {}, row {}, block {}, byte 0x{:02X}{}", index(), name, e,
                           file_row(p, here / row_bytes), here % row_bytes, byte, file);
      });
    }
  });
  faults.add(nan.group);
  faults.add(negative.group);
}

void Layer::scan_values(std::int64_t e, Faults& faults) const {
  expect_expert(e);
  if (kind_ != ExpertKind::bf16)
    fail(ErrorKind::bug, "layer {} has NVFP4 experts, whose every code is finite", index());
  const ExpertFiles files = expert_files(e);
  const std::array<const tensor::StoredTensor*, 3> weights = {&files.gate, &files.up, &files.down};
  for (const Projection p : all_projections) {
    const tensor::StoredTensor& stored = *weights[static_cast<std::size_t>(p)];
    Found found{"BF16 weight that is not finite"};
    for_each_piece(stored.source, [&](std::int64_t begin, std::span<const std::byte> piece) {
      for_each_not_finite_bf16(piece, [&](std::size_t in_piece, std::uint16_t bits) {
        found.add([&] {
          const std::int64_t at = begin / 2 + static_cast<std::int64_t>(in_piece);
          const std::int64_t columns = stored.shape[1];
          return fmt::format("layer {}, {}, expert {}, row {}, column {}, bits 0x{:04X}{}", index(),
                             tensor_name(p, Part::weight, e), e, file_row(p, at / columns), at % columns,
                             bits, in_file(located(p, Part::weight, e)));
        });
      });
    });
    faults.add(found.group);
  }
}

void Layer::scan_extras(Faults& faults) const {
  for (const auto& [suffix, kind] : {std::pair{post_norm_name, "norm weight that is not finite"},
                                     {selection_bias_name, "selection bias that is not finite"}}) {
    const std::string name = full_name(suffix);
    if (const Located* located = find_full(name)) scan_finite(name, *located, kind, faults);
  }
}

void Layer::scan_finite(const std::string& name, const Located& located, const std::string& kind,
                        Faults& faults) const {
  const tensor::StoredTensor stored = source_.table->stored(located);
  Found found{kind};
  const auto place = [&](std::int64_t at, const std::string& bits) {
    const std::int64_t columns = stored.shape.rank() == 2 ? stored.shape[1] : 0;
    const std::string where = columns == 0 ? fmt::format("element {}", at)
                                           : fmt::format("row {}, column {}", at / columns, at % columns);
    return fmt::format("layer {}, {}, {}, bits 0x{}{}", index(), name, where, bits, in_file(&located));
  };
  for_each_piece(stored.source, [&](std::int64_t begin, std::span<const std::byte> piece) {
    if (stored.dtype == tensor::Dtype::bf16)
      for_each_not_finite_bf16(piece, [&](std::size_t at, std::uint16_t bits) {
        found.add(
            [&] { return place(begin / 2 + static_cast<std::int64_t>(at), fmt::format("{:04X}", bits)); });
      });
    if (stored.dtype == tensor::Dtype::f32)
      for_each_not_finite_f32(piece, [&](std::size_t at, std::uint32_t bits) {
        found.add(
            [&] { return place(begin / 4 + static_cast<std::int64_t>(at), fmt::format("{:08X}", bits)); });
      });
  });
  faults.add(found.group);
}

std::string Layer::full_name(std::string_view suffix) const {
  std::string found;
  // Of one that is not there, the spelling of models that keep their experts where this one does.
  const std::string_view root = source_.root;
  const std::string_view home = root.substr(0, root.find('.') + 1);
  std::string_view own = suffix;
  for (const std::string_view spelling : spellings(suffix)) {
    std::string name = source_.prefix + std::string(spelling);
    const Located* located = find_full(name);
    if (!own.starts_with(home) && spelling.starts_with(home)) own = spelling;
    if (located == nullptr) continue;
    if (!found.empty())
      fail(ErrorKind::checkpoint, "{} is there as {} too, wanted one of them", where(name, *located), found);
    found = std::move(name);
  }
  return found.empty() ? source_.prefix + std::string(own) : found;
}

bool Layer::has_post_norm() const {
  const std::string name = full_name(post_norm_name);
  const Located* located = find_full(name);
  if (located != nullptr) expect(name, *located, tensor::Dtype::bf16, {source_.hidden});
  return located != nullptr;
}

bool Layer::has_selection_bias() const {
  const std::string name = full_name(selection_bias_name);
  const Located* located = find_full(name);
  if (located == nullptr) return false;
  const tensor::Dtype dtype = entry(*located).dtype;
  if (dtype != tensor::Dtype::bf16 && dtype != tensor::Dtype::f32)
    fail(ErrorKind::checkpoint, "{}: got {} {}, wanted F32 or BF16 [{}]", where(name, *located),
         tensor::name(dtype), entry(*located).shape.text(), source_.experts);
  expect(name, *located, dtype, {source_.experts});
  return true;
}

std::string Layer::in_file(const Located* located) const {
  return located == nullptr ? std::string() : fmt::format(", in {}", source_.table->file(*located));
}

ExpertKind Layer::kind_of_weight(const std::string& name, const Located& located) const {
  if (entry(located).dtype == tensor::Dtype::u8 || entry(located).dtype == tensor::Dtype::f4)
    return ExpertKind::nvfp4;
  if (entry(located).dtype == tensor::Dtype::bf16) return ExpertKind::bf16;
  fail(ErrorKind::checkpoint, "{}: got {} {}, wanted U8 (NVFP4, two codes a byte), F4 or BF16",
       where(name, located), tensor::name(entry(located).dtype), entry(located).shape.text());
}

void Layer::expect(const std::string& name, const Located& located, tensor::Dtype dtype,
                   const tensor::Shape& shape) const {
  if (entry(located).dtype == dtype && entry(located).shape == shape) return;
  const bool wrong_dtype = entry(located).dtype != dtype;
  fail(ErrorKind::checkpoint,
       "{}: got {} {}, wanted {}{} ({} experts, hidden {}, intermediate {} of config.json)",
       where(name, located), tensor::name(entry(located).dtype), entry(located).shape.text(),
       wrong_dtype ? fmt::format("{} ", tensor::name(dtype)) : "", shape.text(), source_.experts,
       source_.hidden, source_.intermediate);
}

void Layer::expect_codes(const std::string& name, const Located& located, const tensor::Shape& shape) const {
  if (entry(located).dtype != tensor::Dtype::f4) return expect(name, located, tensor::Dtype::u8, shape);
  // Which of two codes comes first is known along the last dimension only.
  if (source_.dialect->transposed)
    fail(ErrorKind::unsupported, "{}: got F4 {}: kerf reads F4 experts as [out, in], not as [in, out]",
         where(name, located), entry(located).shape.text());
  std::vector<std::int64_t> codes(shape.dims().begin(), shape.dims().end());
  codes.back() *= 2;
  expect(name, located, tensor::Dtype::f4, tensor::Shape(codes));
}

void Layer::expect_dtype(const std::string& name, const Located& located, tensor::Dtype dtype) const {
  if (entry(located).dtype != dtype)
    fail(ErrorKind::checkpoint, "{}: got {} {}, wanted {}", where(name, located),
         tensor::name(entry(located).dtype), entry(located).shape.text(), tensor::name(dtype));
}

std::string Layer::where(const std::string& name, const Located& located) const {
  return fmt::format("layer {}: {} in {}", index(), shown(name), source_.table->file(located));
}

void Layer::expect_expert(std::int64_t e) const {
  if (e < 0 || e >= source_.experts)
    fail(ErrorKind::usage, "layer {}: got expert {}, wanted 0 to {}", index(), e, source_.experts - 1);
}

void Layer::expect_blocks() const {
  if (source_.quant_algo.empty())
    fail(ErrorKind::checkpoint, "layer {} has NVFP4 experts, but {}", index(), source_.no_algo_by);
  for (const std::int64_t width : {source_.hidden, source_.intermediate})
    if (width % numeric::nvfp4_block != 0)
      fail(ErrorKind::unsupported, "layer {}: NVFP4 experts of width {}, wanted a multiple of {}", index(),
           width, numeric::nvfp4_block);
}

}  // namespace kerf::checkpoint::internal
