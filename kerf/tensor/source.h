// Bytes that are somewhere else (in a file, say) and are read into the reader's own memory, at whatever grain
// suits: what a view is to bytes in memory. Files are read like this and never mapped, since a mapped file
// that another program cuts short ends the process that touches it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kerf/tensor/view.h"

#pragma GCC visibility push(default)
namespace kerf::tensor {

// Who reads. Any thread may call it, several at once.
class Reader {
 public:
  virtual ~Reader() = default;
  // Fills `to` from byte `offset`, which the caller knows to be there. An Error that names the place where
  // they cannot be read.
  virtual void read(std::int64_t offset, std::span<std::byte> to) const = 0;
  // These bytes will be read soon: now is a good time to fetch them. Never fails.
  virtual void will_need(std::int64_t offset, std::int64_t bytes) const noexcept = 0;
};

// `bytes` bytes of a reader, from byte `begin`. Copies share the reader. Default: no bytes, no reader.
class Source {
 public:
  Source() = default;
  // The caller answers for their being there; nothing is read yet.
  Source(std::shared_ptr<const Reader> reader, std::int64_t begin, std::int64_t bytes)
      : reader_(std::move(reader)), begin_(begin), bytes_(bytes) {}
  // Of bytes in memory, which `owner` keeps there.
  static Source of_memory(std::span<const std::byte> bytes, std::shared_ptr<const void> owner);

  // How many.
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }
  // Where it begins, in the reader's bytes.
  [[nodiscard]] std::int64_t begin() const noexcept { return begin_; }
  // Who reads them; null where nobody does. As long as a copy of this lives.
  [[nodiscard]] const Reader* reader() const noexcept { return reader_.get(); }
  // Fills `to` from byte `offset` of these. Error{bug} for bytes outside them; the reader's errors.
  void read(std::int64_t offset, std::span<std::byte> to) const;
  // From the same byte on, `bytes` bytes of what the reader reads. The caller answers for their being there.
  [[nodiscard]] Source grown(std::int64_t bytes) const { return {reader_, begin_, bytes}; }
  // `bytes` of these from byte `offset`. Error{bug} for bytes outside them.
  [[nodiscard]] Source part(std::int64_t offset, std::int64_t bytes) const;

 private:
  void expect_inside(std::int64_t offset, std::int64_t bytes) const;

  std::shared_ptr<const Reader> reader_;
  std::int64_t begin_ = 0;
  std::int64_t bytes_ = 0;
};

// A tensor that is not in memory yet. Default: no bytes.
struct StoredTensor {
  Dtype dtype = Dtype::u8;
  Shape shape;
  Source source;

  // All source.bytes() of it, in memory of its own (from the heap, not of a Memory), which the view keeps.
  // The reader's errors, std::bad_alloc. Whether they are as many as the shape wants is not looked at.
  [[nodiscard]] TensorView read() const;
};

}  // namespace kerf::tensor
#pragma GCC visibility pop
