// A start from an export (checkpoint/export_facts.h): every rank reads its own file's experts as they are,
// nothing is converted or exchanged. An opened export is a Checkpoint like any other up to its experts; here
// is what differs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/checkpoint/export_facts.h"
#include "kerf/checkpoint/export_file.h"
#include "kerf/checkpoint/safetensors.h"
#include "kerf/decode/build.h"
#include "kerf/decode/grid_shape.h"
#include "kerf/decode/layer.h"
#include "kerf/decode/startup.h"
#include "kerf/layout/experts.h"
#include "kerf/layout/slice.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// What one rank's file of an export holds, by its facts.
struct Holding {
  layout::ExpertsShape nvfp4, bf16;  // as converted: slices are of their own width
  layout::Slice slice;               // of NVFP4 experts, where there are any
  std::int64_t first_nvfp4 = 0;      // of the model's experts
  std::int64_t first_bf16 = 0;

  // Of the experts of a kind: their shape, and the first one's number in the model.
  [[nodiscard]] const layout::ExpertsShape& shape(checkpoint::ExpertKind kind) const {
    return kind == checkpoint::ExpertKind::nvfp4 ? nvfp4 : bf16;
  }
  [[nodiscard]] std::int64_t first(checkpoint::ExpertKind kind) const {
    return kind == checkpoint::ExpertKind::nvfp4 ? first_nvfp4 : first_bf16;
  }
};
// That of a file with these facts, as ExportFacts reads them: sound ones.
Holding holding(const checkpoint::ExportFacts& facts, const checkpoint::ModelConfig& config);

// The weights that a layer of such experts must have in a rank's file, by their names there (w13, w13_sf, w2,
// w2_sf, or w13, w2, below `prefix`), dtypes and shapes.
std::vector<checkpoint::NamedShape> exported_tensors(const Holding& held, checkpoint::ExpertKind kind,
                                                     std::string_view prefix);
// Error{checkpoint} where the file's tensor has another dtype or shape, or is not there.
void require_tensor(const checkpoint::ExportFile& file, const checkpoint::NamedShape& wanted);

// What may be done about a width: what was asked for, and what was done when the experts were exported.
layout::Fit fit_of(const checkpoint::Checkpoint& from, const layout::Fit& asked);

// Whether the experts are slices: there are no whole ones then.
bool holds_slices(const checkpoint::Checkpoint& from);

// Nothing where so many ranks, each of which holds one of `slices` slices (1: whole experts), can start from
// this. A checkpoint takes any; an export is for one number of ranks, and its slices for one grid and width.
// Otherwise checkpoint: what the export is for, what was asked, and what to do.
Verdict foreign(const checkpoint::Checkpoint& from, std::int64_t ranks, std::int64_t slices,
                const layout::Fit& fit);

// Nothing where the source that an export names is not there or cannot be read, or is what it was; otherwise
// checkpoint. Local. Looked at: configs, index and headers; names and sizes of files, and 68 KiB of each
// (source_digest.h); and all of a file that was written to since it was exported.
Verdict stale(const checkpoint::Checkpoint& from, const Workers& workers);

// Collective: `from`, or for an export this rank's own file of it. Errors, the same on every rank, of kind
// checkpoint: those of foreign() and stale(), a file that is missing or damaged, files of several exports.
checkpoint::Checkpoint of_rank(const checkpoint::Checkpoint& from, std::int64_t slices,
                               const layout::Fit& fit, const Rank& rank);

// Collective: build() from an export, with the same layers in the end (sliced ones, where those were
// exported). `from` is of_rank()'s, an export. To `startup` goes what was checked and read. Errors besides
// build()'s: checkpoint for tensors that are damaged, or not those of such experts, or hold values that can
// be none.
std::vector<Layer> load_exported(const checkpoint::Checkpoint& from, const BuildOptions& options,
                                 const Rank& rank, Startup* startup = nullptr);

// Collective: from whichever it is, build() or load_exported().
std::vector<Layer> load(const checkpoint::Checkpoint& from, const BuildOptions& options, const Rank& rank,
                        Startup* startup = nullptr);

}  // namespace kerf::decode
#pragma GCC visibility pop
