#include "kerf/checkpoint/tensor_entries.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "kerf/base/format.h"
#include "kerf/base/text.h"
#include "kerf/checkpoint/internal/varint.h"

namespace kerf::checkpoint {

namespace {

// The least that a header says of a tensor: an empty name, no dimension, a comma.
constexpr std::int64_t least_text = 49;

struct Head {
  std::int64_t begin;
  std::uint32_t name;  // bytes of it
  tensor::Dtype dtype;
  std::uint8_t rank;
};
constexpr std::size_t head_bytes = 14;  // without padding

Head head_at(const char* at) {
  Head head{};
  std::memcpy(&head.begin, at, 8);
  std::memcpy(&head.name, at + 8, 4);
  head.dtype = static_cast<tensor::Dtype>(at[12]);
  head.rank = static_cast<std::uint8_t>(at[13]);
  return head;
}

std::string_view name_at(const char* at) { return {at + head_bytes, head_at(at).name}; }

}  // namespace

void TensorEntries::reserve(std::int64_t header_bytes) {
  bytes_.reserve(static_cast<std::size_t>(header_bytes));
  records_.reserve(static_cast<std::size_t>(header_bytes / least_text + 1));
}

void TensorEntries::add(std::string_view name, const TensorEntry& entry) {
  records_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  std::array<char, head_bytes> head{};
  const auto length = static_cast<std::uint32_t>(name.size());
  std::memcpy(head.data(), &entry.begin, 8);
  std::memcpy(head.data() + 8, &length, 4);
  head[12] = static_cast<char>(entry.dtype);
  head[13] = static_cast<char>(entry.shape.rank());
  bytes_.insert(bytes_.end(), head.begin(), head.end());
  bytes_.insert(bytes_.end(), name.begin(), name.end());
  for (const std::int64_t dim : entry.shape.dims())
    internal::put_varint(static_cast<std::uint64_t>(dim), bytes_);
}

std::optional<std::string_view> TensorEntries::sort() {
  const auto by_name = [this](std::uint32_t a, std::uint32_t b) {
    return name_at(bytes_.data() + a) < name_at(bytes_.data() + b);
  };
  if (!std::is_sorted(records_.begin(), records_.end(), by_name))
    std::sort(records_.begin(), records_.end(), by_name);
  const auto twice =
      std::adjacent_find(records_.begin(), records_.end(), [&](std::uint32_t a, std::uint32_t b) {
        return name_at(bytes_.data() + a) == name_at(bytes_.data() + b);
      });
  if (twice == records_.end()) return std::nullopt;
  return name_at(bytes_.data() + *twice);
}

std::string_view TensorEntries::name(std::size_t i) const { return name_at(bytes_.data() + records_[i]); }

std::int64_t TensorEntries::begin_of(std::size_t i) const {
  return head_at(bytes_.data() + records_[i]).begin;
}

TensorEntry TensorEntries::entry(std::size_t i) const {
  const char* at = bytes_.data() + records_[i];
  const Head head = head_at(at);
  at += head_bytes + head.name;
  std::array<std::int64_t, tensor::Shape::max_rank> dims{};
  for (std::uint8_t d = 0; d < head.rank; ++d) dims[d] = static_cast<std::int64_t>(internal::take_varint(at));
  TensorEntry out;
  out.dtype = head.dtype;
  out.shape = tensor::Shape(std::span<const std::int64_t>(dims.data(), head.rank));
  out.begin = head.begin;
  out.end = head.begin + tensor::bytes_of(out.dtype, out.shape);
  return out;
}

std::optional<std::size_t> TensorEntries::index_of(std::string_view name) const {
  const auto found = std::lower_bound(
      records_.begin(), records_.end(), name,
      [this](std::uint32_t record, std::string_view n) { return name_at(bytes_.data() + record) < n; });
  if (found == records_.end() || name_at(bytes_.data() + *found) != name) return std::nullopt;
  return static_cast<std::size_t>(found - records_.begin());
}

TensorEntry TensorEntries::at(std::string_view name) const {
  const auto i = index_of(name);
  if (!i) fail(ErrorKind::bug, "no tensor '{}' in a header", shown(name));
  return entry(*i);
}

}  // namespace kerf::checkpoint
