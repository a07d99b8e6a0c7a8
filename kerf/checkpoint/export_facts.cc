#include "kerf/checkpoint/export_facts.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include "kerf/base/format.h"
#include "kerf/base/json.h"
#include "kerf/base/text.h"
#include "kerf/checkpoint/atomic_file.h"
#include "kerf/checkpoint/dialect.h"
#include "kerf/checkpoint/internal/names.h"

namespace kerf::checkpoint {

namespace {

using nlohmann::json;

constexpr std::int64_t kMostRanks = 65'536;
constexpr std::int64_t kMostSize = std::int64_t{1} << 30;
constexpr std::string_view kHead = "kerf-rank-";
constexpr std::string_view kMiddle = "-of-";
constexpr std::string_view kEnd = ".safetensors";

std::vector<std::int64_t> dims_of(const tensor::Shape& shape) {
  return {shape.dims().begin(), shape.dims().end()};
}

// One object of the text, whose keys are asked for one by one.
class Object {
 public:
  Object(const json& value, std::string file, std::string_view what) : value_(value), file_(std::move(file)) {
    if (!value.is_object())
      fail(ErrorKind::checkpoint, "{}: {} is {}, wanted an object", file_, what, got(value));
  }
  [[nodiscard]] const json& at(const char* key) const {
    const auto found = value_.find(key);
    if (found == value_.end()) fail(ErrorKind::checkpoint, "{}: its facts lack '{}'", file_, key);
    return *found;
  }
  [[nodiscard]] std::int64_t number(const char* key, std::int64_t least, std::int64_t most) const {
    const json& v = at(key);
    const bool inside =
        v.is_number_integer() &&
        (!v.is_number_unsigned() || v.get<std::uint64_t>() <= static_cast<std::uint64_t>(most)) &&
        v.get<std::int64_t>() >= least && v.get<std::int64_t>() <= most;
    if (!inside) wrong(key, fmt::format("a whole number from {} to {}", least, most));
    return v.get<std::int64_t>();
  }
  [[nodiscard]] std::string text(const char* key) const {
    if (!at(key).is_string()) wrong(key, "text");
    return at(key).get<std::string>();
  }
  // A part of tensors' names, which messages show as it is.
  [[nodiscard]] std::string name(const char* key) const {
    std::string out = text(key);
    if (printable(out) != out) wrong(key, "letters, digits and the like");
    return out;
  }
  [[nodiscard]] bool flag(const char* key) const {
    if (!at(key).is_boolean()) wrong(key, "true or false");
    return at(key).get<bool>();
  }
  [[noreturn]] void wrong(const char* key, const std::string& wanted) const {
    fail(ErrorKind::checkpoint, "{}: its facts' {} is {}, wanted {}", file_, key, got(at(key)), wanted);
  }

 private:
  const json& value_;
  std::string file_;
};

json json_of(const ExportedLayer& layer) {
  json shapes = json::object();
  for (const auto& [name, shape] : layer.scale_shapes) shapes[name] = dims_of(shape);
  return {{"layer", layer.index},
          {"kind", layer.kind == ExpertKind::nvfp4 ? "nvfp4" : "bf16"},
          {"prefix", layer.prefix},
          {"root", layer.root},
          {"dialect", layer.dialect},
          {"codes", tensor::name(layer.codes)},
          {"names", layer.names},
          {"input_scales", layer.has_inputs},
          {"scale_shapes", std::move(shapes)},
          {"no_block", layer.no_block}};
}

json json_of(const SourceFile& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"modified", file.modified}, {"digest", file.digest}};
}

SourceFile source_file_of(const json& value, const std::string& file) {
  const Object o(value, file, "a file in its facts");
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  return {o.text("name"), o.number("bytes", 0, most), o.number("modified", -most, most), o.text("digest")};
}

ExportedLayer layer_of(const json& value, const std::string& file) {
  const Object o(value, file, "a layer in its facts");
  ExportedLayer out;
  out.index = o.number("layer", 0, kMostSize);
  const std::string kind = o.text("kind");
  if (kind != "nvfp4" && kind != "bf16") o.wrong("kind", "nvfp4 or bf16");
  out.kind = kind == "nvfp4" ? ExpertKind::nvfp4 : ExpertKind::bf16;
  out.prefix = o.name("prefix");
  const std::string name_of_layer = out.prefix + "x";
  const auto parsed = internal::parse_layer_name(name_of_layer);
  if (!parsed || parsed->layer != out.index || parsed->rest != "x")
    o.wrong("prefix", fmt::format("how names of layer {} begin", out.index));
  out.root = o.name("root");
  if (std::ranges::find(internal::expert_roots, out.root) == internal::expert_roots.end())
    o.wrong("root", "where models keep experts");
  out.dialect = o.text("dialect");
  const auto all = dialects();
  if (std::none_of(all.begin(), all.end(), [&](const Dialect& d) { return d.name == out.dialect; }))
    o.wrong("dialect", "a dialect that this kerf knows");
  const std::string codes = o.text("codes");
  if (codes != "U8" && codes != "F4") o.wrong("codes", "U8 or F4");
  out.codes = codes == "U8" ? tensor::Dtype::u8 : tensor::Dtype::f4;
  if (!o.at("names").is_object()) o.wrong("names", "an object");
  for (const auto& [name, other] : o.at("names").items()) {
    if (!other.is_string() || printable(other.get<std::string>()) != other.get<std::string>())
      o.wrong("names", "names of tensors");
    const auto known = internal::spellings(name);
    if (std::ranges::find(known, other.get<std::string>()) == known.end())
      o.wrong("names", fmt::format("names that models have for {}", shown(name)));
    out.names.emplace(name, other.get<std::string>());
  }
  out.has_inputs = o.flag("input_scales");
  out.no_block = o.name("no_block");
  if (!o.at("scale_shapes").is_object()) o.wrong("scale_shapes", "an object");
  for (const auto& [name, dims] : o.at("scale_shapes").items()) {
    std::vector<std::int64_t> numbers;
    if (!dims.is_array() || dims.size() > 2) o.wrong("scale_shapes", "at most two dimensions each");
    for (const json& dim : dims) {
      if (!dim.is_number_unsigned() || dim.get<std::uint64_t>() > static_cast<std::uint64_t>(kMostSize))
        o.wrong("scale_shapes", "dimensions");
      numbers.push_back(dim.get<std::int64_t>());
    }
    out.scale_shapes.emplace(name, tensor::Shape(numbers));
  }
  return out;
}

std::optional<std::int64_t> five_digits(std::string_view text) {
  std::int64_t value = 0;
  if (text.size() != 5 || !std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return std::nullopt;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

std::string ExportFacts::to_json() const {
  json list = json::array();
  for (const ExportedLayer& layer : layers) list.push_back(json_of(layer));
  json files = json::array();
  for (const SourceFile& file : source_files) files.push_back(json_of(file));
  const json out = {{"format", format},
                    {"layout", layout},
                    {"kerf", writer},
                    {"ranks", placement.ranks},
                    {"ep", placement.ep},
                    {"tp", placement.tp},
                    {"rank", rank},
                    {"width", width},
                    {"bf16_width", bf16_width},
                    {"uneven", uneven},
                    {"pad", pad},
                    {"config", configs.config},
                    {"quant_config", configs.quant ? json(*configs.quant) : json()},
                    {"source", source},
                    {"source_digest", source_digest},
                    {"source_files", std::move(files)},
                    {"layers", std::move(list)}};
  // Names of files need not be UTF-8; one that is not is none that is found again.
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

ExportFacts ExportFacts::from_json(const std::string& text, const std::string& file) {
  const json top = parse_json(text, file);
  const Object o(top, file, "its facts");
  ExportFacts out;
  // Versions first: whatever else another one says may mean something else.
  out.format = o.number("format", 1, kMostSize);
  if (out.format != export_format)
    fail(ErrorKind::checkpoint, "{}: an export of format {}, this kerf reads format {}: export again", file,
         out.format, export_format);
  out.layout = o.text("layout");
  if (out.layout != export_layout)
    fail(ErrorKind::checkpoint, "{}: an export in layout '{}', this kerf reads '{}': export again", file,
         shown(out.layout), export_layout);
  out.writer = o.text("kerf");
  out.placement = {o.number("ranks", 1, kMostRanks), o.number("ep", 1, kMostRanks),
                   o.number("tp", 1, kMostRanks)};
  if (out.placement.ep * out.placement.tp != out.placement.ranks)
    fail(ErrorKind::checkpoint, "{}: EP {} x TP {} is not its {} ranks", file, out.placement.ep,
         out.placement.tp, out.placement.ranks);
  out.rank = o.number("rank", 0, out.placement.ranks - 1);
  out.width = o.number("width", 0, kMostSize);
  out.bf16_width = o.number("bf16_width", 0, kMostSize);
  out.uneven = o.flag("uneven");
  out.pad = o.flag("pad");
  out.configs.config = o.text("config");
  if (!o.at("quant_config").is_null()) out.configs.quant = o.text("quant_config");
  out.source = o.text("source");
  out.source_digest = o.text("source_digest");
  if (!o.at("source_files").is_array()) o.wrong("source_files", "a list of files");
  for (const json& source_file : o.at("source_files"))
    out.source_files.push_back(source_file_of(source_file, file));
  if (!o.at("layers").is_array() || o.at("layers").empty()) o.wrong("layers", "a list of layers");
  for (const json& layer : o.at("layers")) {
    out.layers.push_back(layer_of(layer, file));
    if (out.layers.size() > 1 && out.layers[out.layers.size() - 2].index >= out.layers.back().index)
      o.wrong("layers", "layers in ascending order");
  }
  return out;
}

std::string text_of_source(const ExportFacts& facts) {
  json files = json::array();
  for (const SourceFile& file : facts.source_files) files.push_back(json_of(file));
  const json out = {{"source_digest", facts.source_digest}, {"source_files", std::move(files)}};
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

void take_source(const std::string& text, ExportFacts& facts) {
  const json top = parse_json(text, "the source's files");
  facts.source_digest = top.at("source_digest").get<std::string>();
  facts.source_files.clear();
  for (const json& file : top.at("source_files"))
    facts.source_files.push_back(source_file_of(file, "the source's files"));
}

std::string export_file_name(std::int64_t rank, std::int64_t ranks) {
  return fmt::format("{}{:05}{}{:05}{}", kHead, rank, kMiddle, ranks, kEnd);
}

std::optional<ExportFileName> parse_export_file_name(std::string_view name) {
  if (name.size() != kHead.size() + 5 + kMiddle.size() + 5 + kEnd.size() || !name.starts_with(kHead) ||
      !name.ends_with(kEnd) || name.substr(kHead.size() + 5, kMiddle.size()) != kMiddle)
    return std::nullopt;
  const auto rank = five_digits(name.substr(kHead.size(), 5));
  const auto ranks = five_digits(name.substr(kHead.size() + 5 + kMiddle.size(), 5));
  if (!rank || !ranks || *rank >= *ranks) return std::nullopt;
  return ExportFileName{*rank, *ranks};
}

bool is_export_temporary(std::string_view name) {
  const std::size_t whole = export_file_name(0, 1).size();
  return name.size() > whole && parse_export_file_name(name.substr(0, whole)) &&
         name.substr(whole).starts_with(AtomicFile::temporary_prefix(""));
}

void refuse_stopped_export(const std::filesystem::path& directory) {
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(directory / "config.json", error))) return;
  std::string first;  // by name, so that the message is the same at every start
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    std::string name = it->path().filename().string();
    if (is_export_temporary(name) && (first.empty() || name < first)) first = std::move(name);
  }
  if (!first.empty())
    fail(ErrorKind::checkpoint, "{}: an export that was stopped ({} is unfinished): export again",
         directory.string(), first);
}

std::int64_t exported_ranks_in(const std::filesystem::path& directory) {
  std::set<std::int64_t> found;
  std::optional<std::int64_t> ranks;
  std::string other;  // a checkpoint's file, the first by name
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    std::string text = it->path().filename().string();
    const auto name = parse_export_file_name(text);
    if (!name) {
      const bool of_checkpoint = text == "config.json" || text.ends_with(".safetensors");
      if (of_checkpoint && (other.empty() || text < other)) other = std::move(text);
      continue;
    }
    if (ranks && *ranks != name->ranks)
      fail(ErrorKind::checkpoint, "{}: files of an export for {} ranks and of one for {}, wanted one export",
           directory.string(), std::min(*ranks, name->ranks), std::max(*ranks, name->ranks));
    ranks = name->ranks;
    found.insert(name->rank);
  }
  if (!ranks) return 0;
  if (!other.empty())
    fail(ErrorKind::checkpoint,
         "{}: an export for {} ranks and a checkpoint's {} in one directory, wanted one of them: which is "
         "meant "
         "cannot be told",
         directory.string(), *ranks, shown(other));
  for (std::int64_t r = 0; r < *ranks; ++r)
    if (!found.contains(r))
      fail(ErrorKind::checkpoint,
           "{}: an export for {} ranks without {} (there {} {}): incomplete, was it stopped? export again",
           directory.string(), *ranks, export_file_name(r, *ranks), found.size() == 1 ? "is" : "are",
           found.size());
  return *ranks;
}

}  // namespace kerf::checkpoint
