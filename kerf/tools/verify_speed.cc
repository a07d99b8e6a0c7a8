#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/numeric/median.h"
#include "kerf/tools/verify.h"

namespace kerf::tools {

namespace {

using Clock = std::chrono::steady_clock;
using checkpoint::ExpertKind;

template <typename F>
double seconds_of(const F& run) {
  const Clock::time_point begin = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Reads bytes of files into memory of the reader's, a worker a run at a time, and does nothing with them.
class FileRead {
 public:
  explicit FileRead(std::vector<tensor::Source> runs) : runs_(std::move(runs)) {
    for (const tensor::Source& run : runs_) bytes_ += run.bytes();
  }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  void run(const Workers& workers) const {
    workers.for_each(runs_.size(), [&](std::size_t i, int /*worker*/) {
      constexpr std::int64_t piece = std::int64_t{1} << 18;
      const tensor::Source& from = runs_[i];
      std::vector<std::byte> to(static_cast<std::size_t>(std::min(piece, from.bytes())));
      for (std::int64_t at = 0; at < from.bytes(); at += piece)
        from.read(at, std::span(to).first(static_cast<std::size_t>(std::min(piece, from.bytes() - at))));
    });
  }

 private:
  std::vector<tensor::Source> runs_;
  std::int64_t bytes_ = 0;
};

}  // namespace

VerifySpeed verify_speed(const checkpoint::Checkpoint& checkpoint, const Workers& workers, int pairs) {
  if (pairs < 1) throw Error(ErrorKind::bug, "no pairs to time");
  std::vector<tensor::Source> runs;
  for (const std::int64_t index : checkpoint.moe_layers()) {
    const checkpoint::MoeLayer& layer = checkpoint.layer(index);
    const bool nvfp4 = layer.kind() == ExpertKind::nvfp4;
    for (std::int64_t e = 0; e < checkpoint.config().experts; ++e) {
      if (nvfp4) {
        const auto stored = layer.stored_block_scales(e);
        runs.insert(runs.end(), stored.begin(), stored.end());
        continue;
      }
      const checkpoint::ExpertFiles files = layer.expert_files(e);
      for (const auto& stored : {files.gate, files.up, files.down}) runs.push_back(stored.source);
    }
  }
  const FileRead reader(std::move(runs));
  VerifySpeed out;
  out.bytes = reader.bytes();
  out.pairs = pairs;
  if (out.bytes == 0) throw Error(ErrorKind::usage, "no expert has anything to read: no speed");
  reader.run(workers);
  (void)verify(checkpoint, workers);
  std::vector<double> scans;
  std::vector<double> reads;
  std::vector<double> fractions;
  for (int p = 0; p < pairs; ++p) {
    scans.push_back(seconds_of([&] { (void)verify(checkpoint, workers); }));
    reads.push_back(seconds_of([&] { reader.run(workers); }));
    fractions.push_back(reads.back() / scans.back());
  }
  out.seconds = numeric::median(scans);
  out.read_seconds = numeric::median(reads);
  out.fraction = numeric::median(fractions);
  const auto [least, most] = std::minmax_element(fractions.begin(), fractions.end());
  out.fraction_least = *least;
  out.fraction_most = *most;
  return out;
}

}  // namespace kerf::tools
