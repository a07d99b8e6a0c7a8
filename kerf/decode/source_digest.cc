#include "kerf/decode/source_digest.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/base/text.h"
#include "kerf/checkpoint/digest.h"
#include "kerf/checkpoint/safetensors.h"
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
  constexpr std::int64_t most = std::int64_t{1} << 20;
  std::vector<std::byte> part(static_cast<std::size_t>(std::min(bytes, most)));
  for (std::int64_t done = 0; done < bytes;) {
    const auto now = std::span(part).first(static_cast<std::size_t>(std::min(bytes - done, most)));
    read_exactly(file, path, begin + done, now);
    digest.update(now);
    done += std::ssize(now);
  }
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  if (error) fail(ErrorKind::checkpoint, "{}: {}", directory.string(), error.message());
  std::sort(names.begin(), names.end());
  return names;
}

bool is_shard(const std::string& name) { return name.ends_with(".safetensors"); }

std::string digest_of_file(const fs::path& path, const Workers& workers) {
  const auto file = checkpoint::DataFile::open(path);
  const std::string digest =
      checkpoint::text_of(checkpoint::digest_of(tensor::Source(file, 0, file->bytes()), workers));
  require(file->changed());
  return digest;
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
  Sha256 digest;
  for (const std::string& name : names_in(directory)) {
    const bool shard = is_shard(name);
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

std::vector<checkpoint::SourceFile> source_files(const fs::path& directory, const Workers& workers) {
  std::vector<checkpoint::SourceFile> out;
  for (const std::string& name : names_in(directory)) {
    if (!is_shard(name)) continue;
    const OpenedFile file = open_regular(directory / name);
    out.push_back({name, file.bytes, file.modified, digest_of_file(directory / name, workers)});
  }
  return out;
}

Verdict differs(const fs::path& directory, const std::vector<checkpoint::SourceFile>& recorded, Look look,
                const Workers& workers) {
  std::vector<std::string> names = names_in(directory);
  std::erase_if(names, [](const std::string& name) { return !is_shard(name); });
  for (const std::string& name : names)
    if (std::ranges::find(recorded, name, &checkpoint::SourceFile::name) == recorded.end())
      return because(ErrorKind::checkpoint, "{} was not there", shown(name));
  for (const checkpoint::SourceFile& was : recorded) {
    if (!std::ranges::binary_search(names, was.name))
      return because(ErrorKind::checkpoint, "{} is missing", shown(was.name));
    const OpenedFile file = open_regular(directory / was.name);
    if (file.bytes != was.bytes)
      return because(ErrorKind::checkpoint, "{} is {} bytes, wanted {}", shown(was.name), file.bytes,
                     was.bytes);
    if (look == Look::times && file.modified == was.modified) continue;
    if (const std::string got = digest_of_file(directory / was.name, workers); got != was.digest)
      return because(ErrorKind::checkpoint, "the digest of all of {} is {}, wanted {}", shown(was.name), got,
                     shown(was.digest));
  }
  return std::nullopt;
}

}  // namespace kerf::decode
