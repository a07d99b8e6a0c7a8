#include "kerf/tools/verify.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/base/format.h"
#include "kerf/base/text.h"
#include "kerf/checkpoint/export_file.h"
#include "kerf/decode/exported.h"
#include "kerf/decode/scalars.h"
#include "kerf/decode/source_digest.h"

namespace kerf::tools {

namespace {

using checkpoint::ExpertFiles;
using checkpoint::ExpertKind;
using checkpoint::Faults;
using checkpoint::MoeLayer;

// One expert: its bytes that were looked at.
std::int64_t check_expert(const MoeLayer& layer, std::int64_t e, Faults& faults) {
  try {
    if (layer.kind() == ExpertKind::nvfp4) return layer.scan_block_scales(e, faults);
    layer.scan_values(e, faults);
    const ExpertFiles files = layer.expert_files(e);
    return files.gate.source.bytes() + files.up.source.bytes() + files.down.source.bytes();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::checkpoint && error.kind() != ErrorKind::unsupported) throw;
    faults.add("tensor that cannot be used", error.what());
    return 0;
  }
}

// What stands beside the experts: its bytes that were looked at.
std::int64_t check_extras(const checkpoint::ModelConfig& config, const MoeLayer& layer, Faults& faults) {
  layer.scan_extras(faults);
  checkpoint::check_selection_bias(config, layer, faults);
  layer.check_block(faults);
  layer.scan_block(faults);
  std::int64_t bytes = 0;
  for (const std::string_view name : checkpoint::beside_experts)
    if (const auto stored = layer.stored(name)) bytes += stored->source.bytes();
  return bytes;
}

// A layer's global scales, alone and combined: the bytes of them.
std::int64_t check_scales(const MoeLayer& layer, VerifyReport& report) {
  const checkpoint::LayerScales scales = layer.scales(report.faults);
  decode::check_scalars(scales, scales.weight_only ? op::Input::bf16 : op::Input::nvfp4, layer.index(),
                        report.faults);
  for (const std::string& warning : checkpoint::warnings_of(scales))
    report.warnings.push_back(fmt::format("layer {}: {}", layer.index(), warning));
  return 4 * std::ssize(scales.ws2_gate) * (scales.weight_only ? 3 : 6);
}

// What `look` throws of a checkpoint is a finding about an export.
void find(VerifyReport& report, const char* kind, const std::function<void()>& look) {
  const Verdict v = attempt(look);
  if (v && v->kind != ErrorKind::checkpoint && v->kind != ErrorKind::unsupported) require(v);
  if (v) report.faults.add(kind, v->text);
}

// Every tensor of one rank's file against its digest; of the experts' weights dtypes, shapes and values, too.
void check_tensors(const checkpoint::ExportFile& file, const checkpoint::ModelConfig& config,
                   const Workers& workers, VerifyReport& report) {
  const decode::Holding held = decode::holding(file.facts(), config);
  std::set<std::string, std::less<>> done;
  for (const checkpoint::ExportedLayer& layer : file.facts().layers)
    for (const checkpoint::NamedShape& wanted : decode::exported_tensors(held, layer.kind, layer.prefix)) {
      if (!file.has(wanted.name)) {
        find(report, "damaged export", [&] { (void)file.entry(wanted.name); });
        continue;
      }
      done.insert(wanted.name);
      checkpoint::ExportedValues values(file.entry(wanted.name));
      find(report, "tensor of another shape", [&] { decode::require_tensor(file, wanted); });
      find(report, "damaged export", [&] { file.check(wanted.name, workers, &values); });
      values.report({layer.index, wanted.name, held.first(layer.kind), file.path().filename().string()},
                    report.faults);
    }
  for (const auto& [name, entry] : file.header().tensors) {
    if (name == checkpoint::exported_digests || name == checkpoint::exported_ranks) continue;
    report.bytes_checked += entry.end - entry.begin;
    if (!done.contains(name)) find(report, "damaged export", [&, n = name] { file.check(n, workers); });
  }
}

// A file's tensors one after another, each by all workers; none where there are no workers.
VerifyReport verify_export(const checkpoint::Checkpoint& from, const Workers* workers,
                           const std::function<void(std::int64_t done, std::int64_t total)>& progress) {
  VerifyReport report;
  const std::int64_t ranks = from.exported()->facts().placement.ranks;
  report.layers = static_cast<std::int64_t>(from.moe_layers().size());
  for (std::int64_t r = 0; r < ranks; ++r) {
    ++report.experts;
    find(report, "damaged export", [&] {
      const auto file = checkpoint::Checkpoint::open_exported(from.directory(), r, ranks);
      if (file.exported()->id() != from.exported()->id())
        report.faults.add("file of another export", file.exported()->path().string());
      for (const checkpoint::Checkpoint::Shard& shard : file.shards()) report.files.push_back(shard);
      find(report, "file that does not fit the others", [&] {
        require(checkpoint::shared_differs(from.exported()->shared_text(), from.exported()->path(),
                                           file.exported()->shared_text(), file.exported()->path()));
      });
      find(report, "export that contradicts its configuration", [&] {
        require(
            decode::foreign(file, ranks, file.exported()->facts().placement.tp, decode::fit_of(file, {})));
      });
      if (workers != nullptr) check_tensors(*file.exported(), file.config(), *workers, report);
      for (const std::int64_t index : file.moe_layers()) {
        const MoeLayer& layer = file.layer(index);
        check_extras(file.config(), layer, report.faults);
        if (layer.kind() == ExpertKind::nvfp4) (void)check_scales(layer, report);
      }
    });
    // Every file has the scales of all experts: what one warns of, all do.
    std::vector<std::string> once;
    for (std::string& warning : report.warnings)
      if (std::ranges::find(once, warning) == once.end()) once.push_back(std::move(warning));
    report.warnings = std::move(once);
    if (progress) progress(r + 1, ranks);
  }
  return report;
}

}  // namespace

VerifyReport verify(const checkpoint::Checkpoint& checkpoint, const Workers& workers,
                    const std::function<void(std::int64_t done, std::int64_t total)>& progress) {
  if (checkpoint.exported() != nullptr) return verify_export(checkpoint, &workers, progress);
  struct Task {
    const MoeLayer* layer;
    std::int64_t expert;
    Faults faults;
    std::int64_t bytes = 0;
  };
  const std::int64_t experts = checkpoint.config().experts;
  VerifyReport report;
  report.faults.merge(checkpoint.layer_faults());
  std::vector<Task> tasks;
  for (const std::int64_t index : checkpoint.moe_layers())
    for (std::int64_t e = 0; e < experts; ++e) tasks.push_back({&checkpoint.layer(index), e, {}, 0});
  report.layers = static_cast<std::int64_t>(checkpoint.moe_layers().size());
  report.experts = static_cast<std::int64_t>(tasks.size());

  std::mutex mutex;
  std::int64_t done = 0;
  workers.for_each(tasks.size(), [&](std::size_t t, int) {
    Task& task = tasks[t];
    task.bytes = check_expert(*task.layer, task.expert, task.faults);
    if (!progress) return;
    const std::scoped_lock lock(mutex);
    progress(++done, report.experts);
  });

  for (Task& task : tasks) {
    if (task.expert == 0)
      report.bytes_checked += check_extras(checkpoint.config(), *task.layer, report.faults);
    if (task.expert == 0 && task.layer->kind() == ExpertKind::nvfp4)
      report.bytes_checked += check_scales(*task.layer, report);
    report.faults.merge(task.faults);
    report.bytes_checked += task.bytes;
  }
  checkpoint.require_unchanged();
  return report;
}

void verify_source(const checkpoint::Checkpoint& exported, const std::filesystem::path& source,
                   const Workers& workers, VerifyReport& report) {
  if (exported.exported() == nullptr)
    fail(ErrorKind::usage, "{}: no export; a source is what an export was made of",
         exported.directory().string());
  const checkpoint::ExportFacts& facts = exported.exported()->facts();
  Verdict other = attempt([&] {
    if (Verdict v = decode::differs(source, facts.source_files, decode::Look::contents, workers)) require(v);
    if (const std::string got = decode::source_digest(source); got != facts.source_digest)
      fail(ErrorKind::checkpoint, "configs, index or headers: digest {}, wanted {}", got,
           shown(facts.source_digest));
  });
  if (other && other->kind != ErrorKind::checkpoint) require(other);
  if (other) report.faults.add("other source", fmt::format("{}: {}", source.string(), other->text));
  for (const checkpoint::SourceFile& file : facts.source_files) report.bytes_checked += file.bytes;
}

VerifyReport verify_headers(const checkpoint::Checkpoint& exported) {
  if (exported.exported() == nullptr) fail(ErrorKind::bug, "{}: no export", exported.directory().string());
  return verify_export(exported, nullptr, {});
}

}  // namespace kerf::tools
