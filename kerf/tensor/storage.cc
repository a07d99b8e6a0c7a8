#include "kerf/tensor/storage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "kerf/base/format.h"

namespace kerf::tensor {

namespace {

constexpr std::size_t kPagesFrom = std::size_t{1} << 21;  // blocks of this size and more are mapped
constexpr std::size_t kHugePage = std::size_t{1}
                                  << 21;  // a block that begins inside one begins in small pages
constexpr std::size_t kAlign = 64;

std::byte* map_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (bytes > SIZE_MAX - kHugePage - page) return nullptr;
  const std::size_t room = bytes + kHugePage;
  void* mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  // What is before the next border, and behind the block, goes back.
  auto* first = static_cast<std::byte*>(mapped);
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(first) % kHugePage) % kHugePage;
  const std::size_t used = before + (bytes + page - 1) / page * page;
  if (before > 0) munmap(first, before);
  if (used < room) munmap(first + used, room - used);
  madvise(first + before, bytes, MADV_HUGEPAGE);  // a wish: without huge pages all still works
  return first + before;
}

}  // namespace

std::byte* HostMemory::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  std::byte* block =
      bytes >= kPagesFrom
          ? map_pages(bytes)
          : static_cast<std::byte*>(std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign));
  if (block == nullptr)
    fail(ErrorKind::memory, "no memory for a block of {} bytes; {} bytes are in use", bytes, current());
  usage_.add(static_cast<std::int64_t>(bytes));
  return block;
}

void HostMemory::release(std::byte* block, std::size_t bytes) noexcept {
  if (block == nullptr) return;
  if (bytes >= kPagesFrom)
    munmap(block, bytes);
  else
    std::free(block);
  usage_.remove(static_cast<std::int64_t>(bytes));
}

Tensor::Tensor(Memory& memory, Dtype dtype, const Shape& shape)
    : memory_(&memory),
      dtype_(dtype),
      shape_(shape),
      data_(nullptr),
      size_(static_cast<std::size_t>(bytes_of(dtype, shape))) {
  data_ = memory.allocate(size_);
}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this == &other) return *this;
  reset();
  memory_ = std::exchange(other.memory_, nullptr);
  dtype_ = other.dtype_;
  shape_ = std::exchange(other.shape_, Shape{});
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void Tensor::reset() noexcept {
  if (memory_ != nullptr) memory_->release(data_, size_);
  memory_ = nullptr;
  data_ = nullptr;
  size_ = 0;
}

}  // namespace kerf::tensor
