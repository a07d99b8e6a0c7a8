#include "kerf/checkpoint/internal/tensor_table.h"

#include <algorithm>
#include <map>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/header.h"
#include "kerf/checkpoint/internal/names.h"

namespace kerf::checkpoint::internal {

namespace {

constexpr std::size_t kListed = 5;

struct Absent {
  std::string_view name;
  std::string_view file;
};

// What a refusal says about tensors that the index names and their files lack; experts' tensors with layer,
// expert, and how many of the layer's E experts lack the same one.
std::string describe(const std::vector<Absent>& absent, std::int64_t experts) {
  std::map<std::pair<std::int64_t, std::string_view>, int> alike;
  const auto parsed = [](const Absent& a) {
    const auto layer = parse_layer_name(a.name);
    return std::pair(layer, layer ? parse_expert_name(layer->rest) : ExpertName{});
  };
  for (const Absent& a : absent)
    if (const auto [layer, expert] = parsed(a); expert.naming == ExpertNaming::per_expert)
      ++alike[{layer->layer, expert.suffix}];
  std::string out;
  for (std::size_t i = 0; i < std::min(absent.size(), kListed); ++i) {
    const auto [layer, expert] = parsed(absent[i]);
    if (i != 0) out += "; ";
    if (layer) out += fmt::format("layer {}, ", layer->layer);
    out += shown(absent[i].name);
    if (expert.naming == ExpertNaming::per_expert)
      out += fmt::format(", expert {}, {} of {}, value missing", expert.expert,
                         alike[{layer->layer, expert.suffix}], experts);
    out += fmt::format(", in {}", absent[i].file);
  }
  return out + (absent.size() > kListed ? "; ..." : "");
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
  if (carried.index) contents->shards.index = parse_index(*carried.index, directory / index_name);
  contents->headers.reserve(carried.files.size());
  for (const CarriedFiles::File& file : carried.files) {
    contents->shards.files.push_back(file.name);
    contents->headers.push_back(
        parse_header(std::as_bytes(std::span(file.head)), file.bytes, (directory / file.name).string()));
  }
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

void TensorTable::Contents::add(const std::pair<const std::string, TensorEntry>& tensor, std::size_t shard) {
  by_name.emplace(tensor.first, Located{&tensor.second, shard});
  names.push_back(tensor.first);
}

void TensorTable::Contents::resolve_by_index(std::int64_t experts, std::vector<std::string>& notes) {
  const auto& index = *shards.index;
  const auto holds = [&](std::string_view file, std::string_view name) {
    const auto at = std::lower_bound(shards.files.begin(), shards.files.end(), file);
    return headers[static_cast<std::size_t>(at - shards.files.begin())].tensors.contains(name);
  };
  std::vector<Absent> absent;
  for (const auto& [name, file] : index)
    if (!holds(file, name)) absent.push_back({name, file});
  if (!absent.empty())
    fail(ErrorKind::checkpoint, "{} names {} tensor{} that the file lacks: {}", index_name, absent.size(),
         absent.size() == 1 ? "" : "s", describe(absent, experts));

  std::int64_t doubled = 0;
  std::int64_t unnamed = 0;
  std::string first_doubled;
  std::string first_unnamed;
  for (std::size_t s = 0; s < headers.size(); ++s) {
    for (const auto& tensor : headers[s].tensors) {
      const auto indexed = index.find(tensor.first);
      if (indexed == index.end()) {
        if (unnamed++ == 0) first_unnamed = fmt::format("{} in {}", shown(tensor.first), shards.files[s]);
      } else if (indexed->second != shards.files[s]) {
        if (doubled++ == 0)
          first_doubled = fmt::format("{} in {}, the index says {}", shown(tensor.first), shards.files[s],
                                      indexed->second);
      } else {
        add(tensor, s);
      }
    }
  }
  if (doubled != 0)
    notes.push_back(fmt::format("{} tensor{} in a second shard as well, ignored there: {}", doubled,
                                doubled == 1 ? "" : "s", first_doubled));
  if (unnamed != 0)
    notes.push_back(fmt::format("{} tensor{} that the index does not name, ignored: {}", unnamed,
                                unnamed == 1 ? "" : "s", first_unnamed));
}

void TensorTable::Contents::resolve_alone() {
  for (std::size_t s = 0; s < headers.size(); ++s) {
    for (const auto& tensor : headers[s].tensors) {
      if (const Located* other = find(tensor.first))
        fail(ErrorKind::checkpoint, "ambiguous without {}: tensor '{}' is in {} and in {}", index_name,
             shown(tensor.first), shards.files[other->shard], shards.files[s]);
      add(tensor, s);
    }
  }
}

const Located* TensorTable::Contents::find(std::string_view name) const {
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : &found->second;
}

const Located* TensorTable::find(std::string_view name) const { return contents_->find(name); }

tensor::StoredTensor TensorTable::stored(const Located& located) const {
  const TensorEntry& entry = *located.entry;
  return {entry.dtype, entry.shape, {readers_[located.shard], entry.begin, entry.end - entry.begin}};
}

Verdict TensorTable::changed() const {
  for (const auto& file : contents_->opened)
    if (Verdict v = file->changed()) return v;
  return std::nullopt;
}

}  // namespace kerf::checkpoint::internal
