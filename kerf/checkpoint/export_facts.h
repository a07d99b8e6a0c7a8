// What an export says of itself. An export is a directory of files, one a rank, that hold the rank's experts
// in the converted layout, what a decode needs beside them, and these facts; docs/formats.md has the format.
// This folder knows names, bytes and digests of such files, and nothing of the layout itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/checkpoint/config.h"
#include "kerf/tensor/dtype.h"
#include "kerf/tensor/view.h"

#pragma GCC visibility push(default)
namespace kerf::checkpoint {

// Of the files: counted up with every change that an older reader would misread.
inline constexpr std::int64_t export_format = 4;
// Of the bytes of experts in them.
inline constexpr std::string_view export_layout = "trtllm-gen-1";

// Tensors of a layer, below its prefix; {} is one of the names of layout::Nvfp4Experts or Bf16Experts.
inline constexpr std::string_view exported_experts = "mlp.experts.";            // w13, w13_sf, w2, w2_sf
inline constexpr std::string_view exported_ws2 = "mlp.experts.weight_scale_2";  // F32 [3, E]: gate, up, down
inline constexpr std::string_view exported_inputs = "mlp.experts.input_scale";  // F32 [3, E]
// Tensors of a file.
inline constexpr std::string_view exported_digests = "kerf.digests";  // U8 [1 + tensors before it, 16]
inline constexpr std::string_view exported_ranks = "kerf.ranks";      // U8 [ranks, 16]

// How the ranks hold the experts: ep rows of tp ranks. tp 1: whole experts, E / ranks each. tp > 1: NVFP4
// experts as slices, E / ep of them a rank; BF16 experts whole all the same.
struct ExportPlacement {
  std::int64_t ranks = 1;
  std::int64_t ep = 1;
  std::int64_t tp = 1;

  friend bool operator==(const ExportPlacement&, const ExportPlacement&) = default;
};

// One layer of an exported file.
struct ExportedLayer {
  std::int64_t index = 0;
  ExpertKind kind = ExpertKind::nvfp4;
  std::string prefix;                       // of its tensors, here and in the source: "model.layers.0."
  std::string root;                         // of its experts in the source, below the prefix: "mlp.experts."
  std::string dialect;                      // of them in the source (dialect.h)
  tensor::Dtype codes = tensor::Dtype::u8;  // of NVFP4 codes in the source: U8 or F4
  bool has_inputs = false;                  // input scales; else weight-only
  // Dimensions of the source's tensors of scales: by their names below the root where experts are stacked,
  // else "weight_scale_2" and "input_scale" alone.
  std::map<std::string, tensor::Shape> scale_shapes;
  // What the source calls the tensors beside the experts, where it is another name than here: both below the
  // prefix.
  std::map<std::string, std::string> names;
  std::string no_block;  // MoeLayer::no_block() of the source

  friend bool operator==(const ExportedLayer&, const ExportedLayer&) = default;
};

// A file of the source, as it was exported.
struct SourceFile {
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t modified = 0;  // when it was last written to, in nanoseconds since the epoch
  std::string digest;         // of all of its bytes (digest.h), in hexadecimal

  friend bool operator==(const SourceFile&, const SourceFile&) = default;
};

// What an exported file says of itself, its metadata.
struct ExportFacts {
  std::int64_t format = export_format;
  std::string layout = std::string(export_layout);
  std::string writer;  // kerf's version
  ExportPlacement placement;
  std::int64_t rank = 0;
  std::int64_t width = 0;       // I of NVFP4 experts before they are cut, padding included
  std::int64_t bf16_width = 0;  // of BF16 experts
  bool uneven = false;          // what was done about a width that did not fit
  bool pad = false;
  ConfigTexts configs;
  std::string source;                    // the source's directory
  std::string source_digest;             // what decode/source_digest.h says of it
  std::vector<SourceFile> source_files;  // its weights, ascending
  std::vector<ExportedLayer> layers;     // ascending

  // As the file has it, JSON. Names that are not UTF-8 are written with replacements.
  [[nodiscard]] std::string to_json() const;
  // Error{checkpoint} that names `file` for what is not such a text, or says a format or layout that this
  // kerf does not read: with both versions.
  static ExportFacts from_json(const std::string& text, const std::string& file);
};

// source_digest and source_files as text, and back: one rank reads them for all. take_source() takes that
// text alone.
std::string text_of_source(const ExportFacts& facts);
void take_source(const std::string& text, ExportFacts& facts);

// "kerf-rank-00001-of-00004.safetensors": five digits each, 0 <= rank < ranks.
std::string export_file_name(std::int64_t rank, std::int64_t ranks);
struct ExportFileName {
  std::int64_t rank = 0;
  std::int64_t ranks = 0;
};
// Nothing for another name.
std::optional<ExportFileName> parse_export_file_name(std::string_view name);

// Whether a file's name is that of an export's file on its way, which a finished export leaves none of.
bool is_export_temporary(std::string_view name);

// Error{checkpoint} where the directory has no config.json and holds files of an export that was stopped.
void refuse_stopped_export(const std::filesystem::path& directory);

// How many ranks' files a directory has, 0 where it is no export. Error{checkpoint} where there are files of
// exports for several numbers of ranks, a rank's is missing, or a checkpoint's files are there, too.
std::int64_t exported_ranks_in(const std::filesystem::path& directory);

}  // namespace kerf::checkpoint
#pragma GCC visibility pop
