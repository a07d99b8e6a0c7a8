#include "kerf/comm/tcp/mesh.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "kerf/base/format.h"

namespace kerf::comm::tcp {

namespace {

constexpr std::uint32_t kMagic = 0x6b657266;  // "kerf"
constexpr std::size_t kMostReason = 64UL * 1024;

// Before the words of a last message.
struct Farewell {
  std::int32_t kind = 0;  // 0: no reason
  std::int32_t group_failed = 0;
};

}  // namespace

Mesh::Mesh(int rank, std::vector<Socket> peers, std::chrono::milliseconds timeout)
    : rank_(rank), peers_(peers.size()), timeout_(timeout) {
  for (std::size_t r = 0; r < peers.size(); ++r) peers_[r].socket = std::move(peers[r]);
  polled_.reserve(peers_.size());
  polled_ranks_.reserve(peers_.size());
  missing_.reserve(peers_.size());
}

const internal::Ended* Mesh::left(int rank) const {
  const std::optional<internal::Ended>& left = peer(rank).left;
  return left ? &*left : nullptr;
}

void Mesh::begin(Peer& to, Kind kind, std::span<const std::byte> bytes) {
  const Head head{kMagic, static_cast<std::uint32_t>(kind), bytes.size()};
  std::memcpy(to.out_head.data(), &head, sizeof(head));
  to.out = bytes;
  to.out_got = 0;
  to.sending = true;
}

void Mesh::gone(Peer& peer) {
  if (peer.left) return;
  peer.left = internal::Ended{Reason{ErrorKind::peer, "its connection closed"}, false};
  peer.silent = true;
}

bool Mesh::push(Peer& to) {
  bool moved = false;
  while (to.sending && !to.deaf) {
    const bool head = to.out_got < to.out_head.size();
    const auto rest = head ? std::span<const std::byte>(to.out_head).subspan(to.out_got)
                           : to.out.subspan(to.out_got - to.out_head.size());
    if (rest.empty()) {
      to.sending = false;
      break;
    }
    const std::int64_t n = send_some(to.socket, rest);
    if (n < 0) {
      // What it said last may be on the way.
      to.deaf = to.drain = true;
      break;
    }
    if (n == 0) break;
    to.out_got += static_cast<std::size_t>(n);
    moved = true;
  }
  return moved;
}

// Bytes of a message whose head is here: where they belong, or nowhere.
bool Mesh::pull_body(Peer& from, Head head, bool last) {
  std::array<std::byte, 4096> nowhere;
  if (last) from.heard.resize(static_cast<std::size_t>(head.bytes));
  bool moved = false;
  while (from.body_got < head.bytes) {
    const std::size_t rest = static_cast<std::size_t>(head.bytes) - from.body_got;
    const auto to = last         ? std::span(from.heard).subspan(from.body_got)
                    : from.drain ? std::span<std::byte>(nowhere).first(std::min(rest, nowhere.size()))
                                 : from.into.subspan(from.body_got, rest);
    const std::int64_t n = receive_some(from.socket, to);
    if (n < 0) gone(from);
    if (n <= 0) return moved;
    from.body_got += static_cast<std::size_t>(n);
    moved = true;
  }
  from.received = from.body_got;
  from.head_got = from.body_got = 0;
  if (last) {
    Farewell told;
    std::memcpy(&told, from.heard.data(), sizeof(told));
    from.left.emplace();
    from.left->group_failed = told.group_failed != 0;
    if (told.kind != 0)
      from.left->reason = Reason{static_cast<ErrorKind>(told.kind),
                                 std::string(reinterpret_cast<const char*>(from.heard.data()) + sizeof(told),
                                             from.heard.size() - sizeof(told))};
  } else if (!from.drain) {
    from.wanted = false;
  }
  return true;
}

bool Mesh::pull(Peer& from, Kind kind) {
  bool moved = false;
  while ((from.wanted || from.drain) && !from.left) {
    if (from.head_got < from.head.size()) {
      const std::int64_t n = receive_some(from.socket, std::span(from.head).subspan(from.head_got));
      if (n < 0) gone(from);
      if (n <= 0) return moved;
      from.head_got += static_cast<std::size_t>(n);
      moved = true;
      continue;
    }
    Head head;
    std::memcpy(&head, from.head.data(), sizeof(head));
    const bool last = head.kind == static_cast<std::uint32_t>(Kind::leave);
    if (head.magic != kMagic ||
        (last && (head.bytes < sizeof(Farewell) || head.bytes > sizeof(Farewell) + kMostReason))) {
      gone(from);
      return moved;
    }
    if (!last && !from.drain && from.body_got == 0) {
      const bool fits = kind == Kind::post ? head.bytes <= from.into.size() : head.bytes == from.into.size();
      if (head.kind != static_cast<std::uint32_t>(kind) || !fits) {
        from.left = internal::Ended{
            because(ErrorKind::bug, "its message of {} bytes is none of this collective's", head.bytes),
            false};
        return moved;
      }
    }
    const bool some = pull_body(from, head, last);
    moved = moved || some;
    if (!some || from.head_got != 0) return moved;
  }
  return moved;
}

// One look at all who are waited for; whether bytes moved.
bool Mesh::wait(Kind kind, Clock::time_point deadline) {
  polled_.clear();
  polled_ranks_.clear();
  for (int r = 0; r < size(); ++r) {
    const Peer& p = peer(r);
    int events = 0;
    if ((p.wanted || p.drain) && !p.left) events |= POLLIN;
    if (p.sending && !p.deaf) events |= POLLOUT;
    if (events == 0) continue;
    polled_.push_back({p.socket.fd(), static_cast<short>(events), 0});
    polled_ranks_.push_back(r);
  }
  if (polled_.empty()) return false;
  constexpr int most = 200;
  (void)::poll(polled_.data(), polled_.size(), wait_ms(deadline, most));
  bool moved = false;
  for (std::size_t i = 0; i < polled_.size(); ++i) {
    if (polled_[i].revents == 0) continue;
    Peer& p = peer(polled_ranks_[i]);
    if (p.sending && !p.deaf) moved = push(p) || moved;
    if ((p.wanted || p.drain) && !p.left) moved = pull(p, kind) || moved;
  }
  return moved;
}

// Nobody's memory is touched from here on. A rank in the middle of a message cannot be told anything.
void Mesh::give_up() {
  for (Peer& p : peers_) {
    if (p.sending && p.out_got > 0) p.deaf = true;
    p.sending = false;
    p.wanted = false;
    p.out = {};
    p.into = {};
    p.drain = true;
  }
}

Mesh::Result Mesh::exchange(Kind kind, std::span<const Out> out, std::span<const In> in) {
  for (const In& i : in) {
    Peer& p = peer(i.from);
    p.into = i.bytes;
    p.received = 0;
    p.wanted = true;
  }
  for (const Out& o : out) {
    begin(peer(o.to), kind, o.bytes);
    (void)push(peer(o.to));
  }
  missing_.clear();
  const auto note = [&](bool left_only) {
    for (int r = 0; r < size(); ++r)
      if (r != rank_ && (peer(r).sending || peer(r).wanted) && (!left_only || peer(r).left))
        missing_.push_back(r);
    return !missing_.empty();
  };
  auto deadline = Clock::now() + timeout_;
  for (;;) {
    const auto open = [](const Peer& p) { return p.sending || p.wanted; };
    if (std::ranges::none_of(peers_, open)) return Result::done;
    const bool moved = wait(kind, deadline);
    if (note(true)) {
      give_up();
      return Result::left;
    }
    if (moved && kind == Kind::data) deadline = Clock::now() + timeout_;
    if (!moved && Clock::now() >= deadline) {
      (void)note(false);
      give_up();
      return Result::late;
    }
  }
}

void Mesh::leave(const Verdict& reason, bool group_failed) {
  give_up();
  const Farewell told{reason ? static_cast<std::int32_t>(reason->kind) : 0, group_failed ? 1 : 0};
  const std::string_view text =
      reason ? std::string_view(reason->text).substr(0, kMostReason) : std::string_view();
  for (int r = 0; r < size(); ++r) {
    Peer& p = peer(r);
    if (r == rank_) continue;
    if (p.deaf) {
      (void)::shutdown(p.socket.fd(), SHUT_WR);
      continue;
    }
    p.words.resize(sizeof(told) + text.size());
    std::memcpy(p.words.data(), &told, sizeof(told));
    if (!text.empty()) std::memcpy(p.words.data() + sizeof(told), text.data(), text.size());
    begin(p, Kind::leave, p.words);
    (void)push(p);
  }
}

bool Mesh::all_left(Clock::time_point deadline) {
  for (;;) {
    bool all = true;
    for (int r = 0; r < size(); ++r) {
      const Peer& p = peer(r);
      if (r != rank_ && (!p.left || (p.sending && !p.deaf))) all = false;
    }
    if (all) return true;
    if (Clock::now() >= deadline) return false;
    (void)wait(Kind::leave, deadline);
  }
}

}  // namespace kerf::comm::tcp
