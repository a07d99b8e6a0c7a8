#include <algorithm>
#include <bit>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/dialect.h"

namespace kerf::checkpoint {

namespace {

using internal::Dialects;

constexpr std::array<std::string_view, 3> kProj = {"gate_proj", "up_proj", "down_proj"};
constexpr std::array<std::string_view, 3> kNumbered = {"w1", "w3", "w2"};
constexpr std::array<std::string_view, 3> kStack = {"gate_up_proj", "gate_up_proj", "down_proj"};

constexpr std::array<std::string_view, 4> kModelOpt = {".weight", ".weight_scale", ".weight_scale_2",
                                                       ".input_scale"};
constexpr std::array<std::string_view, 4> kPacked = {".weight_packed", ".weight_scale",
                                                     ".weight_global_scale", ".input_global_scale"};
constexpr std::array<std::string_view, 4> kJoined = {"", "_weight_scale", "_weight_scale_2", "_input_scale"};
constexpr std::array<std::string_view, 4> kBare = {"", ".weight_scale", ".weight_scale_2", ".input_scale"};

constexpr std::array<Dialect, 9> kTable = {{
    {"per-expert", false, kProj, kModelOpt},
    {"w1-w3-w2", false, kNumbered, kModelOpt},
    {"compressed-tensors", false, kProj, kPacked, true},
    {"compressed-tensors-w1-w3-w2", false, kNumbered, kPacked, true},
    {"fused", true, kStack, kJoined},
    {"fused-dotted", true, kStack, kModelOpt, false, false, false, true},
    {"fused-bare", true, kStack, kBare, false, false, false, true},
    {"llama4", true, kStack, kJoined, false, true, false, true},
    {"gpt-oss", true, kStack, kJoined, false, true, true, true},
}};
static_assert(kTable.size() <= 32);

constexpr Dialects bit(std::size_t i) { return Dialects{1} << i; }

// Under Llama-4's root, stacked experts are Llama-4's; elsewhere they never are.
constexpr std::string_view kLlama4Root = "feed_forward.experts.";

template <typename Is>
Dialects those(Is is) {
  Dialects out = 0;
  for (std::size_t i = 0; i < kTable.size(); ++i)
    if (is(kTable[i])) out |= bit(i);
  return out;
}

bool has_name(const Dialect& d, std::string_view rest) {
  for (const std::string_view projection : d.projections) {
    if (!rest.starts_with(projection)) continue;
    const std::string_view part = rest.substr(projection.size());
    if (std::find(d.parts.begin(), d.parts.end(), part) != d.parts.end()) return true;
  }
  return false;
}

}  // namespace

std::span<const Dialect> dialects() { return kTable; }

const Dialect& dialect_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Dialect& d : kTable) {
    if (d.name == name) return d;
    names.push_back(d.name);
  }
  fail(ErrorKind::usage, "no dialect named '{}'; there are {}", name, fmt::join(names, ", "));
}

std::string_view part_name(const Dialect& dialect, Part part) {
  std::string_view out = dialect.parts[static_cast<std::size_t>(part)];
  if (out.empty()) return "weight";
  out.remove_prefix(1);
  return out;
}

namespace internal {

const Dialect& first_of(Dialects set) {
  if (set == 0) fail(ErrorKind::bug, "no dialect is left");
  return kTable[static_cast<std::size_t>(std::countr_zero(set))];
}

Dialects dialects_with(std::string_view root, std::string_view rest, bool one_expert) {
  return those([&](const Dialect& d) {
    const bool at_home = !d.stacked || (d.transposed && !d.alternating) == (root == kLlama4Root);
    return d.stacked != one_expert && at_home && has_name(d, rest);
  });
}

Dialects stacked_dialects() {
  return those([](const Dialect& d) { return d.stacked; });
}

Dialects stacked_dialects(bool transposed, bool alternating) {
  return those([&](const Dialect& d) {
    return d.stacked && d.transposed == transposed && d.alternating == alternating;
  });
}

}  // namespace internal

}  // namespace kerf::checkpoint
