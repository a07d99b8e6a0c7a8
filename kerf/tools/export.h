// Writes a checkpoint's experts in the converted layout, one file a rank (checkpoint/export_facts.h), for
// starts that convert nothing; and turns such files back into a checkpoint under ModelOpt's names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "kerf/base/threads.h"
#include "kerf/checkpoint/checkpoint.h"
#include "kerf/decode/build.h"
#include "kerf/decode/probe.h"

#pragma GCC visibility push(default)
namespace kerf::tools {

// Which layers, and how they are placed.
struct ExportOptions {
  std::vector<std::int64_t> layers;  // empty: every layer with routed experts
  bool expert_tp = false;            // NVFP4 experts as slices, cut over each row of ranks; else whole
  layout::Fit fit = {};              // what may be done about an intermediate width that does not fit
  decode::ProbeOptions probe;        // of slices against the whole experts that they were cut from
  std::function<void(std::int64_t done, std::int64_t of)> progress;  // layers, on rank 0; may be empty
};

// What was written; equal on all ranks.
struct ExportReport {
  std::int64_t layers = 0;
  std::int64_t nvfp4_layers = 0;
  std::int64_t ranks = 1, ep = 1, tp = 1;
  std::int64_t width = 0;          // I of NVFP4 experts as converted
  std::int64_t bytes = 0;          // of all files
  std::int64_t largest_bytes = 0;  // of the largest
  double max_rel_l2 = 0;           // the probe's worst; 0 without slices
  std::string id;                  // of the export
};

// Collective; every rank writes its own file, a layer at a time: at most one layer's experts are in memory.
// The directory is made where it is not there; one that holds anything but an earlier export is refused
// (Error{usage}), as is one that another run writes to, and an earlier export is replaced once all ranks have
// written all of their files. Those appear then, and tell each other by their ids: what an interrupted run
// leaves does not start, unless it is the earlier export. Errors, the same on every rank: those of
// decode::build() and decode::shard(), unsupported for weight-only layers that have input scales, usage for
// an export in the place of a checkpoint and for a file that cannot be written.
ExportReport export_experts(const checkpoint::Checkpoint& from, const std::filesystem::path& directory,
                            const ExportOptions& options, const decode::Rank& rank);

// What was written back: numbers of layers and tensors, bytes of tensors.
struct LogicalReport {
  std::int64_t layers = 0;
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;
};

// Undoes an export, of whatever placement: the directory (new, empty, or an earlier call's, whose files are
// replaced once the new ones are there: a hidden file marks and lists them) gets a checkpoint with the
// source's tensors of routed experts and of what stands beside them, byte for byte, under ModelOpt's names
// (fused ones where the source's were), and the source's configs. What compressed-tensors writes otherwise is
// as ModelOpt has it: divisors as the scales that they stand for, and the config's quantization_config. Every
// digest is checked. One layer is in memory at a time; config.json comes last, so that what a stopped run
// leaves is no checkpoint. `progress`: layers done and in all. Error{usage} for what is no export, a
// directory that holds anything else and a file that cannot be written, Error{checkpoint} for damaged files.
LogicalReport export_logical(const checkpoint::Checkpoint& from, const std::filesystem::path& directory,
                             const Workers& workers,
                             const std::function<void(std::int64_t done, std::int64_t of)>& progress = {});

}  // namespace kerf::tools
#pragma GCC visibility pop
