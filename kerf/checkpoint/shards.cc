#include "kerf/checkpoint/internal/shards.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <span>
#include <string_view>

#include "kerf/base/file.h"
#include "kerf/base/format.h"

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

// Neither a file nor a link to one. What cannot be looked at is there: opening it says why not.
bool leads_nowhere(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found;
}

}  // namespace

WeightMap read_index(const std::filesystem::path& path) {
  const OpenedFile file = open_regular(path);
  if (file.bytes > kMostIndexBytes)
    fail(ErrorKind::checkpoint, "{}: {} bytes, wanted at most {}", path.string(), file.bytes,
         kMostIndexBytes);
  return WeightMap::read(
      [&](std::int64_t offset, std::span<std::byte> to) { read_exactly(file, path, offset, to); }, file.bytes,
      path.string());
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
  for (const std::string& file : files)
    if (leads_nowhere(directory / file)) missing.push_back(file);
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
    out.index = read_index(directory / index_name);
    out.files = out.index->files();
    std::vector<std::string> missing;
    for (const std::string& file : out.files)
      if (leads_nowhere(directory / file)) missing.push_back(file);
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
