// The tensors around a layer's experts: the router's weight, and the projections and norm of models whose
// experts have a width of their own.
#include <array>

#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/layer.h"

namespace kerf::checkpoint::internal {

namespace {

struct Slot {
  std::string_view suffix;
  tensor::Shape shape;
  bool f32 = false;  // F32 will do, too
  const char* fault;
};

using Slots = std::array<Slot, 4>;

Slots slots_of(const LayerSource& s) {
  return {{{gate_name, {s.experts, s.model_hidden}, true, "router weight that is not finite"},
           {pre_proj_name, {s.hidden, s.model_hidden}, false, "projection weight that is not finite"},
           {pre_norm_name, {s.hidden}, false, "norm weight that is not finite"},
           {post_proj_name, {s.model_hidden, s.hidden}, false, "projection weight that is not finite"}}};
}

const char* dtypes(const Slot& slot) { return slot.f32 ? "F32 or BF16" : "BF16"; }

bool usable(const Slot& slot, const TensorEntry& entry) {
  return entry.shape == slot.shape &&
         (entry.dtype == tensor::Dtype::bf16 || (slot.f32 && entry.dtype == tensor::Dtype::f32));
}

std::string got_and_wanted(const Slot& slot, const TensorEntry& entry, const LayerSource& s) {
  return fmt::format("got {} {}, wanted {} {} ({} experts, hidden {}, model width {} of config.json)",
                     tensor::name(entry.dtype), entry.shape.text(), dtypes(slot), slot.shape.text(),
                     s.experts, s.hidden, s.model_hidden);
}

}  // namespace

BlockFiles Layer::block(bool pool) const {
  for (const std::string_view suffix : {pre_proj_name, pre_norm_name, post_proj_name})
    if (const Located* located = pool ? nullptr : find_full(full_name(suffix)))
      fail(ErrorKind::unsupported, "{}: of a Muse Spark model, which this is not by its configuration",
           where(full_name(suffix), *located));
  const Slots slots = slots_of(source());
  const auto file = [&](const Slot& slot) {
    const std::string name = full_name(slot.suffix);
    const Located* located = find_full(name);
    if (located == nullptr)
      fail(ErrorKind::checkpoint,
           "layer {}: {} is missing, wanted {} {}: the block around the experts needs it", index(), name,
           dtypes(slot), slot.shape.text());
    if (!usable(slot, entry(*located)))
      fail(ErrorKind::checkpoint, "{}: {}", where(name, *located),
           got_and_wanted(slot, entry(*located), source()));
    return source().table->stored(*located);
  };
  BlockFiles out;
  out.gate = file(slots[0]);
  if (has_selection_bias()) out.bias = stored(selection_bias_name);
  if (pool) {
    out.pre_proj = file(slots[1]);
    out.pre_norm = file(slots[2]);
    out.post_proj = file(slots[3]);
  }
  return out;
}

void Layer::check_block(Faults& faults) const {
  for (const Slot& slot : slots_of(source())) {
    const std::string name = full_name(slot.suffix);
    const Located* located = find_full(name);
    if (located != nullptr && !usable(slot, entry(*located)))
      faults.add("tensor that cannot be used", fmt::format("{}: {}", where(name, *located),
                                                           got_and_wanted(slot, entry(*located), source())));
  }
}

void Layer::scan_block(Faults& faults) const {
  for (const Slot& slot : slots_of(source())) {
    const std::string name = full_name(slot.suffix);
    const Located* located = find_full(name);
    if (located != nullptr && usable(slot, entry(*located))) scan_finite(name, *located, slot.fault, faults);
  }
}

}  // namespace kerf::checkpoint::internal
