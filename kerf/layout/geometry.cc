#include "kerf/layout/geometry.h"

#include <string>

#include "kerf/base/format.h"

namespace kerf::layout {

namespace {

constexpr std::int64_t kHiddenUnit = 128;       // rows of one scale tile of w2
constexpr std::int64_t kIntermediateUnit = 64;  // half a scale tile of w13's rows, four scale columns of w2
constexpr std::int64_t kScaleGroup = 16;        // values that share one block scale

constexpr std::int64_t kBlock = 64;                      // values of one 128-byte block of BF16
constexpr std::int64_t kWidest = std::int64_t{1} << 30;  // so that no product of two widths overflows

// Divisors of n >= 1, ascending.
std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> low;
  std::vector<std::int64_t> high;
  for (std::int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    low.push_back(d);
    if (d != n / d) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

std::string list(const std::vector<std::int64_t>& values) {
  return values.empty() ? "none" : fmt::format("{}", fmt::join(values, ", "));
}

// Empty where `value` is a positive multiple of `unit` of a sane size.
std::string fault(const char* what, std::int64_t value, std::int64_t unit) {
  if (value < 1) return fmt::format("{} {} is not positive", what, value);
  if (value > kWidest) return fmt::format("{} {} is more than {}", what, value, kWidest);
  if (value % unit != 0) return fmt::format("{} {} is not a multiple of {}", what, value, unit);
  return {};
}

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

std::string slice_fault(std::int64_t intermediate, std::int64_t tp, const Fit& fit) {
  if (intermediate < 1) return fmt::format("intermediate {} is not positive", intermediate);
  if (fit.pad) {
    if (const Verdict bad = paddable(intermediate)) return bad->text;
    if (tp > kWidest / kIntermediateUnit || converted_width(intermediate, tp, fit) > kWidest)
      return fmt::format("intermediate {} padded for {} slices is more than {}", intermediate, tp, kWidest);
    intermediate = converted_width(intermediate, tp, fit);
  }
  if (fit.uneven) {
    const std::string whole = fault("intermediate", intermediate, kIntermediateUnit);
    if (!whole.empty()) return whole;
    const std::int64_t tiles = intermediate / kIntermediateUnit;
    if (tp <= tiles) return {};
    return fmt::format("intermediate {} has {} of {}, fewer than slices", intermediate,
                       tiles == 1 ? std::string("one tile") : fmt::format("{} tiles", tiles),
                       kIntermediateUnit);
  }
  if (intermediate % tp != 0) return fmt::format("intermediate {} does not split {} ways", intermediate, tp);
  const std::int64_t slice = intermediate / tp;
  if (slice % kScaleGroup != 0)
    return fmt::format("slice {} splits a {}-value group and is not a multiple of {}", slice, kScaleGroup,
                       kIntermediateUnit);
  return fault("slice", slice, kIntermediateUnit);
}

// What would make a cut possible that is refused, to stand behind the reason; empty for nothing.
std::string ways_out(std::int64_t intermediate, std::int64_t tp, const Fit& fit) {
  std::string text;
  const Fit uneven{true, fit.pad};
  if (!fit.uneven && slice_fault(intermediate, tp, uneven).empty()) {
    const std::int64_t width = converted_width(intermediate, tp, uneven);
    text += fmt::format("; --uneven would cut slices of {} and {}", slice_of(width, tp, 0).width,
                        slice_of(width, tp, tp - 1).width);
  }
  const Fit pad{fit.uneven, true};
  if (!fit.pad && slice_fault(intermediate, tp, pad).empty()) {
    const std::int64_t width = converted_width(intermediate, tp, pad);
    // A rank that had zeros alone would be no help.
    if (slice_of(width, tp, tp - 1).first < intermediate)
      text += fmt::format("; --pad would add zeros up to {}", width);
  }
  return text;
}

std::string both(const std::string& a, const std::string& b) {
  return a + (a.empty() || b.empty() ? "" : " and ") + b;
}

Verdict fits(const char* what, std::int64_t hidden, std::int64_t intermediate, std::int64_t hidden_unit,
             std::int64_t intermediate_unit) {
  const std::string text =
      both(fault("hidden", hidden, hidden_unit), fault("intermediate", intermediate, intermediate_unit));
  if (text.empty()) return std::nullopt;
  return because(ErrorKind::unsupported, "{} of hidden {} x intermediate {} do not fit the layout: {}", what,
                 hidden, intermediate, text);
}

}  // namespace

std::int64_t converted_width(std::int64_t intermediate, std::int64_t tp, const Fit& fit) {
  return fit.pad ? round_up(intermediate, kIntermediateUnit * (fit.uneven ? 1 : tp)) : intermediate;
}

Slice slice_of(std::int64_t width, std::int64_t tp, std::int64_t part) {
  const std::int64_t tiles = width / kIntermediateUnit;
  const std::int64_t each = tiles / tp;
  const std::int64_t more = tiles % tp;  // slices with one tile more, which come first
  return {kIntermediateUnit * (part * each + (part < more ? part : more)),
          kIntermediateUnit * (each + (part < more ? 1 : 0))};
}

Verdict paddable(std::int64_t intermediate) {
  const std::string text = fault("intermediate", intermediate, kScaleGroup);
  if (text.empty()) return std::nullopt;
  return because(ErrorKind::unsupported, "{}, which padding needs", text);
}

Verdict convertible(std::int64_t hidden, std::int64_t intermediate) {
  return fits("experts", hidden, intermediate, kHiddenUnit, kIntermediateUnit);
}

Verdict convertible_bf16(std::int64_t hidden, std::int64_t intermediate) {
  return fits("BF16 experts", hidden, intermediate, kBlock, kBlock);
}

std::vector<std::int64_t> legal_tp(std::int64_t intermediate) {
  if (!fault("intermediate", intermediate, kIntermediateUnit).empty()) return {};
  return divisors(intermediate / kIntermediateUnit);
}

std::vector<std::int64_t> legal_ep(std::int64_t experts) {
  return experts < 1 ? std::vector<std::int64_t>{} : divisors(experts);
}

Verdict cuttable(std::int64_t hidden, std::int64_t intermediate, std::int64_t tp, const Fit& fit) {
  const std::string legal = fit.uneven && fault("", intermediate, kIntermediateUnit).empty()
                                ? fmt::format("1 to {}", intermediate / kIntermediateUnit)
                                : list(legal_tp(intermediate));
  if (tp < 1)
    return because(ErrorKind::usage, "tp {} is not a number of ranks; at least 1 is wanted; legal tp: {}", tp,
                   legal);
  const std::string hidden_fault = fault("hidden", hidden, kHiddenUnit);
  const std::string text = both(hidden_fault, slice_fault(intermediate, tp, fit));
  if (text.empty()) return std::nullopt;
  if (hidden_fault.empty())
    return because(ErrorKind::unsupported,
                   "experts of hidden {} x intermediate {} cannot be cut {} ways: {}; legal tp: {}{}", hidden,
                   intermediate, tp, text, legal, ways_out(intermediate, tp, fit));
  return because(
      ErrorKind::unsupported,
      "experts of hidden {} x intermediate {} cannot be cut {} ways: {}; legal tp: none at this hidden "
      "width (the intermediate width alone would allow: {})",
      hidden, intermediate, tp, text, legal);
}

Verdict placeable(std::int64_t experts, std::int64_t ep) {
  if (experts < 1)
    return because(ErrorKind::usage, "{} experts over {} ranks: at least one expert is wanted", experts, ep);
  if (experts > kWidest)
    return because(ErrorKind::usage, "{} experts over {} ranks: at most {} experts are wanted", experts, ep,
                   kWidest);
  const std::string legal = list(legal_ep(experts));
  if (ep < 1)
    return because(ErrorKind::usage, "ep {} is not a number of ranks; at least 1 is wanted; legal ep: {}", ep,
                   legal);
  if (experts % ep != 0)
    return because(
        ErrorKind::unsupported,
        "{} experts over {} ranks: every rank must hold the same number of whole experts; legal ep: {}",
        experts, ep, legal);
  return std::nullopt;
}

}  // namespace kerf::layout
