#include "kerf/tensor/view.h"

#include <algorithm>
#include <cstring>

#include "kerf/base/format.h"

namespace kerf::tensor {

Shape::Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const std::int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  if (dims.size() > max_rank)
    fail(ErrorKind::unsupported, "a tensor of {} dimensions, at most 8 wanted", dims.size());
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

std::int64_t Shape::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t d : dims()) {
    if (d < 0) fail(ErrorKind::unsupported, "shape {} has a negative dimension", text());
    if (d != 0 && product > (std::int64_t{1} << 62) / d)
      fail(ErrorKind::unsupported, "shape {} has too many elements", text());
    product *= d;
  }
  return product;
}

std::string Shape::text() const { return fmt::format("[{}]", fmt::join(dims(), ", ")); }

std::int64_t bytes_of(Dtype dtype, const Shape& shape) {
  const std::int64_t n = shape.elements();
  const int b = bits(dtype);
  if (n > (std::int64_t{1} << 62) / b)
    fail(ErrorKind::unsupported, "shape {} has too many bytes", shape.text());
  return (n * b + 7) / 8;
}

void pack(const StridedBytes& from, std::byte* to) {
  for (std::int64_t p = 0; p < from.planes; ++p) {
    const std::byte* run = from.base + p * from.plane_stride;
    if (from.run_stride == from.run_bytes) {
      std::memcpy(to, run, static_cast<std::size_t>(from.runs * from.run_bytes));
      to += from.runs * from.run_bytes;
      continue;
    }
    for (std::int64_t r = 0; r < from.runs; ++r, run += from.run_stride, to += from.run_bytes)
      std::memcpy(to, run, static_cast<std::size_t>(from.run_bytes));
  }
}

namespace {
class HostCopier final : public Copier {
 public:
  void pack(const StridedBytes& from, std::byte* to) const override { tensor::pack(from, to); }
};
}  // namespace

const Copier& host_copier() {
  static const HostCopier copier;
  return copier;
}

}  // namespace kerf::tensor
