#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kerf/base/file.h"
#include "kerf/checkpoint/checkpoint.h"
#include "kerf/checkpoint/export_file.h"
#include "tests/fuzz/support.h"

namespace kerf::fuzz {

namespace {

using checkpoint::Digest;

constexpr std::size_t kDataBytes = std::size_t{1} << 16;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

void put(std::string& file, std::int64_t at, std::span<const Digest> digests, std::int64_t room) {
  const auto bytes = std::as_bytes(digests);
  std::memcpy(file.data() + at, bytes.data(), std::min(bytes.size(), static_cast<std::size_t>(room)));
}

// Gives a file the digests that its own contents ask for, where its header has room for them, so that what
// comes after the digests is reached. `path` holds the file.
void sign(std::string& file, const std::filesystem::path& path) {
  const checkpoint::Header header = checkpoint::read_header(path);
  const auto own_at = header.tensors.find(checkpoint::exported_digests);
  const auto ranks_at = header.tensors.find(checkpoint::exported_ranks);
  if (own_at == header.tensors.end() || ranks_at == header.tensors.end()) return;
  std::vector<checkpoint::TensorEntry> order;
  std::int64_t end = header.data_begin;
  for (const auto& [name, entry] : header.tensors) end = std::max(end, entry.end);
  file.resize(static_cast<std::size_t>(end));  // an export has no bytes beside its tensors
  for (const auto& [name, entry] : header.tensors)
    if (name != checkpoint::exported_digests && name != checkpoint::exported_ranks) order.push_back(entry);
  std::ranges::stable_sort(order, {}, &checkpoint::TensorEntry::begin);
  std::vector<Digest> own = {
      checkpoint::digest_of(bytes_of(file).first(static_cast<std::size_t>(header.data_begin)))};
  for (const checkpoint::TensorEntry& entry : order) {
    const auto bytes = bytes_of(file).subspan(static_cast<std::size_t>(entry.begin),
                                              static_cast<std::size_t>(entry.end - entry.begin));
    own.push_back(checkpoint::digest_of(tensor::TensorView{entry.dtype, entry.shape, bytes}, Workers(1)));
  }
  put(file, own_at->second.begin, own, own_at->second.end - own_at->second.begin);
  const Digest whole = checkpoint::digest_of(std::span<const Digest>(own));
  const std::int64_t room = ranks_at->second.end - ranks_at->second.begin;
  for (std::int64_t at = 0; at + 16 <= room; at += 16)
    put(file, ranks_at->second.begin + at, std::span(&whole, 1), 16);
}

}  // namespace

bool exports(Bytes input) {
  static const Directory dir;
  const std::string_view part = parts_of(input)[0];
  if (part.starts_with('{'))
    expect_only({ErrorKind::checkpoint, ErrorKind::unsupported}, [&] {
      const auto facts = checkpoint::ExportFacts::from_json(std::string(part), "facts");
      if (checkpoint::ExportFacts::from_json(facts.to_json(), "again").to_json() != facts.to_json())
        std::abort();
    });

  const std::string name = checkpoint::export_file_name(0, 1);
  std::string file(part);
  if (part.starts_with('{')) {
    const std::uint64_t length = part.size();
    std::string framed(sizeof(length), '\0');
    std::memcpy(framed.data(), &length, sizeof(length));
    file = framed + file;
    file.resize(file.size() + kDataBytes, '\x38');
  }
  dir.write(name, file);
  expect_only({ErrorKind::checkpoint}, [&] {
    sign(file, dir.path() / name);
    dir.write(name, file);
  });
  return expect_only({ErrorKind::checkpoint, ErrorKind::unsupported}, [&] {
    const auto opened = checkpoint::Checkpoint::open(dir.path());
    if (opened.exported() == nullptr) std::abort();
    const Workers workers(1);
    checkpoint::Faults faults;
    for (const auto& tensor : opened.exported()->header().tensors)
      if (tensor.first != checkpoint::exported_digests && tensor.first != checkpoint::exported_ranks) {
        checkpoint::ExportedValues values(tensor.second);
        opened.exported()->check(tensor.first, workers, &values);
        values.report({0, std::string(tensor.first), 0, "file"}, faults);
      }
    for (const std::int64_t l : opened.moe_layers()) {
      if (opened.layer(l).kind() == checkpoint::ExpertKind::nvfp4) opened.layer(l).scales(faults);
      opened.layer(l).scan_extras(faults);
    }
  });
}

}  // namespace kerf::fuzz
