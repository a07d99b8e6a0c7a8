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

std::string slice_fault(std::int64_t intermediate, std::int64_t tp) {
  if (intermediate < 1) return fmt::format("intermediate {} is not positive", intermediate);
  if (intermediate % tp != 0) return fmt::format("intermediate {} does not split {} ways", intermediate, tp);
  const std::int64_t slice = intermediate / tp;
  if (slice % kScaleGroup != 0)
    return fmt::format("slice {} splits a {}-value group and is not a multiple of {}", slice, kScaleGroup,
                       kIntermediateUnit);
  return fault("slice", slice, kIntermediateUnit);
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

Verdict cuttable(std::int64_t hidden, std::int64_t intermediate, std::int64_t tp) {
  const std::string legal = list(legal_tp(intermediate));
  if (tp < 1)
    return because(ErrorKind::usage, "tp {} is not a number of ranks; at least 1 is wanted; legal tp: {}", tp,
                   legal);
  const std::string hidden_fault = fault("hidden", hidden, kHiddenUnit);
  const std::string text = both(hidden_fault, slice_fault(intermediate, tp));
  if (text.empty()) return std::nullopt;
  if (hidden_fault.empty())
    return because(ErrorKind::unsupported,
                   "experts of hidden {} x intermediate {} cannot be cut {} ways: {}; legal tp: {}", hidden,
                   intermediate, tp, text, legal);
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
