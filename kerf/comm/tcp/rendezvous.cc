#include "kerf/comm/tcp/rendezvous.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/comm/tcp/hello.h"
#include "kerf/comm/tcp/place.h"

namespace kerf::comm::tcp {

namespace {

constexpr std::chrono::seconds kPatience{5};  // for an answer that comes at once
constexpr std::chrono::milliseconds kAgain{100};
constexpr std::chrono::milliseconds kNear{1'000};  // for one who may be there
constexpr std::uint32_t kMostAnswer = 1U << 20U;

// Where a rank is reached, in the table that rank 0 sends. An empty host: where rank 0 is.
struct Entry {
  std::array<char, 64> host{};
  std::int32_t port = 0;
};

double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

[[noreturn]] void fail_peer(const Reason& why) { throw GroupFailed(why.kind, why.text); }

std::set<int> ranks_between(int first, int end) {
  std::set<int> out;
  for (int r = first; r < end; ++r) out.insert(r);
  return out;
}

// Connects and says `mine`; whether it was welcomed before `deadline`.
bool welcomed(const Socket& socket, const Hello& mine, Clock::time_point deadline) {
  std::array<char, welcome.size()> greeting{};
  return send_all(socket, std::as_bytes(std::span(&mine, 1)), deadline) &&
         receive_all(socket, std::as_writable_bytes(std::span(greeting)), deadline) && greeting == welcome;
}

// Whether rank 0 of that run waits at one of its addresses.
bool alive(const Place& place) {
  return std::ranges::any_of(place.addresses, [&](const Address& address) {
    const auto deadline = Clock::now() + kNear;
    const auto [socket, why] = connect(address, deadline);
    return socket && welcomed(socket, hello(nobody, 0, 0, place.run), deadline);
  });
}

// A connection to rank 0 and what it answered, or why this try was none.
struct Joined {
  Socket socket;
  std::vector<Entry> table;
  Token token{};
  Verdict refused;
  std::string why;
};

class Meeting {
 public:
  explicit Meeting(const TcpOptions& options)
      : options_(options), begun_(Clock::now()), peers_(static_cast<std::size_t>(options.size)) {}

  std::vector<Socket> run() {
    if (options_.rank == 0)
      receive_all_ranks();
    else
      join();
    return std::move(peers_);
  }

 private:
  [[nodiscard]] Clock::time_point deadline() const { return begun_ + options_.timeout; }

  void receive_all_ranks() {
    const Socket listener = listen(options_.file.empty() ? options_.port : 0);
    Run run = any_run();
    std::string where = fmt::format("port {} of rank 0's host", port_of(listener));
    if (!options_.file.empty()) {
      run.token = new_token();
      Place place{{}, run};
      for (const std::string& host : own_addresses()) place.addresses.push_back({host, port_of(listener)});
      write_place(options_.file, place, [](const Place& there) { return alive(there); });
      where = fmt::format("the rendezvous of {}", options_.file);
    }
    std::vector<Reception::Guest> guests;
    Reception reception(listener, options_.size, run);
    const Verdict missing =
        reception.receive(ranks_between(1, options_.size), true, deadline(), where, options_.timeout, guests);
    if (!options_.file.empty()) remove_place(options_.file, run.token);
    if (missing) {
      for (const auto& guest : guests) refuse(guest.socket, *missing);
      fail_peer(*missing);
    }
    std::vector<Entry> table(static_cast<std::size_t>(options_.size));
    for (const auto& guest : guests) {
      Entry& entry = table[static_cast<std::size_t>(guest.rank)];
      const std::string host = peer_of(guest.socket).host;
      if (!is_loopback(host))
        std::copy_n(host.begin(), std::min(host.size(), entry.host.size() - 1), entry.host.begin());
      entry.port = guest.port;
    }
    const auto rows = std::as_bytes(std::span(table));
    const Answer answer{0, static_cast<std::uint32_t>(rows.size()), new_token()};
    for (auto& guest : guests) {
      const auto until = Clock::now() + kPatience;
      if (!send_all(guest.socket, std::as_bytes(std::span(&answer, 1)), until) ||
          !send_all(guest.socket, rows, until))
        fail_peer(because(ErrorKind::peer, "rank {} went away while the ranks met", guest.rank));
      peers_[static_cast<std::size_t>(guest.rank)] = std::move(guest.socket);
    }
  }

  [[nodiscard]] Run any_run() const { return {{}, job_number(options_.job)}; }

  // Where rank 0 says it is, or why that is not known yet.
  [[nodiscard]] std::optional<Place> look(std::string& why) const {
    Place place{{{options_.host, options_.port}}, any_run()};
    if (options_.file.empty()) return place;
    const Found found = read_place(options_.file, place, why);
    if (found == Found::foreign) fail_peer({ErrorKind::usage, why});
    if (found == Found::nothing) return std::nullopt;
    if (place.run.job == any_run().job) return place;
    why = fmt::format("{} is another job's", options_.file);
    return std::nullopt;
  }

  // To any address of rank 0's.
  Joined try_to_join(const Place& place, int port) const {
    Joined out;
    for (const Address& address : place.addresses) {
      const auto now = Clock::now();
      auto [socket, why] = connect(address, std::min(deadline(), now + kPatience));
      if (!socket) {
        out.why = fmt::format("{}: {}", text(address), why);
        continue;
      }
      const auto soon = Clock::now() + std::min<std::chrono::milliseconds>(kPatience, options_.timeout);
      if (!welcomed(socket, hello(options_.rank, options_.size, port, place.run), soon)) {
        out.why = fmt::format("who listens at {} is not rank 0 of this run", text(address));
        continue;
      }
      // From here on rank 0 says how it ends, after as long a time as this rank would wait.
      const auto late = Clock::now() + options_.timeout + kPatience;
      Answer answer;
      std::vector<std::byte> bytes;
      bool whole = receive_all(socket, std::as_writable_bytes(std::span(&answer, 1)), late);
      whole = whole && answer.bytes <= kMostAnswer;
      if (whole) {
        bytes.resize(answer.bytes);
        whole = receive_all(socket, bytes, late);
      }
      if (!whole) {
        out.why = fmt::format("rank 0 at {} went away before all ranks were there", text(address));
        return out;
      }
      if (answer.kind != 0) {
        out.refused = Reason{static_cast<ErrorKind>(answer.kind),
                             std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
        return out;
      }
      if (bytes.size() != static_cast<std::size_t>(options_.size) * sizeof(Entry)) {
        out.why = fmt::format("rank 0 at {} says nothing that this kerf understands", text(address));
        return out;
      }
      out.table.resize(static_cast<std::size_t>(options_.size));
      std::memcpy(out.table.data(), bytes.data(), bytes.size());
      out.token = answer.token;
      out.socket = std::move(socket);
      return out;
    }
    return out;
  }

  void join() {
    const Socket listener = listen(0);
    Joined joined;
    for (;;) {
      std::string why;
      if (const auto place = look(why)) {
        joined = try_to_join(*place, port_of(listener));
        why = joined.why;
      }
      if (joined.refused) fail_peer(*joined.refused);
      if (joined.socket) break;
      if (Clock::now() >= deadline())
        fail_peer(because(ErrorKind::peer, "rank {} did not find rank 0 within {:g} s: {}", options_.rank,
                          seconds(options_.timeout), why));
      std::this_thread::sleep_for(kAgain);
    }
    peers_[0] = std::move(joined.socket);
    begun_ = Clock::now();
    connect_pairs(listener, joined);
  }

  // To the ranks below, from those above.
  void connect_pairs(const Socket& listener, const Joined& joined) {
    const std::string near = peer_of(peers_[0]).host;
    const Hello mine = hello(options_.rank, options_.size, 0, {joined.token, any_run().job});
    for (int r = 1; r < options_.rank; ++r) {
      const Entry& entry = joined.table[static_cast<std::size_t>(r)];
      const std::string host(entry.host.data(), strnlen(entry.host.data(), entry.host.size()));
      const Address address{host.empty() ? near : host, entry.port};
      auto [socket, why] = connect(address, deadline());
      if (!socket || !send_all(socket, std::as_bytes(std::span(&mine, 1)), deadline()))
        fail_peer(because(ErrorKind::peer, "rank {} does not reach rank {} at {}: {}", options_.rank, r,
                          text(address), why.empty() ? "the connection closed" : why));
      peers_[static_cast<std::size_t>(r)] = std::move(socket);
    }
    std::vector<Reception::Guest> guests;
    Reception reception(listener, options_.size, {joined.token, any_run().job});
    if (const Verdict missing =
            reception.receive(ranks_between(options_.rank + 1, options_.size), false, deadline(),
                              fmt::format("rank {}", options_.rank), options_.timeout, guests))
      fail_peer(*missing);
    for (auto& guest : guests) peers_[static_cast<std::size_t>(guest.rank)] = std::move(guest.socket);
  }

  TcpOptions options_;
  Clock::time_point begun_;
  std::vector<Socket> peers_;
};

}  // namespace

std::vector<Socket> rendezvous(const TcpOptions& options) {
  if (options.size == 1) return std::vector<Socket>(1);
  return Meeting(options).run();
}

}  // namespace kerf::comm::tcp
