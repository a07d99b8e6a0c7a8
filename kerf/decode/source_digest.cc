#include "kerf/decode/source_digest.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/decode/sha256.h"

namespace kerf::decode {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t block_bytes = 4096;
constexpr std::int64_t blocks = 16;
constexpr std::int64_t most_header = 100'000'000;

void add(Sha256& digest, std::int64_t number) {
  digest.update(std::bit_cast<std::array<std::byte, 8>>(number));
}

void add(Sha256& digest, const std::string& text) {
  add(digest, std::ssize(text));
  digest.update(std::as_bytes(std::span(text)));
}

void add_range(Sha256& digest, const OpenedFile& file, const fs::path& path, std::int64_t begin,
               std::int64_t bytes) {
  std::vector<std::byte> part(static_cast<std::size_t>(bytes));
  read_exactly(file, path, begin, part);
  digest.update(part);
}

// A file of text goes in whole.
void add_text(Sha256& digest, const fs::path& path) {
  const OpenedFile file = open_regular(path);
  add(digest, file.bytes);
  add_range(digest, file, path, 0, std::min(file.bytes, most_header));
}

void add_shard(Sha256& digest, const fs::path& path) {
  const OpenedFile file = open_regular(path);
  add(digest, file.bytes);
  if (file.bytes < 8) return add_range(digest, file, path, 0, file.bytes);
  std::array<std::byte, 8> length{};
  read_exactly(file, path, 0, length);
  const auto header =
      static_cast<std::int64_t>(std::min(std::bit_cast<std::uint64_t>(length),
                                         static_cast<std::uint64_t>(std::min(file.bytes - 8, most_header))));
  const std::int64_t begin = 8 + header;
  add_range(digest, file, path, 0, begin);
  const std::int64_t room = file.bytes - begin;
  const std::int64_t each = std::min(room, block_bytes);
  for (std::int64_t i = 0; i < blocks; ++i)
    add_range(digest, file, path, begin + (room - each) / (blocks - 1) * i, each);
  add_range(digest, file, path, file.bytes - each, each);
}

}  // namespace

std::string source_digest(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  if (error) fail(ErrorKind::checkpoint, "{}: {}", directory.string(), error.message());
  std::sort(names.begin(), names.end());
  Sha256 digest;
  for (const std::string& name : names) {
    const bool shard = name.ends_with(".safetensors");
    if (!shard && name != "config.json" && name != "hf_quant_config.json" &&
        name != "model.safetensors.index.json")
      continue;
    add(digest, name);
    if (shard)
      add_shard(digest, directory / name);
    else
      add_text(digest, directory / name);
  }
  return digest.hex();
}

}  // namespace kerf::decode
