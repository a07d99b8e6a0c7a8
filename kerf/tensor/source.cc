#include "kerf/tensor/source.h"

#include <cstring>
#include <utility>

#include "kerf/base/format.h"

namespace kerf::tensor {

namespace {

class MemoryReader final : public Reader {
 public:
  MemoryReader(std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}

  void read(std::int64_t offset, std::span<std::byte> to) const override {
    if (!to.empty()) std::memcpy(to.data(), bytes_.data() + offset, to.size());
  }
  void will_need(std::int64_t /*offset*/, std::int64_t /*bytes*/) const noexcept override {}

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

}  // namespace

Source Source::of_memory(std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  return {std::make_shared<MemoryReader>(bytes, std::move(owner)), 0, std::ssize(bytes)};
}

void Source::expect_inside(std::int64_t offset, std::int64_t bytes) const {
  if (offset < 0 || bytes < 0 || offset > bytes_ || bytes > bytes_ - offset)
    fail(ErrorKind::bug, "asked for {} bytes from byte {} of {}", bytes, offset, bytes_);
}

void Source::read(std::int64_t offset, std::span<std::byte> to) const {
  expect_inside(offset, std::ssize(to));
  if (!to.empty()) reader_->read(begin_ + offset, to);
}

Source Source::part(std::int64_t offset, std::int64_t bytes) const {
  expect_inside(offset, bytes);
  return {reader_, begin_ + offset, bytes};
}

TensorView StoredTensor::read() const {
  const auto size = static_cast<std::size_t>(source.bytes());
  const auto block = std::make_shared_for_overwrite<std::byte[]>(size);
  const std::span<std::byte> bytes(block.get(), size);
  source.read(0, bytes);
  return {dtype, shape, bytes, block};
}

}  // namespace kerf::tensor
