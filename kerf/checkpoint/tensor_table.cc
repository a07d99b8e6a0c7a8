#include "kerf/checkpoint/internal/tensor_table.h"

#include <algorithm>
#include <optional>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/header.h"
#include "kerf/checkpoint/internal/names.h"

namespace kerf::checkpoint::internal {

namespace {

constexpr std::size_t kListed = 5;

// A tensor of one expert, among its layer's.
struct OfExpert {
  std::int64_t layer = 0;
  std::string_view suffix;
  std::int64_t expert = 0;
};
std::optional<OfExpert> of_expert(std::string_view name) {
  const auto layer = parse_layer_name(name);
  if (!layer) return std::nullopt;
  const ExpertName expert = parse_expert_name(layer->rest);
  if (expert.naming != ExpertNaming::per_expert) return std::nullopt;
  return OfExpert{layer->layer, expert.suffix, expert.expert};
}

}  // namespace

TensorTable::TensorTable(const std::filesystem::path& directory, std::int64_t experts,
                         std::vector<std::string>& notes) {
  const auto contents = std::make_shared<Contents>();
  contents->shards = find_shards(directory);
  contents->headers.reserve(contents->shards.files.size());
  for (const std::string& file : contents->shards.files) {
    contents->opened.push_back(DataFile::open(directory / file));
    contents->headers.push_back(read_header(*contents->opened.back()));
  }
  contents->resolve(experts, notes);
  readers_.assign(contents->opened.begin(), contents->opened.end());
  contents_ = contents;
}

TensorTable::TensorTable(const std::filesystem::path& file) {
  const auto contents = std::make_shared<Contents>();
  contents->shards.files.push_back(file.filename().string());
  contents->opened.push_back(DataFile::open(file));
  contents->headers.push_back(read_header(*contents->opened.back()));
  contents->resolve_alone();
  readers_.assign(contents->opened.begin(), contents->opened.end());
  contents_ = contents;
}

TensorTable::TensorTable(const std::filesystem::path& directory, const CarriedFiles& carried,
                         std::span<const std::shared_ptr<const tensor::Reader>> readers, std::int64_t experts,
                         std::vector<std::string>& notes)
    : readers_(readers.begin(), readers.end()) {
  if (readers.size() != carried.files.size())
    fail(ErrorKind::bug, "{} readers of {} files", readers.size(), carried.files.size());
  const auto contents = std::make_shared<Contents>();
  if (carried.index)
    contents->shards.index = WeightMap::read(*carried.index, (directory / index_name).string());
  contents->headers.reserve(carried.files.size());
  for (const CarriedFiles::File& file : carried.files) {
    contents->shards.files.push_back(file.name);
    contents->headers.push_back(
        parse_header(std::as_bytes(std::span(file.head)), file.bytes, (directory / file.name).string()));
  }
  if (contents->shards.index && contents->shards.index->files() != contents->shards.files)
    fail(ErrorKind::bug, "{}: the files that came are not those of its index", directory.string());
  contents->resolve(experts, notes);
  contents_ = contents;
}

TensorTable::TensorTable(const TensorTable& like, const WrapReader& wrap) : contents_(like.contents_) {
  for (const auto& reader : like.readers_) readers_.push_back(wrap(reader));
}

void TensorTable::Contents::resolve(std::int64_t experts, std::vector<std::string>& notes) {
  if (shards.index)
    resolve_by_index(experts, notes);
  else
    resolve_alone();
  for (std::size_t s = 0; s < headers.size(); ++s)
    if (headers[s].stray_bytes != 0)
      notes.push_back(
          fmt::format("{}: {} bytes that belong to no tensor", shards.files[s], headers[s].stray_bytes));
}

void TensorTable::Contents::sort() {
  std::sort(by_name.begin(), by_name.end(), [this](const Located& a, const Located& b) {
    const std::string_view left = name(a);
    const std::string_view right = name(b);
    return left != right ? left < right : a.shard < b.shard;
  });
}

// Refuses an index that names tensors which their files lack: the first of them; of experts' with layer,
// expert, and how many of the layer's E experts lack the same one.
void TensorTable::Contents::refuse_absent(std::int64_t experts) const {
  const WeightMap& index = *shards.index;
  const auto absent = [&](const WeightMap::Entry& e) { return !headers[e.file].tensors.contains(e.name); };
  std::size_t count = 0;
  std::vector<WeightMap::Entry> listed;
  for (std::size_t i = 0; i < index.size(); ++i)
    if (const WeightMap::Entry entry = index[i]; absent(entry) && count++ < kListed) listed.push_back(entry);
  if (count == 0) return;
  std::vector<std::int64_t> alike(listed.size());
  for (std::size_t i = 0; i < index.size(); ++i) {
    const auto other = of_expert(index[i].name);
    if (!other || !absent(index[i])) continue;
    for (std::size_t l = 0; l < listed.size(); ++l)
      if (const auto own = of_expert(listed[l].name);
          own && own->layer == other->layer && own->suffix == other->suffix)
        ++alike[l];
  }
  std::string out;
  for (std::size_t l = 0; l < listed.size(); ++l) {
    if (l != 0) out += "; ";
    if (const auto layer = parse_layer_name(listed[l].name)) out += fmt::format("layer {}, ", layer->layer);
    out += shown(listed[l].name);
    if (const auto own = of_expert(listed[l].name))
      out += fmt::format(", expert {}, {} of {}, value missing", own->expert, alike[l], experts);
    out += fmt::format(", in {}", shards.files[listed[l].file]);
  }
  fail(ErrorKind::checkpoint, "{} names {} tensor{} that the file lacks: {}{}", index_name, count,
       count == 1 ? "" : "s", out, count > kListed ? "; ..." : "");
}

void TensorTable::Contents::resolve_by_index(std::int64_t experts, std::vector<std::string>& notes) {
  const WeightMap& index = *shards.index;
  refuse_absent(experts);
  by_name.reserve(index.size());
  std::int64_t doubled = 0;
  std::int64_t unnamed = 0;
  std::string first_doubled;
  std::string first_unnamed;
  for (std::size_t s = 0; s < headers.size(); ++s) {
    const TensorEntries& tensors = headers[s].tensors;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const std::string_view name = tensors.name(t);
      const auto indexed = index.find(name);
      if (!indexed) {
        if (unnamed++ == 0) first_unnamed = fmt::format("{} in {}", shown(name), shards.files[s]);
      } else if (indexed->file != s) {
        if (doubled++ == 0)
          first_doubled = fmt::format("{} in {}, the index says {}", shown(name), shards.files[s],
                                      shards.files[indexed->file]);
      } else {
        by_name.push_back({static_cast<std::uint32_t>(s), static_cast<std::uint32_t>(t)});
      }
    }
  }
  if (doubled != 0)
    notes.push_back(fmt::format("{} tensor{} in a second shard as well, ignored there: {}", doubled,
                                doubled == 1 ? "" : "s", first_doubled));
  if (unnamed != 0)
    notes.push_back(fmt::format("{} tensor{} that the index does not name, ignored: {}", unnamed,
                                unnamed == 1 ? "" : "s", first_unnamed));
  sort();
  shards.index.reset();  // all that it says is in the table
}

void TensorTable::Contents::resolve_alone() {
  std::size_t count = 0;
  for (const Header& header : headers) count += header.tensors.size();
  by_name.reserve(count);
  for (std::size_t s = 0; s < headers.size(); ++s)
    for (std::size_t t = 0; t < headers[s].tensors.size(); ++t)
      by_name.push_back({static_cast<std::uint32_t>(s), static_cast<std::uint32_t>(t)});
  if (headers.size() > 1) sort();
  for (std::size_t i = 1; i < by_name.size(); ++i)
    if (name(by_name[i - 1]) == name(by_name[i]))
      fail(ErrorKind::checkpoint, "ambiguous without {}: tensor '{}' is in {} and in {}", index_name,
           shown(name(by_name[i])), shards.files[by_name[i - 1].shard], shards.files[by_name[i].shard]);
}

const Located* TensorTable::Contents::find(std::string_view wanted) const {
  const auto found = std::lower_bound(by_name.begin(), by_name.end(), wanted,
                                      [this](const Located& l, std::string_view n) { return name(l) < n; });
  return found == by_name.end() || name(*found) != wanted ? nullptr : &*found;
}

tensor::StoredTensor TensorTable::stored(const Located& located) const {
  const TensorEntry entry = this->entry(located);
  return {entry.dtype, entry.shape, {readers_[located.shard], entry.begin, entry.end - entry.begin}};
}

Verdict TensorTable::changed() const {
  for (const auto& file : contents_->opened)
    if (Verdict v = file->changed()) return v;
  return std::nullopt;
}

}  // namespace kerf::checkpoint::internal
