#include "kerf/decode/memory_plan.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/decode/device_sizes.h"
#include "kerf/decode/exact.h"
#include "kerf/decode/fit.h"
#include "kerf/decode/internal/staging.h"
#include "kerf/decode/plan.h"
#include "kerf/decode/probe.h"
#include "kerf/layout/geometry.h"
#include "kerf/op/op.h"
#include "kerf/routing/metadata.h"
#include "kerf/tactics/tactics.h"

namespace kerf::decode {

namespace {

// One NVFP4 layer: n experts of width i.
KindBytes nvfp4_layer(std::int64_t n, std::int64_t h, std::int64_t i) {
  KindBytes b;
  b.w13 = n * 2 * i * (h / 2);
  b.w13_sf = n * 2 * i * (h / 16);
  b.w2 = n * h * (i / 2);
  b.w2_sf = n * h * (i / 16);
  b.scalars = n * 3 * 4 + 2 * 4;
  return b;
}

KindBytes times(std::int64_t layers, const KindBytes& b) {
  return {layers * b.w13,   layers * b.w13_sf,  layers * b.w2,
          layers * b.w2_sf, layers * b.scalars, layers * b.bf16};
}

// NVFP4 layers that are given quantised rows; the others are given bf16 rows.
std::int64_t quantised_layers(const MemoryRequest& r) {
  return r.input == op::Input::nvfp4 ? r.nvfp4_layers - r.weight_only_layers : 0;
}

std::vector<op::Arithmetic> nvfp4_arithmetics(const MemoryRequest& r) {
  std::vector<op::Arithmetic> out;
  if (quantised_layers(r) > 0) out.push_back(op::Arithmetic::w4a4);
  if (quantised_layers(r) < r.nvfp4_layers) out.push_back(op::Arithmetic::w4a16);
  return out;
}

// The whole experts of each kind of layer, as one rank holds them.
std::vector<Whole> wholes(const MemoryRequest& r) {
  std::vector<Whole> out;
  for (const op::Arithmetic arithmetic : nvfp4_arithmetics(r))
    out.push_back({arithmetic, r.experts / r.ranks, r.hidden, r.intermediate, r.tp});
  if (r.bf16_layers > 0)
    out.push_back({op::Arithmetic::bf16, r.experts / r.ranks, r.hidden, r.intermediate, 1});
  return out;
}

// What one rank runs steps on.
std::vector<DeviceKind> held(const MemoryRequest& r) {
  std::vector<DeviceKind> out;
  for (const Whole& whole : wholes(r)) {
    const layout::ExpertsShape shape = whole.shape(r.fit);
    const bool bf16 = whole.arithmetic == op::Arithmetic::bf16;
    if (bf16 || !r.exported_slices) out.push_back({whole.arithmetic, shape});
    if (r.tp > 1 && !bf16)
      out.push_back(
          {whole.arithmetic,
           {r.experts / r.rows, r.hidden, layout::slice_of(shape.intermediate, r.tp, r.part).width}});
  }
  return out;
}

// What every layer's step shares: as much as make_plan() finds at any tactic and number of tokens.
std::int64_t step_buffers(const MemoryRequest& r) {
  const op::Backend& backend = op::planning_backend(r.backend);
  StepSizes sizes;
  for (std::int64_t t = 0; t <= r.tokens; ++t) {
    const std::vector<op::Tactic> valid = backend.tactics(t);
    for (const DeviceKind& h : held(r)) {
      std::vector<op::Tactic> keys =
          tactics::tactic_keys(valid, t, r.top_k, h.shape.experts, PlanOptions().largest_tile);
      keys.push_back({op::tiles.front(), -1});  // the public op's default
      for (const op::Tactic key : keys) {
        const routing::MetadataShape step{t, r.top_k, r.experts, 0, h.shape.experts, key.tile};
        sizes.cover({routing::metadata_words(step), op::gemm2_rows(step, r.hidden),
                     static_cast<std::int64_t>(backend.workspace_bytes(h.arithmetic, h.shape, step))});
      }
    }
  }
  const std::int64_t slices = r.nvfp4_layers > 0 ? r.tp : 1;
  return step_bytes(
      sizes, {r.tokens, r.top_k, r.hidden, std::max(r.ranks, r.rows * r.tp), r.workers, slices, r.tail});
}

Verdict bad_numbers(const MemoryRequest& r) {
  const std::array<std::pair<const char*, std::int64_t>, 6> positive = {{{"experts", r.experts},
                                                                         {"hidden", r.hidden},
                                                                         {"intermediate", r.intermediate},
                                                                         {"top-k", r.top_k},
                                                                         {"tokens", r.tokens},
                                                                         {"workers", r.workers}}};
  for (const auto& [what, value] : positive)
    if (value < 1) return because(ErrorKind::usage, "{} is {}, wanted at least 1", what, value);
  if (r.nvfp4_layers < 0 || r.bf16_layers < 0 || r.nvfp4_layers + r.bf16_layers < 1)
    return because(ErrorKind::usage, "{} NVFP4 and {} BF16 layers, wanted at least one layer", r.nvfp4_layers,
                   r.bf16_layers);
  if (r.weight_only_layers < 0 || r.weight_only_layers > r.nvfp4_layers)
    return because(ErrorKind::usage, "{} weight-only of {} NVFP4 layers", r.weight_only_layers,
                   r.nvfp4_layers);
  if (r.top_k > r.experts)
    return because(ErrorKind::usage, "top-k is {}, but there are only {} experts", r.top_k, r.experts);
  if (r.tokens > most_tokens)
    return because(ErrorKind::usage, "a step of {} tokens, wanted 1 to {}", r.tokens, most_tokens);
  // The largest sums, in a type that does not wrap. Padding adds less than 64 for each slice.
  const auto wide = [](std::int64_t v) { return static_cast<long double>(v); };
  const long double padding = r.fit.pad ? 64.0L * wide(std::max<std::int64_t>(r.tp, 1)) : 0.0L;
  const long double weights = 6.0L * wide(r.experts) * wide(r.hidden) * (wide(r.intermediate) + padding);
  const long double layers = wide(r.nvfp4_layers) + wide(r.bf16_layers);
  // Rows of a step, of all buffers together, tails included: those pad tokens to the number of ranks.
  const long double ranks = std::max(wide(r.ranks), wide(r.rows) * wide(r.tp));
  const long double rows =
      24.0L * wide(r.hidden) *
      ((wide(r.tokens) + ranks) * wide(r.top_k) + 64.0L * wide(r.experts) + 2.0L * wide(r.workers));
  if (2 * weights * layers > 0x1p60L || rows > 0x1p60L)
    return because(ErrorKind::usage, "{} layers of {} experts, {} x {}, {} tokens: more than 2^60 bytes",
                   r.nvfp4_layers + r.bf16_layers, r.experts, r.hidden, r.intermediate, r.tokens);
  return std::nullopt;
}

Verdict bad_shape(const MemoryRequest& r) {
  if (r.nvfp4_layers > 0)
    if (Verdict v = layout::cuttable(r.hidden, r.intermediate, r.tp, r.fit)) return v;
  if (r.nvfp4_layers > 0 && r.tp > 1 && r.tail.kind == tail::Kind::exact) {
    if (quantised_layers(r) < r.nvfp4_layers)
      return because(
          ErrorKind::unsupported,
          "exact tails of sliced experts need canonical sums, which W4A16 does not have; EP is exact "
          "on any number of ranks");
    if (Verdict v = exact_refused(layout::converted_width(r.intermediate, r.tp, r.fit), r.tp)) return v;
  }
  if (r.tp < 1) return because(ErrorKind::usage, "tp {} is not a number of ranks", r.tp);
  if (r.nvfp4_layers == 0 && r.tp > 1)
    return because(ErrorKind::unsupported,
                   "tp {} on BF16 layers alone: only NVFP4 experts are cut; legal tp: 1", r.tp);
  if (r.part < 0 || r.part >= r.tp)
    return because(ErrorKind::usage, "slice {} of {}, wanted 0 to {}", r.part, r.tp, r.tp - 1);
  // Whole experts of each kind: what build() asks of the same backend.
  const op::Backend* backend = nullptr;
  if (Verdict v = attempt([&] { backend = &op::planning_backend(r.backend); })) return v;
  MemoryRequest one = r;
  one.ranks = 1;
  for (const Whole& whole : wholes(one))
    if (Verdict v = unfit(*backend, whole, r.fit)) return v;
  return std::nullopt;
}

}  // namespace

Verdict unsupported(const MemoryRequest& r) {
  if (Verdict why = bad_numbers(r)) return why;
  Verdict shape = bad_shape(r);
  Verdict placement = layout::placeable(r.experts, r.ranks);
  if (!placement) placement = layout::placeable(r.experts, r.rows);
  if (!shape || !placement) return shape ? shape : placement;
  // Both, so that neither has to be found by trying again. Arguments that make no sense lead.
  if (placement->kind == ErrorKind::usage) std::swap(shape, placement);
  return because(shape->kind, "{}; {}", shape->text, placement->text);
}

namespace {

bool exact_slices(const MemoryRequest& r) {
  return r.tail.kind == tail::Kind::exact && r.tp > 1 && r.nvfp4_layers > 0;
}

// What the steps of all layers take on a device.
std::int64_t stack_bytes(const MemoryRequest& r) {
  const DeviceExtent extent{r.tokens, r.experts, r.hidden, r.top_k};
  const DeviceLayerShapes quantised(extent, true, r.norm, r.tp > 1);
  const DeviceLayerShapes weight_only(extent, false, r.norm, r.tp > 1);
  const DeviceLayerShapes bf16(extent, false, r.norm, false);
  return quantised_layers(r) * quantised.bytes() +
         (r.nvfp4_layers - quantised_layers(r)) * weight_only.bytes() + r.bf16_layers * bf16.bytes() +
         DeviceStepShapes(held(r), extent, exact_slices(r)).bytes();
}

// Page-locked memory on the way to a device: kinds of experts have slots of their own.
std::int64_t staging_of(const MemoryRequest& r, const MemoryPlan& p) {
  const auto slots = [](std::int64_t count, std::int64_t bytes, std::int64_t each, std::int64_t fixed) {
    return internal::staged_in_all(count, bytes) * each + internal::staging_slots(count, bytes) * fixed;
  };
  std::int64_t bytes = 0;
  if (r.nvfp4_layers > 0) {
    const std::int64_t n = r.exported_slices ? r.experts / r.rows : r.experts / r.ranks;
    const std::int64_t width = r.exported_slices ? p.slice : p.width;
    const std::int64_t fixed = nvfp4_layer(0, r.hidden, width).total();  // scalars of a layer
    bytes += slots(n, nvfp4_layer(n, r.hidden, width).total(),
                   nvfp4_layer(1, r.hidden, width).total() - fixed, fixed);
  }
  if (r.bf16_layers > 0) {
    const std::int64_t n = r.experts / r.ranks;
    const std::int64_t each = 3 * r.hidden * p.bf16_width * 2;
    bytes += slots(n, n * each, each, 0);
  }
  return bytes;
}

// Who has what, stage by stage.
void share_out(const MemoryRequest& r, MemoryPlan& p) {
  const std::int64_t whole = p.ep.total();
  const std::int64_t added = p.tp.total();
  p.block = r.block;
  if (!p.on_device) {
    p.host.load = p.host.convert = p.exported ? whole + added : whole;
    p.host.reshard = p.reshard + r.block;
    p.host.warm_up = p.host.steps = p.steady + r.block;
    return;
  }
  const std::int64_t scalars = p.ep.scalars + p.tp.scalars;
  const std::int64_t weights = whole + added - scalars;
  const std::int64_t loaded = p.exported ? weights : whole - p.ep.scalars;
  p.host.load = p.exported ? scalars : p.ep.scalars;
  p.host.convert = p.host.load + p.staging;
  p.host.reshard = scalars + r.block + p.probe;
  p.host.warm_up = p.host.steps = scalars + r.block + p.buffers;
  p.device.load = p.device.convert = loaded;
  p.device.reshard = p.exported ? loaded : weights + std::max(p.packed, p.probe > 0 ? p.run : 0);
  // The stack is made when warm-up is over.
  p.device.warm_up = weights + p.run;
  p.device.steps = weights + p.stack;
}

}  // namespace

MemoryPlan memory_plan(const MemoryRequest& r) {
  require(unsupported(r));
  const std::int64_t local = r.experts / r.ranks;
  MemoryPlan p;
  p.exported = r.exported_slices;
  p.on_device = r.backend == "cuda";
  p.width = layout::converted_width(r.intermediate, r.tp, r.fit);
  p.bf16_width = layout::converted_width(r.intermediate, 1, r.fit);
  p.slice = r.tp > 1 ? layout::slice_of(p.width, r.tp, r.part).width : p.width;
  const KindBytes stock = nvfp4_layer(local, r.hidden, p.width);
  if (!r.exported_slices) p.ep = times(r.nvfp4_layers, stock);
  p.ep.bf16 = r.bf16_layers * local * 3 * r.hidden * p.bf16_width * 2;
  if (r.tp > 1) {
    p.tp = times(r.nvfp4_layers, nvfp4_layer(r.experts / r.rows, r.hidden, p.slice));
    if (!r.exported_slices) {
      p.packed = std::max({stock.w13, stock.w13_sf, stock.w2, stock.w2_sf});
      for (const op::Arithmetic arithmetic : nvfp4_arithmetics(r))
        p.probe =
            std::max(p.probe, probe_bytes(op::planning_backend(r.backend), arithmetic,
                                          {local, r.hidden, p.width}, {r.experts / r.rows, r.hidden, p.slice},
                                          r.experts, r.top_k, static_cast<int>(r.ranks)));
    }
  }
  p.buffers = step_buffers(r);
  p.load = p.exported ? p.ep.total() + p.tp.total() : p.ep.total();
  p.reshard = p.ep.total() + p.tp.total() + std::max(p.packed, p.probe);
  p.steady = p.ep.total() + p.tp.total() + p.buffers;
  if (p.on_device) {
    p.staging = staging_of(r, p);
    p.stack = stack_bytes(r);
    // A probe's steps have tokens of their own.
    const std::int64_t probed = p.probe > 0 ? probe_tokens({}, r.top_k, static_cast<int>(r.ranks)) : 0;
    p.run = device_run_bytes(held(r), {std::max(r.tokens, probed), r.experts, r.hidden, r.top_k},
                             exact_slices(r));
  }
  share_out(r, p);
  return p;
}

StageTerms worst_stage(const MemoryPlan& p, bool device) {
  const StagePeaks& peaks = device ? p.device : p.host;
  const std::array<std::pair<const char*, std::int64_t>, 5> stages = {{{"load", peaks.load},
                                                                       {"convert", peaks.convert},
                                                                       {"reshard", peaks.reshard},
                                                                       {"warm-up", peaks.warm_up},
                                                                       {"steps", peaks.steps}}};
  const auto worst = std::ranges::max_element(stages, {}, [](const auto& s) { return s.second; });
  StageTerms out{worst->first, {}, worst->second};
  std::int64_t left = worst->second;
  const auto term = [&](const char* what, std::int64_t bytes) {
    if (bytes > 0) out.terms.emplace_back(what, bytes);
    left -= bytes;
  };
  const bool early = !p.exported && (worst == stages.begin() || worst == stages.begin() + 1);
  const auto share = [&](const KindBytes& kinds) {
    return !p.on_device ? kinds.total() : device ? kinds.total() - kinds.scalars : kinds.scalars;
  };
  term(p.on_device && !device ? "scalars of stock experts" : "stock experts", share(p.ep));
  if (!early) term(p.on_device && !device ? "scalars of sliced experts" : "sliced experts", share(p.tp));
  if (!device && worst - stages.begin() >= 2) term("blocks around the experts", p.block);
  // What is left is the stage's own.
  const std::array<const char*, 5> own = {"", "page-locked staging", "one packed kind or a probe",
                                          device ? "a run of the op" : "buffers of steps",
                                          "buffers of steps"};
  term(own[static_cast<std::size_t>(worst - stages.begin())], left);
  return out;
}

}  // namespace kerf::decode
