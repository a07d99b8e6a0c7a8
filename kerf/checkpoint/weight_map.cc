#include "kerf/checkpoint/internal/weight_map.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/base/json.h"
#include "kerf/base/text.h"
#include "kerf/checkpoint/internal/varint.h"

namespace kerf::checkpoint::internal {

namespace {

constexpr std::size_t most_files = 100'000;
constexpr std::int64_t most_token = std::int64_t{1} << 20;

// A name that can only mean a file of the directory itself, and that a line of a message can hold.
bool plain_file_name(std::string_view file) {
  return shown(file) == file && !file.empty() && file != "." && file.find("..") == std::string_view::npos &&
         file.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

// Takes weight_map's entries as they come; whatever else an index says is passed over.
class WeightMap::Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Reader(const std::string& file, WeightMap& out) : file_(file), out_(out) {}

  bool null() override { return scalar("null (null)"); }
  bool boolean(bool value) override { return scalar(value ? "true (boolean)" : "false (boolean)"); }
  bool number_integer(number_integer_t value) override { return scalar(fmt::format("{} (number)", value)); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(fmt::format("{} (number)", value)); }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return scalar(fmt::format("{} (number)", shown(text)));
  }
  bool binary(binary_t& /*value*/) override { return true; }
  bool string(string_t& value) override {
    if (!in_map()) return scalar(fmt::format("'{}' (string)", shown(value)));
    if (!plain_file_name(value))
      fail(ErrorKind::checkpoint,
           "{}: weight_map of '{}' is '{}', wanted the name of a file in the same directory", file_,
           shown(name_), shown(value));
    const auto number =
        numbers_.try_emplace(value, static_cast<std::uint32_t>(numbers_.size())).first->second;
    if (numbers_.size() > most_files)
      fail(ErrorKind::checkpoint, "{}: weight_map names more than {} files", file_, most_files);
    out_.records_.push_back(static_cast<std::uint32_t>(out_.bytes_.size()));
    put_varint(name_.size(), out_.bytes_);
    out_.bytes_.insert(out_.bytes_.end(), name_.begin(), name_.end());
    put_varint(number, out_.bytes_);
    return true;
  }
  bool key(string_t& value) override {
    if (depth_ == 1) {
      is_map_ = value == "weight_map";
      if (is_map_ && std::exchange(seen_, true))
        fail(ErrorKind::checkpoint, "{}: the key 'weight_map' comes twice in one object", file_);
    } else if (in_map()) {
      name_ = value;
    }
    return true;
  }
  bool start_object(std::size_t /*size*/) override { return open(false); }
  bool start_array(std::size_t /*size*/) override { return open(true); }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool end_array() override { return end_object(); }
  bool parse_error(std::size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    if (dynamic_cast<const nlohmann::json::out_of_range*>(&error) != nullptr)
      fail(ErrorKind::checkpoint, "{}: not valid JSON: a number out of range", file_);
    return false;  // said where the text is
  }

  void finish() {
    if (!seen_) fail(ErrorKind::checkpoint, "{}: no weight_map, wanted an object", file_);
    if (out_.size() == 0)
      fail(ErrorKind::checkpoint, "{}: weight_map is empty, wanted tensor names and files", file_);
    if (const auto twice = out_.finish(std::move(numbers_)))
      fail(ErrorKind::checkpoint, "{}: weight_map: the key '{}' comes twice in one object", file_,
           shown(*twice));
  }

 private:
  [[nodiscard]] bool in_map() const { return is_map_ && depth_ == 2; }

  bool open(bool array) {
    if (depth_ == 0 && array) fail(ErrorKind::checkpoint, "{}: got an array, wanted an object", file_);
    if (depth_ == 1 && is_map_ && array)
      fail(ErrorKind::checkpoint, "{}: weight_map is an array, wanted an object of tensor names and files",
           file_);
    if (in_map()) (void)scalar(array ? "an array" : "an object");
    if (++depth_ > most_json_depth + 1)
      fail(ErrorKind::checkpoint, "{}: nested deeper than {}", file_, most_json_depth);
    return true;
  }

  // A value where the index wants something else.
  [[nodiscard]] bool scalar(const std::string& got) const {
    if (depth_ == 0) fail(ErrorKind::checkpoint, "{}: got {}, wanted an object", file_, got);
    if (depth_ == 1 && is_map_)
      fail(ErrorKind::checkpoint, "{}: weight_map is {}, wanted an object of tensor names and files", file_,
           got);
    if (in_map())
      fail(ErrorKind::checkpoint, "{}: weight_map of '{}' is {}, wanted a file's name", file_, shown(name_),
           got);
    return true;
  }

  const std::string& file_;
  WeightMap& out_;
  std::map<std::string, std::uint32_t, std::less<>> numbers_;  // of files, as they came
  std::string name_;
  int depth_ = 0;
  bool is_map_ = false;  // the last key of the outermost object is weight_map
  bool seen_ = false;
};

WeightMap WeightMap::read(const JsonStream::Read& read, std::int64_t bytes, const std::string& file) {
  const auto refuse = [&file](const std::string& what, std::int64_t at) {
    fail(ErrorKind::checkpoint, "{}: not valid JSON at byte {}{}{}", file, at, what.empty() ? "" : ": ",
         what);
  };
  constexpr std::int64_t least_text = 8;  // "a":"b",
  WeightMap out;
  // Pages that are not written to cost nothing.
  out.bytes_.reserve(static_cast<std::size_t>(bytes));
  out.records_.reserve(static_cast<std::size_t>(bytes / least_text + 1));
  JsonStream text(read, bytes, most_token, refuse);
  Reader reader(file, out);
  if (!text.parse(reader)) refuse({}, text.taken());
  reader.finish();
  return out;
}

WeightMap WeightMap::read(std::string_view text, const std::string& file) {
  return read([text](std::int64_t offset,
                     std::span<std::byte> to) { std::memcpy(to.data(), text.data() + offset, to.size()); },
              std::ssize(text), file);
}

std::optional<std::string_view> WeightMap::finish(std::map<std::string, std::uint32_t, std::less<>> numbers) {
  place_.resize(numbers.size());
  for (auto& [file, number] : numbers) {
    place_[number] = static_cast<std::uint32_t>(files_.size());
    files_.push_back(file);
  }
  const auto by_name = [this](std::uint32_t a, std::uint32_t b) { return name(a) < name(b); };
  if (!std::is_sorted(records_.begin(), records_.end(), by_name))
    std::sort(records_.begin(), records_.end(), by_name);
  const auto twice =
      std::adjacent_find(records_.begin(), records_.end(),
                         [this](std::uint32_t a, std::uint32_t b) { return name(a) == name(b); });
  if (twice == records_.end()) return std::nullopt;
  return name(*twice);
}

std::string_view WeightMap::name(std::uint32_t record) const {
  const char* at = bytes_.data() + record;
  const std::uint64_t length = take_varint(at);
  return {at, length};
}

WeightMap::Entry WeightMap::operator[](std::size_t i) const {
  const std::string_view n = name(records_[i]);
  const char* at = n.data() + n.size();
  return {n, place_[take_varint(at)]};
}

std::optional<WeightMap::Entry> WeightMap::find(std::string_view wanted) const {
  const auto found =
      std::lower_bound(records_.begin(), records_.end(), wanted,
                       [this](std::uint32_t record, std::string_view n) { return name(record) < n; });
  if (found == records_.end() || name(*found) != wanted) return std::nullopt;
  return (*this)[static_cast<std::size_t>(found - records_.begin())];
}

}  // namespace kerf::checkpoint::internal
