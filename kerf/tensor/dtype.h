// Element types of tensors, with the names that safetensors headers use.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#pragma GCC visibility push(default)
namespace kerf::tensor {

// Types of elements.
enum class Dtype : std::uint8_t {
  boolean,
  u8,
  i8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  f4,
  f6_e2m3,
  f6_e3m2,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  bf16,
  f16,
  f32,
  f64,
  c64
};

// "U8", "F8_E4M3", "BF16", ...; and back: the names of safetensors alone, nothing for others.
std::string_view name(Dtype dtype);
std::optional<Dtype> dtype_named(std::string_view name);

// Bits of one element (f4: 4, f6: 6).
int bits(Dtype dtype);

}  // namespace kerf::tensor
#pragma GCC visibility pop
