#include "kerf/tensor/dtype.h"

#include <array>

namespace kerf::tensor {

namespace {
struct Row {
  Dtype dtype;
  std::string_view name;
  int bits;
};
constexpr std::array<Row, 22> kTable = {{
    {Dtype::boolean, "BOOL", 8},
    {Dtype::u8, "U8", 8},
    {Dtype::i8, "I8", 8},
    {Dtype::i16, "I16", 16},
    {Dtype::u16, "U16", 16},
    {Dtype::i32, "I32", 32},
    {Dtype::u32, "U32", 32},
    {Dtype::i64, "I64", 64},
    {Dtype::u64, "U64", 64},
    {Dtype::f4, "F4", 4},
    {Dtype::f6_e2m3, "F6_E2M3", 6},
    {Dtype::f6_e3m2, "F6_E3M2", 6},
    {Dtype::f8_e4m3, "F8_E4M3", 8},
    {Dtype::f8_e5m2, "F8_E5M2", 8},
    {Dtype::f8_e8m0, "F8_E8M0", 8},
    {Dtype::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    {Dtype::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    {Dtype::bf16, "BF16", 16},
    {Dtype::f16, "F16", 16},
    {Dtype::f32, "F32", 32},
    {Dtype::f64, "F64", 64},
    {Dtype::c64, "C64", 64},
}};
}  // namespace

std::string_view name(Dtype dtype) { return kTable[static_cast<std::size_t>(dtype)].name; }

std::optional<Dtype> dtype_named(std::string_view name) {
  for (const Row& row : kTable)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

int bits(Dtype dtype) { return kTable[static_cast<std::size_t>(dtype)].bits; }

}  // namespace kerf::tensor
