#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/base/json.h"
#include "kerf/base/json_stream.h"
#include "kerf/checkpoint/safetensors.h"

namespace kerf::checkpoint {

namespace {

constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
constexpr std::uint64_t kMostOffset = std::uint64_t{1} << 61;  // sums of two stay inside int64
constexpr std::int64_t kLengthBytes = 8;

static_assert(std::endian::native == std::endian::little, "safetensors headers are little endian");

// Reads the header as events, so that nothing is built which the format does not have: a hostile header costs
// no more memory than its own text.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::string& file, std::int64_t data_begin, Header& header)
      : file_(file), data_begin_(data_begin), header_(header) {}

  bool null() override { return scalar("null"); }
  bool boolean(bool value) override { return scalar(value ? "true" : "false"); }
  // Negative ones; of those "-0" has the value 0.
  bool number_integer(number_integer_t value) override {
    return scalar(value == 0 ? "-0" : fmt::format("{}", value));
  }
  bool number_float(number_float_t /*value*/, const string_t& text) override { return scalar(shown(text)); }
  bool binary(binary_t& /*value*/) override { return scalar("binary"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (at_ == At::shape) {
      if (dims_.size() == tensor::Shape::max_rank)
        refuse("shape of more than {} dimensions", tensor::Shape::max_rank);
      if (value > kMostOffset) refuse("dimension {} in its shape, wanted at most {}", value, kMostOffset);
      dims_.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (at_ == At::offsets) {
      if (offsets_.size() == 2) refuse("more than 2 data_offsets, wanted 2");
      if (value > kMostOffset) refuse("data offset {}, wanted at most {}", value, kMostOffset);
      offsets_.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    return scalar(fmt::format("{}", value));
  }

  bool string(string_t& value) override {
    if (at_ == At::metadata) {
      if (header_.metadata.size() < Header::most_metadata) header_.metadata.emplace(field_, value);
      return true;
    }
    if (at_ != At::entry || field_ != "dtype") return scalar(fmt::format("the string '{}'", shown(value)));
    dtype_ = tensor::dtype_named(value);
    if (!dtype_) refuse("unknown dtype '{}'", shown(value));
    return true;
  }

  bool key(string_t& value) override {
    if (at_ == At::top) {
      name_ = value;
      if (value == "__metadata__" && std::exchange(metadata_seen_, true)) refuse("the name comes twice");
    } else if (at_ == At::entry) {
      field_ = value;
      const auto known = std::find(kFields.begin(), kFields.end(), value);
      if (known == kFields.end())
        refuse("unknown field '{}', wanted dtype, shape, data_offsets", shown(value));
      bool& seen = fields_seen_[static_cast<std::size_t>(known - kFields.begin())];
      if (std::exchange(seen, true)) refuse("field '{}' comes twice", field_);
    } else if (at_ == At::metadata) {
      field_ = value;
    }
    return true;
  }

  bool start_object(std::size_t /*elements*/) override {
    if (at_ == At::start) {
      at_ = At::top;
    } else if (at_ == At::top && name_ == "__metadata__") {
      at_ = At::metadata;
    } else if (at_ == At::top) {
      at_ = At::entry;
      fields_seen_.fill(false);
      dtype_.reset();
      dims_.clear();
      offsets_.clear();
    } else {
      return scalar("an object");
    }
    return true;
  }

  bool end_object() override {
    if (at_ == At::entry) finish_entry();
    at_ = At::top;
    return true;
  }

  bool start_array(std::size_t /*elements*/) override {
    if (at_ == At::entry && field_ == "shape") {
      at_ = At::shape;
    } else if (at_ == At::entry && field_ == "data_offsets") {
      at_ = At::offsets;
    } else {
      return scalar("an array");
    }
    return true;
  }

  bool end_array() override {
    at_ = At::entry;
    return true;
  }

  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*reason*/) override {
    return false;  // said where the text is
  }

  // After the last event: no name twice.
  void finish() {
    if (const auto twice = header_.tensors.sort()) {
      name_ = *twice;
      refuse("the name comes twice");
    }
  }

 private:
  enum class At { start, top, metadata, entry, shape, offsets };
  static constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    fail(ErrorKind::checkpoint, "{}: header entry '{}': {}", file_, shown(name_),
         fmt::format(text, std::forward<Args>(args)...));
  }

  // A value where the format wants something else.
  [[nodiscard]] bool scalar(std::string_view got) const {
    switch (at_) {
      case At::metadata:
        refuse("got {} for '{}', wanted strings", got, shown(field_));
      case At::start:
        fail(ErrorKind::checkpoint, "{}: its header is {}, wanted an object", file_, got);
      case At::top:
        refuse("got {}, wanted an object", got);
      case At::entry:
        refuse("got {} for {}, wanted {}", got, field_,
               field_ == "dtype" ? "a dtype's name" : "an array of non-negative integers");
      case At::shape:
      case At::offsets:
        break;
    }
    refuse("got {} in {}, wanted non-negative integers", got, field_);
  }

  void finish_entry() {
    for (std::size_t i = 0; i < kFields.size(); ++i)
      if (!fields_seen_[i]) refuse("no {}", kFields[i]);
    if (offsets_.size() != 2) refuse("{} data_offsets, wanted 2", offsets_.size());
    TensorEntry entry;
    entry.dtype = *dtype_;
    entry.shape = tensor::Shape(dims_);
    if (offsets_[0] > offsets_[1])
      refuse("data_offsets [{}, {}], wanted begin <= end", offsets_[0], offsets_[1]);
    std::int64_t bytes = 0;
    if (const Verdict bad = attempt([&] { bytes = tensor::bytes_of(entry.dtype, entry.shape); }))
      refuse("{}", bad->text);
    if (offsets_[1] - offsets_[0] != bytes)
      refuse("data_offsets [{}, {}] hold {} bytes, wanted {} for {} {}", offsets_[0], offsets_[1],
             offsets_[1] - offsets_[0], bytes, tensor::name(entry.dtype), entry.shape.text());
    entry.begin = data_begin_ + offsets_[0];
    entry.end = data_begin_ + offsets_[1];
    header_.tensors.add(name_, entry);
  }

  const std::string& file_;
  const std::int64_t data_begin_;
  Header& header_;
  At at_ = At::start;
  bool metadata_seen_ = false;
  std::string name_;
  std::string field_;
  std::array<bool, 3> fields_seen_{};
  std::optional<tensor::Dtype> dtype_;
  std::vector<std::int64_t> dims_;
  std::vector<std::int64_t> offsets_;
};

// All tensors lie inside the file, none on another, and one without bytes in none; counts the bytes between
// and after them.
void check_ranges(const std::string& file, std::int64_t data_begin, Header& header) {
  const TensorEntries& tensors = header.tensors;
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&tensors](std::uint32_t a, std::uint32_t b) {
    const std::int64_t first = tensors.begin_of(a);
    const std::int64_t second = tensors.begin_of(b);
    if (first != second) return first < second;
    return std::pair(tensors.entry(a).end, a) < std::pair(tensors.entry(b).end, b);
  });
  std::int64_t covered = 0;
  std::int64_t last_end = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const TensorEntry entry = tensors.entry(order[i]);
    if (i > 0 && entry.begin < last_end)
      fail(ErrorKind::checkpoint,
           "{}: tensors '{}' and '{}' overlap: the first ends at byte {}, the second begins at {}", file,
           shown(tensors.name(order[i - 1])), shown(tensors.name(order[i])), last_end, entry.begin);
    covered += entry.end - entry.begin;
    last_end = entry.end;
  }
  if (last_end > header.file_bytes)
    fail(ErrorKind::checkpoint,
         "{}: the file is {} bytes, its header describes {} ('{}' ends there): truncated, incomplete "
         "download?",
         file, header.file_bytes, last_end, shown(tensors.name(order.back())));
  header.stray_bytes = header.file_bytes - data_begin - covered;
}

}  // namespace

namespace internal {

Header parse_header(const tensor::Source& opened, const std::string& file) {
  if (opened.bytes() < kLengthBytes)
    fail(ErrorKind::checkpoint,
         "{}: the file is {} bytes, wanted at least 8 for the header's length: truncated, incomplete "
         "download?",
         file, opened.bytes());
  std::array<std::byte, kLengthBytes> raw{};
  opened.read(0, raw);
  const auto length = std::bit_cast<std::uint64_t>(raw);
  if (length > kMostHeaderBytes)
    fail(ErrorKind::checkpoint, "{}: header length {}, wanted at most {}", file, length, kMostHeaderBytes);
  const auto header_bytes = static_cast<std::int64_t>(length);
  if (header_bytes > opened.bytes() - kLengthBytes)
    fail(ErrorKind::checkpoint,
         "{}: the file is {} bytes, its header alone needs {}: truncated, incomplete download?", file,
         opened.bytes(), header_bytes + kLengthBytes);

  Header header;
  header.file_bytes = opened.bytes();
  const std::int64_t data_begin = kLengthBytes + header_bytes;
  header.data_begin = data_begin;
  const auto refuse = [&file](const std::string& what, std::int64_t at) {
    fail(ErrorKind::checkpoint, "{}: its header is not valid JSON at byte {} of the header{}{}", file, at,
         what.empty() ? "" : ": ", what);
  };
  JsonStream text(
      [&opened](std::int64_t offset, std::span<std::byte> to) { opened.read(kLengthBytes + offset, to); },
      header_bytes, most_json_token, refuse);
  if (header_bytes == 0 || *text.begin() != '{')
    fail(ErrorKind::checkpoint, "{}: its header does not begin with '{{': not a safetensors file", file);
  header.tensors.reserve(header_bytes);
  HeaderReader reader(file, data_begin, header);
  if (!text.parse(reader)) refuse({}, text.taken());
  reader.finish();
  check_ranges(file, data_begin, header);
  return header;
}

Header parse_header(std::span<const std::byte> head, std::int64_t bytes, const std::string& file) {
  // Whoever sent them read so many; a length that says more would lead outside.
  class Head final : public tensor::Reader {
   public:
    Head(std::span<const std::byte> held, const std::string& name) : held_(held), name_(name) {}
    void read(std::int64_t offset, std::span<std::byte> to) const override {
      if (offset + std::ssize(to) > std::ssize(held_))
        fail(ErrorKind::checkpoint, "{}: {} bytes of its header came, wanted {}", name_, held_.size(),
             offset + std::ssize(to));
      std::copy_n(held_.begin() + offset, to.size(), to.begin());
    }
    void will_need(std::int64_t /*offset*/, std::int64_t /*bytes*/) const noexcept override {}

   private:
    std::span<const std::byte> held_;
    const std::string& name_;
  };
  return parse_header(tensor::Source(std::make_shared<Head>(head, file), 0, bytes), file);
}

}  // namespace internal

Header read_header(const DataFile& opened) {
  // The source borrows the file for as long as this takes.
  const std::shared_ptr<const tensor::Reader> borrowed(std::shared_ptr<const void>(), &opened);
  return internal::parse_header(tensor::Source(borrowed, 0, opened.bytes()), opened.path().string());
}

Header read_header(const std::filesystem::path& path) { return read_header(*DataFile::open(path)); }

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile out;
  out.file_ = DataFile::open(path);
  out.header_ = read_header(*out.file_);
  return out;
}

std::optional<tensor::StoredTensor> SafetensorsFile::stored(std::string_view name) const {
  const auto found = header_.tensors.index_of(name);
  if (!found) return std::nullopt;
  const TensorEntry entry = header_.tensors.entry(*found);
  return tensor::StoredTensor{entry.dtype, entry.shape, {file_, entry.begin, entry.end - entry.begin}};
}

std::optional<tensor::TensorView> SafetensorsFile::find(std::string_view name) const {
  if (const auto found = stored(name)) return found->read();
  return std::nullopt;
}

tensor::TensorView SafetensorsFile::at(std::string_view name) const {
  if (const auto view = find(name)) return *view;
  fail(ErrorKind::checkpoint, "{}: no tensor '{}' in it", file_->path().string(), shown(name));
}

}  // namespace kerf::checkpoint
