#include "kerf/comm/tcp/hello.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "kerf/base/format.h"

namespace kerf::comm::tcp {

namespace {

constexpr std::array<char, 8> kMagic = {'k', 'e', 'r', 'f', 'j', 'o', 'i', 'n'};
constexpr std::uint32_t kVersion = 2;
constexpr std::chrono::seconds kPatience{5};      // for the words of one who has connected
constexpr std::size_t kMostComing = 256;          // at a time; others wait at the door,
constexpr std::chrono::milliseconds kStart{250};  // and then so long is enough to say all

}  // namespace

Token new_token() {
  std::random_device random;
  const auto half = [&] { return std::uint64_t{random()} << 32U | random(); };
  return {half(), half() | 1U};  // never the empty one
}

std::uint64_t job_number(std::string_view job) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : job) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001B3U;
  return hash;
}

Hello hello(int rank, int size, int port, const Run& run) {
  return {kMagic, kVersion, rank, size, port, run};
}

void refuse(const Socket& guest, const Reason& why) {
  const Answer answer{static_cast<std::int32_t>(why.kind), static_cast<std::uint32_t>(why.text.size()), {}};
  const auto deadline = Clock::now() + kPatience;
  if (send_all(guest, std::as_bytes(std::span(&answer, 1)), deadline))
    (void)send_all(guest, std::as_bytes(std::span(why.text)), deadline);
}

bool Reception::hear(Coming& from, std::set<int>& wanted, bool greet, std::vector<Guest>& guests) {
  const std::int64_t n = receive_some(from.socket, std::span(from.words).subspan(from.got));
  if (n > 0) from.got += static_cast<std::size_t>(n);
  Hello said;
  std::memcpy(&said, from.words.data(), sizeof(said));
  const std::size_t known = std::min(from.got, said.magic.size());
  const bool stranger =
      !std::equal(kMagic.begin(), kMagic.begin() + static_cast<std::ptrdiff_t>(known), said.magic.begin());
  if (n < 0 || stranger) {
    // One who says nothing and goes looked whether somebody is here.
    if (from.got > 0) ++strangers_;
    return true;
  }
  if (from.got < from.words.size()) return false;
  if (said.version != kVersion || said.run != run_) {
    ++strangers_;
    return true;
  }
  if (said.rank == nobody) {
    if (greet) (void)send_all(from.socket, std::as_bytes(std::span(welcome)), Clock::now() + kPatience);
    return true;
  }
  const Address peer = peer_of(from.socket);
  const auto wrong = [&](Reason why) {
    if (greet && send_all(from.socket, std::as_bytes(std::span(welcome)), Clock::now() + kPatience))
      refuse(from.socket, why);
    wrong_ = std::move(why);
    return true;
  };
  if (said.size != size_ || said.rank < 0 || said.rank >= size_)
    return wrong(because(ErrorKind::usage, "from {} came rank {} of {}: this run has {} rank{}", peer.host,
                         said.rank, said.size, size_, size_ == 1 ? "" : "s"));
  const auto before = std::ranges::find(guests, said.rank, &Guest::rank);
  if (before != guests.end() && closed(before->socket)) {
    guests.erase(before);  // it gave up, and came again
    wanted.insert(said.rank);
  }
  if (!wanted.contains(said.rank))
    return wrong(because(ErrorKind::usage, "there are two of rank {} of {}: the second came from {}",
                         said.rank, size_, peer.host));
  if (greet && !send_all(from.socket, std::as_bytes(std::span(welcome)), Clock::now() + kPatience))
    return true;
  wanted.erase(said.rank);
  guests.push_back({std::move(from.socket), said.rank, said.port});
  return true;
}

void Reception::make_room(Clock::time_point now) {
  strangers_ +=
      static_cast<int>(std::erase_if(coming_, [&](const Coming& c) { return now > c.since + kStart; }));
}

Verdict Reception::receive(std::set<int> wanted, bool greet, Clock::time_point deadline,
                           std::string_view where, std::chrono::milliseconds waited,
                           std::vector<Guest>& guests) {
  while (!wanted.empty()) {
    std::vector<pollfd> polled;
    polled.reserve(coming_.size() + 1);
    for (const Coming& c : coming_) polled.push_back({c.socket.fd(), POLLIN, 0});
    if (coming_.size() < kMostComing) polled.push_back({listener_.fd(), POLLIN, 0});
    constexpr int most = 200;
    (void)::poll(polled.data(), polled.size(), wait_ms(deadline, most));
    const auto now = Clock::now();
    const std::size_t before = coming_.size();
    for (std::size_t i = 0; i < before; ++i) {
      Coming& c = coming_[i];
      if (polled[i].revents != 0 && hear(c, wanted, greet, guests)) c.socket.close();
      if (c.socket && now > c.since + kPatience) {
        ++strangers_;
        c.socket.close();
      }
      if (wrong_) return wrong_;
    }
    std::erase_if(coming_, [](const Coming& c) { return !c.socket; });
    if (coming_.size() >= kMostComing) make_room(now);
    while (coming_.size() < kMostComing) {
      Socket s = accept(listener_);
      if (!s) break;
      coming_.push_back({std::move(s), {}, 0, now});
    }
    if (wanted.empty() || now < deadline) continue;
    std::string text =
        fmt::format("{} {} did not come to {} within {:g} s", wanted.size() == 1 ? "rank" : "ranks",
                    fmt::join(wanted, ", "), where, std::chrono::duration<double>(waited).count());
    if (strangers_ > 0)
      text += fmt::format(" ({} connection{} not of this run {} closed)", strangers_,
                          strangers_ == 1 ? "" : "s", strangers_ == 1 ? "was" : "were");
    return Reason{ErrorKind::peer, std::move(text)};
  }
  return std::nullopt;
}

}  // namespace kerf::comm::tcp
