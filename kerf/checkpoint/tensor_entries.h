// The tensors of a safetensors header by name, in little memory: a header may say millions. All of a tensor
// takes fewer bytes here than the text that says it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kerf/tensor/view.h"

#pragma GCC visibility push(default)
namespace kerf::checkpoint {

// Where a tensor lies, from the header alone: bytes [begin, end) of the file.
struct TensorEntry {
  tensor::Dtype dtype = tensor::Dtype::u8;
  tensor::Shape shape;
  std::int64_t begin = 0;  // bytes into the file (not into its data part)
  std::int64_t end = 0;
};

// Names ascending. Values are made when they are asked for; names stay where they are until this goes. Filled
// by add(), then sort(), and only then asked.
class TensorEntries {
 public:
  // A tensor's name and what the header says of it.
  using value_type = std::pair<std::string_view, TensorEntry>;

  // Goes over all of them by name; what it points to is its own, until it moves on.
  class Iterator {
   public:
    // What an iterator of the standard library has.
    using iterator_category = std::input_iterator_tag;
    using value_type = TensorEntries::value_type;
    using difference_type = std::ptrdiff_t;
    using pointer = const value_type*;
    using reference = const value_type&;

    Iterator() = default;
    // At entry `at`, or behind the last.
    Iterator(const TensorEntries& of, std::size_t at) : of_(&of), at_(at) { look(); }
    // The entry; the next one.
    reference operator*() const { return value_; }
    pointer operator->() const { return &value_; }
    Iterator& operator++() {
      ++at_;
      look();
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++*this;
      return before;
    }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.at_ == b.at_; }

   private:
    void look() {
      if (at_ < of_->size()) value_ = (*of_)[at_];
    }
    const TensorEntries* of_ = nullptr;
    std::size_t at_ = 0;
    value_type value_;
  };

  // Room for what a header of so many bytes can say; pages that are not written to cost nothing.
  void reserve(std::int64_t header_bytes);
  // Before sort(), in any order. `end` follows from dtype and shape.
  void add(std::string_view name, const TensorEntry& entry);
  // Puts them in order; nothing, or a name that comes twice.
  std::optional<std::string_view> sort();

  // How many there are.
  [[nodiscard]] std::size_t size() const { return records_.size(); }
  [[nodiscard]] bool empty() const { return records_.empty(); }
  // By their order, i in [0, size()), unchecked.
  [[nodiscard]] value_type operator[](std::size_t i) const { return {name(i), entry(i)}; }
  [[nodiscard]] std::string_view name(std::size_t i) const;
  [[nodiscard]] TensorEntry entry(std::size_t i) const;
  [[nodiscard]] std::int64_t begin_of(std::size_t i) const;  // of its bytes, in the file

  // Where the tensor of that name is, if there is one.
  [[nodiscard]] std::optional<std::size_t> index_of(std::string_view name) const;
  [[nodiscard]] bool contains(std::string_view name) const { return index_of(name).has_value(); }
  [[nodiscard]] Iterator find(std::string_view name) const {
    return {*this, index_of(name).value_or(size())};
  }
  // Error{bug} where there is none.
  [[nodiscard]] TensorEntry at(std::string_view name) const;
  [[nodiscard]] Iterator begin() const { return {*this, 0}; }
  [[nodiscard]] Iterator end() const { return {*this, size()}; }

 private:
  std::vector<char> bytes_;             // records: begin, length of the name, dtype, rank, name, dimensions
  std::vector<std::uint32_t> records_;  // where each begins, by name
};

}  // namespace kerf::checkpoint
#pragma GCC visibility pop
