// The processes that met, as a program.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/comm/internal/ended.h"
#include "kerf/comm/internal/host.h"
#include "kerf/comm/tcp.h"
#include "kerf/comm/tcp/group.h"
#include "kerf/comm/tcp/mesh.h"
#include "kerf/comm/tcp/rendezvous.h"

namespace kerf::comm {

namespace {

using tcp::Clock;

constexpr int kMostPort = 65'535;

class Processes final : public Program {
 public:
  explicit Processes(const TcpOptions& options)
      : mesh_(options.rank, tcp::rendezvous(options), options.timeout) {
    std::vector<int> all(static_cast<std::size_t>(options.size));
    std::iota(all.begin(), all.end(), 0);
    group_ = tcp::make_group(mesh_, std::move(all));
  }

  [[nodiscard]] Group& group() override { return *group_; }

  [[nodiscard]] ProgramHost host() override {
    std::array<char, 256> name{};
    (void)::gethostname(name.data(), name.size() - 1);
    return internal::host_of(*group_, name.data());
  }

  [[nodiscard]] Verdict settle(const Verdict& mine, bool group_failed) noexcept override {
    Verdict cause = mine;
    const Verdict failed = attempt([&] {
      constexpr std::chrono::milliseconds longest{4'000};
      mesh_.leave(mine, group_failed);
      const auto wait = mine ? std::min(mesh_.timeout(), longest) : mesh_.timeout();
      (void)mesh_.all_left(Clock::now() + wait);
      std::vector<internal::Ended> ends(static_cast<std::size_t>(mesh_.size()));
      std::vector<int> missing;
      for (int r = 0; r < mesh_.size(); ++r) {
        const internal::Ended* left = mesh_.left(r);
        if (left == nullptr && r != mesh_.rank()) missing.push_back(r);
        // Of one that said nothing, whoever waited for it says what for.
        if (left != nullptr && (!mesh_.silent(r) || !mine)) ends[static_cast<std::size_t>(r)] = *left;
      }
      ends[static_cast<std::size_t>(mesh_.rank())] = {mine, group_failed};
      cause = internal::settled_cause(ends, mesh_.rank(), missing, wait);
    });
    if (failed && !cause) cause = failed;
    return cause;
  }

  void end(int /*code*/) noexcept override { (void)std::fflush(nullptr); }

 private:
  tcp::Mesh mesh_;
  std::unique_ptr<Group> group_;
};

void check(const TcpOptions& o) {
  if (o.size < 1 || o.size > most_tcp_ranks || o.rank < 0 || o.rank >= o.size)
    fail(ErrorKind::usage, "rank {} of {} over TCP, wanted one of 1 to {}", o.rank, o.size, most_tcp_ranks);
  if (o.timeout < std::chrono::milliseconds{1})
    fail(ErrorKind::usage, "ranks over TCP with a timeout of {} ms, wanted 1 or more", o.timeout.count());
  if (o.size == 1 || !o.file.empty()) return;
  if (o.host.empty())
    fail(ErrorKind::usage, "rank {} of {} is not told where rank 0 is: neither a host nor a file", o.rank,
         o.size);
  if (o.port < 1 || o.port > kMostPort)
    fail(ErrorKind::usage, "rank 0 at port {}, wanted 1 to {}", o.port, kMostPort);
}

}  // namespace

std::unique_ptr<Program> start_tcp(const TcpOptions& options) {
  check(options);
  return std::make_unique<Processes>(options);
}

}  // namespace kerf::comm
