#include "kerf/comm/engine/engine.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "kerf/base/format.h"

namespace kerf::comm::engine {

namespace {

// Staging up to so many bytes is kept.
constexpr std::size_t kKept = std::size_t{1} << 20;

std::span<std::byte> grown(std::vector<std::byte>& area, std::size_t bytes) {
  if (area.size() < bytes) area.resize(bytes);
  return std::span(area).first(bytes);
}
void shrink(std::vector<std::byte>& area) {
  if (area.size() > kKept) area = {};
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<const std::byte*> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

// The places as one, where they adjoin in order.
bool adjoining(std::span<const std::span<std::byte>> parts, std::span<std::byte>& whole) {
  whole = {};
  for (const auto part : parts) {
    if (part.empty()) continue;
    if (whole.empty())
      whole = part;
    else if (whole.data() + whole.size() == part.data())
      whole = {whole.data(), whole.size() + part.size()};
    else
      return false;
  }
  return true;
}

}  // namespace

Engine::Engine(EngineGroupCalls calls, const EngineGroupOptions& options, std::vector<int> numbers)
    : calls_(std::move(calls)),
      options_(options),
      numbers_(std::move(numbers)),
      send_bytes_(numbers_.size()),
      received_bytes_(numbers_.size()) {}

void Engine::check() const {
  if (!fault_) return;
  if (fault_->group_failed) throw GroupFailed(fault_->reason.kind, fault_->reason.text);
  throw Error(fault_->reason.kind, fault_->reason.text);
}

template <typename Call>
void Engine::call(std::string_view callback, std::string_view what, Call run) {
  check();
  const auto fault = [&](ErrorKind kind, std::string_view text, bool group_failed) {
    fault_ = Fault{because(kind, "rank {}: the engine's {} failed in '{}': {}",
                           numbers_[static_cast<std::size_t>(calls_.rank)], callback, what, text),
                   group_failed};
  };
  try {
    run();
  } catch (const GroupFailed& e) {
    fault(e.kind(), e.what(), true);
  } catch (const Error& e) {
    fault(e.kind(), e.what(), false);
  } catch (const std::bad_alloc&) {
    fault(ErrorKind::memory, "out of memory", false);
  } catch (const std::exception& e) {
    fault(ErrorKind::peer, e.what(), true);
  } catch (...) {
    fault(ErrorKind::peer, "an exception that is no std::exception", true);
  }
  check();
}

void Engine::all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) {
  check();
  if (all.empty()) return;
  const bool stage_in = !of_the_host() || overlap(mine, all);
  std::span<const std::byte> from = mine;
  if (stage_in) {
    const auto staged = grown(send_, mine.size());
    options_.copier->copy(mine, staged.data());
    from = staged;
  }
  const std::span<std::byte> to = of_the_host() ? all : grown(received_, all.size());
  call("all_gather", what, [&] { calls_.all_gather(from, to, what); });
  if (to.data() != all.data()) options_.copier->copy(to, all.data());
  shrink(send_);
  shrink(received_);
}

void Engine::all_gather_host(std::span<const std::byte> mine, std::span<std::byte> all,
                             std::string_view what) {
  call("all_gather", what, [&] {
    if (!mine.empty()) calls_.all_gather(mine, all, what);
  });
}

void Engine::all_to_all(std::span<const tensor::StridedBytes> send,
                        std::span<const std::span<std::byte>> received, std::string_view what) {
  check();
  std::size_t sends = 0;
  std::size_t receives = 0;
  for (std::size_t r = 0; r < numbers_.size(); ++r) {
    send_bytes_[r] = send[r].packed_bytes();
    received_bytes_[r] = std::ssize(received[r]);
    sends += static_cast<std::size_t>(send_bytes_[r]);
    receives += received[r].size();
  }
  const auto from = grown(send_, sends);
  std::size_t at = 0;
  for (std::size_t r = 0; r < numbers_.size(); at += static_cast<std::size_t>(send_bytes_[r++]))
    if (send_bytes_[r] > 0) options_.copier->pack(send[r], from.data() + at);
  std::span<std::byte> to;
  const bool direct = of_the_host() && adjoining(received, to);
  if (!direct) to = grown(received_, receives);
  call("all_to_all", what, [&] { calls_.all_to_all(from, send_bytes_, to, received_bytes_, what); });
  if (!direct) {
    at = 0;
    for (const auto part : received) {
      if (!part.empty()) options_.copier->copy(to.subspan(at, part.size()), part.data());
      at += part.size();
    }
  }
  shrink(send_);
  shrink(received_);
}

void Engine::all_reduce_sum(std::span<std::uint16_t> values, std::string_view what) {
  call("all_reduce_sum", what, [&] {
    if (!values.empty()) calls_.all_reduce_sum(values, what);
  });
}

void Engine::reduce_scatter_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> part,
                                std::string_view what) {
  call("reduce_scatter_sum", what, [&] {
    if (!part.empty()) calls_.reduce_scatter_sum(mine, part, what);
  });
}

void Engine::barrier(std::string_view what) {
  call("barrier", what, [&] { calls_.barrier(what); });
}

EngineGroupCalls Engine::split(std::span<const int> colours, std::string_view what) {
  EngineGroupCalls out;
  call("split", what, [&] { out = calls_.split(colours, what); });
  return out;
}

}  // namespace kerf::comm::engine
