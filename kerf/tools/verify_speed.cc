#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/numeric/median.h"
#include "kerf/tools/plain_read.h"
#include "kerf/tools/verify.h"

namespace kerf::tools {

namespace {

using Clock = std::chrono::steady_clock;
using checkpoint::ExpertKind;
using checkpoint::ExpertViews;

template <typename F>
double seconds_of(const F& run) {
  const Clock::time_point begin = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

VerifySpeed verify_speed(const checkpoint::Checkpoint& checkpoint, const Workers& workers, int pairs) {
  if (pairs < 1) throw Error(ErrorKind::bug, "no pairs to time");
  std::vector<std::span<const std::byte>> runs;
  for (const std::int64_t index : checkpoint.moe_layers()) {
    const checkpoint::MoeLayer& layer = checkpoint.layer(index);
    const bool nvfp4 = layer.kind() == ExpertKind::nvfp4;
    if (!nvfp4 && layer.copies()) continue;  // copies of it would be read, not the file
    for (std::int64_t e = 0; e < checkpoint.config().experts; ++e) {
      if (nvfp4) {
        const auto stored = layer.stored_block_scales(e);
        runs.insert(runs.end(), stored.begin(), stored.end());
        continue;
      }
      const ExpertViews v = layer.expert(e);
      for (const auto& view : {v.gate, v.up, v.down}) runs.push_back(view.bytes);
    }
  }
  const PlainRead reader(runs);
  VerifySpeed out;
  out.bytes = reader.bytes();
  out.pairs = pairs;
  if (out.bytes == 0) throw Error(ErrorKind::usage, "no expert has anything to read: no speed");
  std::uint64_t sum = reader.run(workers);
  (void)verify(checkpoint, workers);
  std::vector<double> scans;
  std::vector<double> reads;
  std::vector<double> fractions;
  for (int p = 0; p < pairs; ++p) {
    scans.push_back(seconds_of([&] { (void)verify(checkpoint, workers); }));
    reads.push_back(seconds_of([&] { sum ^= reader.run(workers); }));
    fractions.push_back(reads.back() / scans.back());
  }
  if (sum != (pairs % 2 == 0 ? reader.run(workers) : 0))  // so that no read can be left out
    throw Error(ErrorKind::checkpoint, "the files changed while they were read");
  out.seconds = numeric::median(scans);
  out.read_seconds = numeric::median(reads);
  out.fraction = numeric::median(fractions);
  const auto [least, most] = std::minmax_element(fractions.begin(), fractions.end());
  out.fraction_least = *least;
  out.fraction_most = *most;
  return out;
}

}  // namespace kerf::tools
