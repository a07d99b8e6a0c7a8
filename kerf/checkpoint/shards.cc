#include "kerf/checkpoint/internal/shards.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <span>
#include <string_view>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/base/json.h"

namespace kerf::checkpoint::internal {

namespace {

constexpr std::int64_t kMostIndexBytes = 256'000'000;
constexpr int kMostShards = 100'000;
constexpr std::size_t kListed = 5;  // names in a message
constexpr const char* kSingle = "model.safetensors";

// A link to nowhere is there: opening it then fails with its name, where "absent" would pass it by.
bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

// A name that can only mean a file of the directory itself, and that a line of a message can hold.
bool plain_file_name(std::string_view file) {
  return shown(file) == file && !file.empty() && file != "." && file.find("..") == std::string_view::npos &&
         file.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

std::map<std::string, std::string> parse_index(const std::string& text, const std::filesystem::path& path) {
  const std::string file = path.string();
  const nlohmann::json top = parse_json(text, file);
  if (!top.is_object()) fail(ErrorKind::checkpoint, "{}: got {}, wanted an object", file, got(top));
  const auto weights = top.find("weight_map");
  if (weights == top.end()) fail(ErrorKind::checkpoint, "{}: no weight_map, wanted an object", file);
  if (!weights->is_object() || weights->empty())
    fail(ErrorKind::checkpoint, "{}: weight_map is {}, wanted an object of tensor names and files", file,
         got(*weights));
  std::map<std::string, std::string> out;
  for (const auto& item : weights->items()) {
    if (!item.value().is_string())
      fail(ErrorKind::checkpoint, "{}: weight_map of '{}' is {}, wanted a file's name", file,
           shown(item.key()), got(item.value()));
    const auto& shard = item.value().get_ref<const std::string&>();
    if (!plain_file_name(shard))
      fail(ErrorKind::checkpoint,
           "{}: weight_map of '{}' is '{}', wanted the name of a file in the same directory", file,
           shown(item.key()), shown(shard));
    out.emplace(item.key(), shard);
  }
  return out;
}

std::string read_index_text(const std::filesystem::path& path) { return read_text(path, kMostIndexBytes); }

namespace {

void refuse_missing(const std::filesystem::path& directory, const std::vector<std::string>& missing,
                    std::size_t of) {
  if (missing.empty()) return;
  std::vector<std::string> first;
  for (std::size_t i = 0; i < std::min(missing.size(), kListed); ++i) first.push_back(shown(missing[i]));
  fail(ErrorKind::checkpoint, "{}: {} of {} shards missing, incomplete download? {}{}", directory.string(),
       missing.size(), of, fmt::join(first, ", "), missing.size() > first.size() ? ", ..." : "");
}

struct Numbered {
  int number = 0;
  int of = 0;
  std::string of_text;  // as spelt, for the names of missing ones
  std::size_t width = 0;
};

// "model-00002-of-00005.safetensors".
std::optional<Numbered> numbered_shard(std::string_view file) {
  const auto take = [&](std::string_view head) {
    if (!file.starts_with(head)) return false;
    file.remove_prefix(head.size());
    return true;
  };
  const auto number = [&](int& value, std::string& text) {
    const auto [end, code] = std::from_chars(file.data(), file.data() + file.size(), value);
    if (code != std::errc() || value < 0 || value > kMostShards || file.front() == '-') return false;
    text = file.substr(0, static_cast<std::size_t>(end - file.data()));
    file.remove_prefix(text.size());
    return true;
  };
  Numbered out;
  std::string spelt;
  if (take("model-") && number(out.number, spelt) && take("-of-") && number(out.of, out.of_text) &&
      file == ".safetensors") {
    out.width = spelt.size();
    return out;
  }
  return std::nullopt;
}

// All numbered shards of the directory; they must be one complete set.
std::vector<std::string> numbered_shards(const std::filesystem::path& directory) {
  std::map<std::string, Numbered> found;
  std::error_code error;
  for (std::filesystem::directory_iterator item(directory, error), end; !error && item != end;
       item.increment(error)) {
    std::string file = item->path().filename().string();
    if (const auto shard = numbered_shard(file)) found.emplace(std::move(file), *shard);
  }
  if (error)
    fail(ErrorKind::checkpoint, "{}: cannot list it: {}", directory.string(), os_reason(error.value()));
  if (found.empty()) return {};
  const Numbered& like = found.begin()->second;
  std::set<int> numbers;
  std::vector<std::string> files;
  for (const auto& [file, shard] : found) {
    if (shard.of_text != like.of_text || !numbers.insert(shard.number).second)
      fail(ErrorKind::checkpoint, "{}: ambiguous without {}: '{}' and '{}' are not of one set of shards",
           directory.string(), index_name, found.begin()->first, file);
    files.push_back(file);
  }
  const int base = numbers.contains(0) ? 0 : 1;
  if (*numbers.rbegin() >= like.of + base)
    fail(ErrorKind::checkpoint, "{}: '{}' is beyond its own count", directory.string(),
         found.rbegin()->first);
  std::vector<std::string> missing;
  for (int n = base; n < like.of + base; ++n)
    if (!numbers.contains(n))
      missing.push_back(fmt::format("model-{:0{}}-of-{}.safetensors", n, like.width, like.of_text));
  refuse_missing(directory, missing, static_cast<std::size_t>(like.of));
  return files;
}

}  // namespace

ShardFiles find_shards(const std::filesystem::path& directory) {
  ShardFiles out;
  if (is_there(directory / index_name)) {
    out.index = parse_index(read_index_text(directory / index_name), directory / index_name);
    std::set<std::string> files;
    for (const auto& item : *out.index) files.insert(item.second);
    out.files.assign(files.begin(), files.end());
    std::vector<std::string> missing;
    for (const std::string& file : out.files)
      if (!is_there(directory / file)) missing.push_back(file);
    refuse_missing(directory, missing, out.files.size());
    return out;
  }
  out.files = numbered_shards(directory);
  if (is_there(directory / kSingle)) {
    if (!out.files.empty())
      fail(ErrorKind::checkpoint, "{}: ambiguous without {}: both {} and {} are there", directory.string(),
           index_name, kSingle, out.files.front());
    out.files = {kSingle};
  }
  if (out.files.empty())
    fail(ErrorKind::checkpoint, "{}: no weights: wanted {}, {} or model-*-of-*.safetensors",
         directory.string(), index_name, kSingle);
  return out;
}

}  // namespace kerf::checkpoint::internal
