// Looks at every byte of a checkpoint's routed experts that can be wrong: dtypes and shapes, all global
// scales, all block scales, BF16 weights, and what stands beside the experts (a norm, a selection bias).
// (Every e2m1 code is a number: they are not read.)
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "kerf/base/threads.h"
#include "kerf/checkpoint/checkpoint.h"
#include "kerf/checkpoint/faults.h"

#pragma GCC visibility push(default)
namespace kerf::tools {

// What was looked at, and what is wrong with it.
struct VerifyReport {
  checkpoint::Faults faults;  // layers ascending, within a layer by kind and expert
  std::int64_t layers = 0;
  std::int64_t experts = 0;                          // of all layers together
  std::int64_t bytes_checked = 0;                    // of tensors, in the files
  std::vector<std::string> warnings;                 // checkpoint::warnings_of(), with the layer
  std::vector<checkpoint::Checkpoint::Shard> files;  // of an export: those of all ranks that could be opened
};

// `progress` is called with experts done and in all, from any worker, one call at a time. The report is the
// same at any thread count. Throws only what is no finding about values: Error{memory}, and Error{checkpoint}
// where a file changes meanwhile, or global scales or what stands beside the experts cannot be read. Of an
// export: every byte of every rank's file against its digest, and that the files are of one export; `experts`
// counts files then.
VerifyReport verify(const checkpoint::Checkpoint& checkpoint, const Workers& workers,
                    const std::function<void(std::int64_t done, std::int64_t total)>& progress = {});

// The same of an export without its experts' bytes: every rank's header and tables against their digests,
// that the files are of one export, scales and what stands beside the experts. Error{bug} for what is no
// export.
VerifyReport verify_headers(const checkpoint::Checkpoint& exported);

// Reads all of `source`: what an export records of its source and is otherwise there, or cannot be read, is a
// fault "other source" of `report`, to whose bytes_checked the source's are added. Error{usage} for what is
// no export.
void verify_source(const checkpoint::Checkpoint& exported, const std::filesystem::path& source,
                   const Workers& workers, VerifyReport& report);

// How fast that is: verify() in turns with a plain read of the bytes that it looks at (bytes_checked but for
// the few of global scales and of what stands beside the experts), from pages that are in memory.
struct VerifySpeed {
  std::int64_t bytes = 0;  // of block scales and BF16 weights
  int pairs = 0;
  double seconds = 0;       // of verify(), the median
  double read_seconds = 0;  // of the plain read, the median
  double fraction = 0;      // read_seconds over seconds, pair by pair: median, least, most
  double fraction_least = 0;
  double fraction_most = 0;
};

// Reads everything once before it times anything. Error{bug} unless pairs >= 1, Error{usage} where there is
// nothing to read, Error{unsupported} for an export; those of verify().
VerifySpeed verify_speed(const checkpoint::Checkpoint& checkpoint, const Workers& workers, int pairs);

}  // namespace kerf::tools
#pragma GCC visibility pop
