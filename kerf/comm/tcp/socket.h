// TCP sockets as values: addresses, listening, connecting. All of them are non-blocking, and no call here
// waits longer than it is told (but for the resolver of names).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kerf/base/error.h"

namespace kerf::comm::tcp {

using Clock = std::chrono::steady_clock;

// A descriptor that is closed with its owner.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) noexcept : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { close(); }

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }
  void close() noexcept;

 private:
  int fd_ = -1;
};

struct Address {
  std::string host;  // a name or a number
  int port = 0;
};
// "host:port", with brackets where the host has colons.
std::string text(const Address& address);

// Listens on all of this host's addresses; port 0: one that is free. Error{usage} where it is taken.
Socket listen(int port);
int port_of(const Socket& socket);
// Who is at the other end; an empty host where that is not known.
Address peer_of(const Socket& socket);

// The next connection; none where nobody is there.
Socket accept(const Socket& listener);

// A connection, or why there is none: refused, unreachable, no such name, or the time is over.
struct Connected {
  Socket socket;
  std::string why;
};
Connected connect(const Address& to, Clock::time_point deadline);

// As many bytes as can be moved now. -1: the other end is gone.
std::int64_t send_some(const Socket& socket, std::span<const std::byte> bytes);
std::int64_t receive_some(const Socket& socket, std::span<std::byte> bytes);

// All of them, or false: gone, or the time is over.
bool send_all(const Socket& socket, std::span<const std::byte> bytes, Clock::time_point deadline);
bool receive_all(const Socket& socket, std::span<std::byte> bytes, Clock::time_point deadline);

// Whether the other end has closed and nothing of it is left to read.
bool closed(const Socket& socket);

// What poll() waits for, from now on to the deadline: milliseconds, 0 to `most`.
int wait_ms(Clock::time_point deadline, int most);

// The addresses by which other hosts may reach this one, then the loopback's, as numbers.
std::vector<std::string> own_addresses();
// Whether the number is of the loopback.
bool is_loopback(const std::string& host);

}  // namespace kerf::comm::tcp
