// Dialects: how a checkpoint names, stacks, turns and scales the tensors of its routed experts. Each is a
// line of one table; what reads or writes experts asks the line, and no dialect has code of its own.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kerf::checkpoint {

enum class Projection : std::uint8_t { gate, up, down };
enum class Part : std::uint8_t { weight, block_scale, global_scale, input_scale };

inline constexpr std::array<Projection, 3> all_projections = {Projection::gate, Projection::up,
                                                              Projection::down};

// One way to write experts down.
struct Dialect {
  std::string_view name;
  // One tensor for all experts, gate and up in one; else one an expert and projection, "{e}." before its
  // name.
  bool stacked = false;
  std::array<std::string_view, 3> projections;  // gate, up, down; stacked: gate and up are the same
  std::array<std::string_view, 4> parts;        // what follows: weight, block scales, global, input scale
  // Global and input scales are stored as what a value is divided by: the scale is 1 / stored, in f32.
  bool divisors = false;
  // Stacked: [E, in, out] rather than [E, out, in]. Codes still share a byte along `in`, the low nibble the
  // even one, so that a matrix of bytes [in / 2, out] becomes [out, in / 2] by moving bytes.
  bool transposed = false;
  // Stacked: gate and up alternate along `out`, gate first; else gate's come first.
  bool alternating = false;
  // Stacked: gate and up, and all experts, may share a global scale (input scales always may).
  bool shared_scales = false;
};

// All of them: docs/formats.md.
std::span<const Dialect> dialects();
// Error{usage} that lists the names for an unknown one.
const Dialect& dialect_named(std::string_view name);
// "weight_scale": a part without the character that joins it to its projection.
std::string_view part_name(const Dialect& dialect, Part part);

}  // namespace kerf::checkpoint
