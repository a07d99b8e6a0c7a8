#include "kerf/checkpoint/export_file.h"

#include <algorithm>
#include <array>
#include <optional>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/base/json.h"
#include "kerf/checkpoint/internal/names.h"

namespace kerf::checkpoint {

namespace {

constexpr const char* kFactsKey = "kerf_export";

std::vector<NamedShape> with_tables(std::vector<NamedShape> tensors, std::int64_t ranks) {
  const auto rows = static_cast<std::int64_t>(tensors.size()) + 1;
  tensors.push_back({std::string(exported_digests), tensor::Dtype::u8, {rows, 16}});
  tensors.push_back({std::string(exported_ranks), tensor::Dtype::u8, {ranks, 16}});
  return tensors;
}

// Of experts' weights, in which ranks' files differ.
constexpr std::array<std::string_view, 4> kWeights = {"w13", "w13_sf", "w2", "w2_sf"};

// What a name is to a layer of an export; nothing where it is no layer's tensor. One look at a name, since a
// hostile file may have very many of both.
enum class Role { weights, shared };
std::optional<Role> role_in(const ExportFacts& facts, std::string_view name) {
  const auto parsed = internal::parse_layer_name(name);
  if (!parsed) return std::nullopt;
  // They ascend (from_json()).
  const auto layer = std::ranges::lower_bound(facts.layers, parsed->layer, {}, &ExportedLayer::index);
  if (layer == facts.layers.end() || layer->index != parsed->layer || layer->prefix != parsed->prefix)
    return std::nullopt;
  const std::string_view rest = parsed->rest;
  const bool nvfp4 = layer->kind == ExpertKind::nvfp4;
  if (rest.starts_with(exported_experts)) {
    const std::string_view own = rest.substr(exported_experts.size());
    const bool weights = std::find(kWeights.begin(), kWeights.end(), own) != kWeights.end();
    if (weights && (nvfp4 || !own.ends_with("_sf"))) return Role::weights;
  }
  const bool scales = nvfp4 && (rest == exported_ws2 || (layer->has_inputs && rest == exported_inputs));
  const bool beside = std::find(beside_experts.begin(), beside_experts.end(), rest) != beside_experts.end();
  return scales || beside ? std::optional(Role::shared) : std::nullopt;
}

}  // namespace

struct ExportFile::State {
  std::filesystem::path path;
  Header header;
  ExportFacts facts;
  std::shared_ptr<const DataFile> file;
  std::vector<Digest> digests;  // in the order of the header's names; none of the tables' own
  std::vector<Digest> ranks;

  [[nodiscard]] std::vector<Digest> table(std::string_view name, std::int64_t rows) const {
    const auto i = header.tensors.index_of(name);
    const TensorEntry found = i ? header.tensors.entry(*i) : TensorEntry{};
    const tensor::Shape wanted{rows, 16};
    if (!i || found.dtype != tensor::Dtype::u8 || found.shape != wanted)
      fail(ErrorKind::checkpoint, "{}: got {}, wanted {} U8 {}", path.string(),
           !i ? fmt::format("no {}", name)
              : fmt::format("{} {} {}", name, tensor::name(found.dtype), found.shape.text()),
           name, wanted.text());
    std::vector<Digest> out(static_cast<std::size_t>(rows));
    file->read(found.begin, std::as_writable_bytes(std::span(out)));
    return out;
  }

  // Tensors that no export has might be taken for something.
  void check_names() const {
    for (const auto& [name, entry] : header.tensors)
      if (name != exported_digests && name != exported_ranks && !role_in(facts, name))
        fail(ErrorKind::checkpoint, "{}: tensor '{}', which an export of such layers does not have",
             path.string(), shown(name));
  }

  // The header's bytes and the list of digests must be what the writer wrote.
  void check_tables() {
    const TensorEntries& tensors = header.tensors;
    std::vector<std::uint32_t> order;  // of the tensors, by where they begin and by name
    order.reserve(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (tensors.name(i) != exported_digests && tensors.name(i) != exported_ranks)
        order.push_back(static_cast<std::uint32_t>(i));
    std::stable_sort(order.begin(), order.end(), [&tensors](std::uint32_t a, std::uint32_t b) {
      return tensors.begin_of(a) < tensors.begin_of(b);
    });
    const std::vector<Digest> own = table(exported_digests, static_cast<std::int64_t>(order.size()) + 1);
    const std::shared_ptr<const tensor::Reader> reader = file;
    if (const Digest got = digest_of(tensor::Source(reader, 0, header.data_begin)); got != own.front())
      fail(ErrorKind::checkpoint, "{}: damaged: the digest of its header is {}, wanted {}", path.string(),
           text_of(got), text_of(own.front()));
    digests.resize(tensors.size());
    for (std::size_t i = 0; i < order.size(); ++i) digests[order[i]] = own[i + 1];
    ranks = table(exported_ranks, facts.placement.ranks);
    const Digest whole = digest_of(std::span<const Digest>(own));
    if (const Digest& listed = ranks[static_cast<std::size_t>(facts.rank)]; listed != whole)
      fail(ErrorKind::checkpoint, "{}: damaged: the digest of its digests is {}, wanted {}", path.string(),
           text_of(whole), text_of(listed));
  }
};

ExportFile ExportFile::open_of_rank(const std::filesystem::path& directory, std::int64_t rank,
                                    std::int64_t ranks) {
  const std::filesystem::path path = directory / export_file_name(rank, ranks);
  ExportFile out = open(path);
  if (out.facts().rank != rank || out.facts().placement.ranks != ranks)
    fail(ErrorKind::checkpoint, "{}: says that it is rank {}'s of {}: renamed?", path.string(),
         out.facts().rank, out.facts().placement.ranks);
  return out;
}

ExportFile ExportFile::open(const std::filesystem::path& path) {
  const auto state = std::make_shared<State>();
  state->path = path;
  state->file = DataFile::open(path);
  state->header = read_header(*state->file);
  const auto facts = state->header.metadata.find(kFactsKey);
  if (facts == state->header.metadata.end())
    fail(ErrorKind::checkpoint, "{}: its header does not say '{}': not a file of an export, or damaged",
         path.string(), kFactsKey);
  state->facts = ExportFacts::from_json(facts->second, path.string());
  if (state->header.stray_bytes != 0)
    fail(ErrorKind::checkpoint, "{}: {} bytes that belong to no tensor, wanted none", path.string(),
         state->header.stray_bytes);
  state->check_names();
  state->check_tables();
  ExportFile out;
  out.state_ = state;
  out.reader_ = state->file;
  return out;
}

ExportFile ExportFile::through(const WrapReader& wrap) const {
  ExportFile out = *this;
  out.reader_ = wrap(reader_);
  return out;
}

const std::filesystem::path& ExportFile::path() const { return state_->path; }
const ExportFacts& ExportFile::facts() const { return state_->facts; }
const Header& ExportFile::header() const { return state_->header; }
std::span<const Digest> ExportFile::ranks() const { return state_->ranks; }
Digest ExportFile::id() const { return digest_of(std::span<const Digest>(state_->ranks)); }

bool ExportFile::has(std::string_view name) const { return state_->header.tensors.contains(name); }

TensorEntry ExportFile::entry(std::string_view name) const {
  const auto found = state_->header.tensors.index_of(name);
  if (!found) fail(ErrorKind::checkpoint, "{}: no tensor '{}' in it", state_->path.string(), shown(name));
  return state_->header.tensors.entry(*found);
}

std::string ExportFile::shared_text() const {
  ExportFacts facts = state_->facts;
  facts.rank = 0;
  nlohmann::json digests = nlohmann::json::object();
  const TensorEntries& tensors = state_->header.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (role_in(facts, tensors.name(i)) == Role::shared)
      digests[std::string(tensors.name(i))] = text_of(state_->digests[i]);
  return nlohmann::json{{"facts", nlohmann::json::parse(facts.to_json())}, {"tensors", std::move(digests)}}
      .dump();
}

Verdict shared_differs(const std::string& one, const std::filesystem::path& one_file,
                       const std::string& other, const std::filesystem::path& other_file) {
  if (one == other) return std::nullopt;
  const auto a = nlohmann::json::parse(one);
  const auto b = nlohmann::json::parse(other);
  for (const char* part : {"facts", "tensors"}) {
    nlohmann::json all = a[part];
    all.update(b[part]);
    for (const auto& [key, value] : all.items()) {
      const auto said = [&](const nlohmann::json& in) {
        return in[part].contains(key) ? shown(json_text(in[part][key])) : std::string("none");
      };
      if (a[part].value(key, nlohmann::json()) != b[part].value(key, nlohmann::json()))
        return because(ErrorKind::checkpoint,
                       "{} and {} are of one export, but differ in {}{}: {} and {}, wanted the same",
                       one_file.string(), other_file.string(),
                       part == std::string_view("tensors") ? "the digest of " : "", shown(key), said(a),
                       said(b));
    }
  }
  return because(ErrorKind::checkpoint, "{} and {} differ", one_file.string(), other_file.string());
}

void ExportFile::check(std::string_view name, const Digest& got) const {
  const auto found = state_->header.tensors.index_of(name);
  if (!found || name == exported_digests || name == exported_ranks)
    fail(ErrorKind::checkpoint, "{}: no digest of a tensor '{}' in it", state_->path.string(), shown(name));
  const Digest& wanted = state_->digests[*found];
  if (wanted != got)
    fail(ErrorKind::checkpoint, "{}: damaged: the digest of {} is {}, wanted {}", state_->path.string(),
         shown(name), text_of(got), text_of(wanted));
}

void ExportFile::check(std::string_view name, const Workers& workers, ExportedValues* values) const {
  const TensorEntry at = entry(name);
  check(name,
        digest_of(Pieces(at.dtype, at.shape), workers, [&](std::int64_t begin, std::span<std::byte> to) {
          reader_->read(at.begin + begin, to);
          if (values != nullptr) values->look(begin, to);
        }));
}

ExportReader::ExportReader(const ExportFile& file, std::string name)
    : file_(file),
      name_(std::move(name)),
      entry_(file.entry(name_)),
      values_(entry_),
      pieces_(entry_.dtype, entry_.shape),
      digests_(static_cast<std::size_t>(pieces_.count())) {}

void ExportReader::read(std::int64_t first, std::int64_t count, std::span<std::byte> to,
                        const Workers& workers) {
  const std::int64_t all = entry_.shape.rank() > 0 ? entry_.shape[0] : 1;
  const std::int64_t each = all > 0 ? (entry_.end - entry_.begin) / all : 0;
  const bool whole = first == 0 && count == all;
  if (first < 0 || count < 0 || first + count > all || std::ssize(to) != count * each ||
      (!whole && pieces_.parts() != all))
    fail(ErrorKind::bug, "{}, {}: asked for {} of {} from {} on, to {} bytes", file_.path().string(), name_,
         count, all, first, to.size());
  const std::int64_t begin = whole ? 0 : first * pieces_.per_part();
  const std::int64_t pieces = whole ? pieces_.count() : count * pieces_.per_part();
  const std::int64_t from = first * each;
  workers.for_each(static_cast<std::size_t>(pieces), [&](std::size_t i, int) {
    const std::int64_t piece = begin + static_cast<std::int64_t>(i);
    const Pieces::Range range = pieces_.range(piece);
    const auto part =
        to.subspan(static_cast<std::size_t>(range.begin - from), static_cast<std::size_t>(range.bytes));
    file_.reader_->read(entry_.begin + range.begin, part);
    digests_[static_cast<std::size_t>(piece)] = digest_of(part);  // while it is in the cache
    values_.look(range.begin, part);
  });
}

void ExportReader::read(std::span<std::byte> to, const Workers& workers) {
  read(0, entry_.shape.rank() > 0 ? entry_.shape[0] : 1, to, workers);
}

void ExportReader::finish() const { file_.check(name_, digest_of(std::span<const Digest>(digests_))); }

void ExportReader::report(std::int64_t layer, std::int64_t first_expert, Faults& faults) const {
  values_.report({layer, name_, first_expert, file_.path().filename().string()}, faults);
}

ExportWriter::ExportWriter(const std::filesystem::path& directory, const ExportFacts& facts,
                           std::vector<NamedShape> tensors)
    : tensors_(std::move(tensors)),
      ranks_(facts.placement.ranks),
      writer_(directory / export_file_name(facts.rank, facts.placement.ranks), with_tables(tensors_, ranks_),
              std::vector<std::pair<std::string, std::string>>{{kFactsKey, facts.to_json()}}) {
  digests_.push_back(digest_of(writer_.header()));
}

void ExportWriter::append(std::span<const std::byte> tensor, const Workers& workers) {
  const std::size_t at = digests_.size() - 1;
  if (at >= tensors_.size())
    fail(ErrorKind::bug, "a tensor more than the {} that were announced", tensors_.size());
  const NamedShape& shape = tensors_[at];
  if (const std::int64_t wanted = tensor::bytes_of(shape.dtype, shape.shape); std::ssize(tensor) != wanted)
    fail(ErrorKind::bug, "{}: {} bytes, {} were announced", shape.name, tensor.size(), wanted);
  digests_.push_back(digest_of(tensor::TensorView{shape.dtype, shape.shape, tensor}, workers));
  writer_.append(tensor);
}

Digest ExportWriter::close() {
  if (digests_.size() != tensors_.size() + 1)
    fail(ErrorKind::bug, "{} of {} tensors came", digests_.size() - 1, tensors_.size());
  writer_.append(std::as_bytes(std::span(digests_)));
  return digest_of(std::span<const Digest>(digests_));
}

void ExportWriter::end(std::span<const Digest> ranks) {
  if (std::ssize(ranks) != ranks_) fail(ErrorKind::bug, "digests of {} files of {}", ranks.size(), ranks_);
  writer_.append(std::as_bytes(ranks));
  writer_.close();
}

void ExportWriter::finish() { writer_.finish(); }

}  // namespace kerf::checkpoint
