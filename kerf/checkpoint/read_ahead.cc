#include "kerf/checkpoint/read_ahead.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

namespace kerf::checkpoint {

namespace {

// Far enough for a disk with a deep queue, and to keep it busy while a layer is converted; a small part of
// any machine's memory that such a checkpoint fits.
constexpr std::int64_t kWindow = std::int64_t{256} << 20;
constexpr std::int64_t kRun = std::int64_t{8} << 20;   // asked for at once
constexpr std::int64_t kGap = std::int64_t{64} << 10;  // of other tensors, cheaper to read than to leave out

using Sources = std::vector<tensor::Source>;

// In the order of the files; neighbours as one, cut into runs.
Sources in_file_order(Sources sources) {
  std::erase_if(sources, [](const tensor::Source& s) { return s.bytes() == 0; });
  std::sort(sources.begin(), sources.end(), [](const tensor::Source& a, const tensor::Source& b) {
    return a.reader() != b.reader() ? std::less<>()(a.reader(), b.reader()) : a.begin() < b.begin();
  });
  Sources out;
  for (const tensor::Source& s : sources) {
    const bool near = !out.empty() && out.back().reader() == s.reader() &&
                      s.begin() - (out.back().begin() + out.back().bytes()) <= kGap;
    if (near)
      out.back() = out.back().grown(s.begin() + s.bytes() - out.back().begin());
    else
      out.push_back(s);
  }
  return out;
}

}  // namespace

struct ReadAhead::State {
  const Checkpoint& from;
  std::vector<std::int64_t> layers;  // whose experts have not been laid out yet, last one first
  std::int64_t first;
  std::int64_t count;
  std::atomic<std::int64_t> wanted{kWindow};  // bytes, from the beginning
  std::mutex mutex{};                         // guards what follows, and `layers`
  std::deque<tensor::Source> runs{};          // to be asked for
  std::int64_t asked = 0;

  void lay_out(std::int64_t index) {
    const MoeLayer& layer = from.layer(index);
    Sources all;
    for (std::int64_t e = first; e < first + count; ++e) {
      const ExpertFiles f = layer.expert_files(e);
      for (const auto* t : {&f.gate, &f.gate_sf, &f.up, &f.up_sf, &f.down, &f.down_sf})
        all.push_back(t->source);
    }
    for (const tensor::Source& s : in_file_order(std::move(all)))
      for (std::int64_t at = 0; at < s.bytes(); at += kRun)
        runs.push_back(s.part(at, std::min(kRun, s.bytes() - at)));
  }

  void ask() {
    while (asked < wanted) {
      if (runs.empty()) {
        if (layers.empty()) return;
        lay_out(layers.back());
        layers.pop_back();
        continue;
      }
      const tensor::Source& next = runs.front();
      next.reader()->will_need(next.begin(), next.bytes());
      asked += next.bytes();
      runs.pop_front();
    }
  }
};

ReadAhead::ReadAhead(const Checkpoint& from, std::span<const std::int64_t> layers, std::int64_t first,
                     std::int64_t count)
    : state_(new State{from, {layers.rbegin(), layers.rend()}, first, count}) {
  advance(0);
}

ReadAhead::~ReadAhead() = default;

void ReadAhead::advance(std::int64_t bytes) {
  state_->wanted += bytes;
  const std::unique_lock lock(state_->mutex, std::try_to_lock);  // one who asks is enough
  if (lock.owns_lock()) state_->ask();
}

}  // namespace kerf::checkpoint
