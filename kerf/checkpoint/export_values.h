// Values of an exported tensor that can be none: block scales that are NaN or negative, BF16 values that are
// not finite. A wrong writer's digests are right ones, so digests do not tell. They are looked for in each
// piece of a tensor as it is read, by whichever worker reads it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kerf/checkpoint/faults.h"
#include "kerf/checkpoint/tensor_entries.h"
#include "kerf/tensor/dtype.h"

#pragma GCC visibility push(default)
namespace kerf::checkpoint {

// What is found in one tensor.
class ExportedValues {
 public:
  // Of a tensor [experts, ...]: every code of dtypes other than F8_E4M3 and BF16 is a value.
  explicit ExportedValues(const TensorEntry& entry);

  // Looks at bytes [begin, begin + piece.size()) of the tensor, whole elements. From any thread, several at
  // once.
  void look(std::int64_t begin, std::span<const std::byte> piece);

  // How messages call them: "layer 3, NAME, expert 5, byte 7 of its converted scales, 0x7F, in FILE".
  struct Place {
    std::int64_t layer = 0;
    std::string tensor;
    std::int64_t first_expert = 0;  // of the model's, at index 0 of the tensor
    std::string file;
  };
  // Adds what was found to `faults`, in the tensor's order whatever order it was looked at in. Not while
  // anybody looks.
  void report(const Place& place, Faults& faults) const;

 private:
  struct Found {
    std::int64_t at;  // bytes into the tensor
    std::uint32_t bits;
  };
  // Of one kind in one piece: all are counted, the first are kept.
  struct Group {
    std::int64_t total = 0;
    std::vector<Found> first;

    void add(std::int64_t at, std::uint32_t bits);
  };
  enum Kind : std::size_t { nan_scale, negative_scale, not_finite, kinds };
  [[nodiscard]] std::string words(std::size_t kind, const Found& found, const Place& place) const;

  tensor::Dtype dtype_;
  std::int64_t bytes_each_;  // of an expert
  std::unique_ptr<std::mutex> mutex_;
  std::map<std::int64_t, std::array<Group, kinds>> found_;  // by where a piece begins; hardly ever any
};

}  // namespace kerf::checkpoint
#pragma GCC visibility pop
