#include "kerf/comm/tcp/socket.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <system_error>

#include "kerf/base/format.h"

namespace kerf::comm::tcp {

namespace {

std::string words(int error) { return std::generic_category().message(error); }

sockaddr* generic(sockaddr_storage& at) { return reinterpret_cast<sockaddr*>(&at); }

void set(int fd, int level, int option) {
  const int on = 1;
  (void)setsockopt(fd, level, option, &on, sizeof(on));
}

// Of a connection: small messages leave at once, and a host that is gone is noticed some day.
void tune(int fd) {
  set(fd, IPPROTO_TCP, TCP_NODELAY);
  set(fd, SOL_SOCKET, SO_KEEPALIVE);
}

std::string numeric(const sockaddr* at, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  if (getnameinfo(at, length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  const std::string text = host.data();
  constexpr std::string_view mapped = "::ffff:";
  return text.starts_with(mapped) ? text.substr(mapped.size()) : text;
}

// A socket that listens for both kinds of addresses, or for IPv4's where a host has no others.
Socket open_listener(int family, int port, int& error) {
  Socket s(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  error = errno;
  if (!s) return {};
  set(s.fd(), SOL_SOCKET, SO_REUSEADDR);
  sockaddr_storage at{};
  socklen_t length = 0;
  if (family == AF_INET6) {
    const int off = 0;
    (void)setsockopt(s.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    auto* in = reinterpret_cast<sockaddr_in6*>(&at);
    in->sin6_family = AF_INET6;
    in->sin6_addr = in6addr_any;
    in->sin6_port = htons(static_cast<std::uint16_t>(port));
    length = sizeof(*in);
  } else {
    auto* in = reinterpret_cast<sockaddr_in*>(&at);
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(INADDR_ANY);
    in->sin_port = htons(static_cast<std::uint16_t>(port));
    length = sizeof(*in);
  }
  constexpr int backlog = 1024;
  if (::bind(s.fd(), generic(at), length) == 0 && ::listen(s.fd(), backlog) == 0) return s;
  error = errno;
  return {};
}

// Waits until the descriptor is ready; false: the time is over.
bool ready(int fd, int events, Clock::time_point deadline) {
  for (;;) {
    pollfd p{fd, static_cast<short>(events), 0};
    constexpr int most = 1000;
    const int n = ::poll(&p, 1, wait_ms(deadline, most));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
    if (Clock::now() >= deadline) return false;
  }
}

// 0, or an errno.
int connect_to(const Socket& s, const sockaddr* at, socklen_t length, Clock::time_point deadline) {
  if (::connect(s.fd(), at, length) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!ready(s.fd(), POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(s.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

// Which is its own peer: a port that nobody listens on may be given to the one who asks for it.
bool to_itself(const Socket& s) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_length = sizeof(own);
  socklen_t peer_length = sizeof(peer);
  if (getsockname(s.fd(), generic(own), &own_length) != 0) return false;
  if (getpeername(s.fd(), generic(peer), &peer_length) != 0) return false;
  return own_length == peer_length &&
         numeric(generic(own), own_length) == numeric(generic(peer), peer_length) &&
         port_of(s) == peer_of(s).port;
}

int port_in(const sockaddr_storage& at) {
  if (at.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&at)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&at)->sin_port);
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Socket::close() noexcept {
  if (fd_ >= 0) (void)::close(fd_);
  fd_ = -1;
}

std::string text(const Address& address) {
  return address.host.find(':') == std::string::npos ? fmt::format("{}:{}", address.host, address.port)
                                                     : fmt::format("[{}]:{}", address.host, address.port);
}

Socket listen(int port) {
  int error = 0;
  for (const int family : {AF_INET6, AF_INET})
    if (Socket s = open_listener(family, port, error)) return s;
  fail(ErrorKind::usage, "cannot listen on port {}: {}", port, words(error));
}

int port_of(const Socket& socket) {
  sockaddr_storage at{};
  socklen_t length = sizeof(at);
  if (getsockname(socket.fd(), generic(at), &length) != 0) return 0;
  return port_in(at);
}

Address peer_of(const Socket& socket) {
  sockaddr_storage at{};
  socklen_t length = sizeof(at);
  if (getpeername(socket.fd(), generic(at), &length) != 0) return {};
  return {numeric(generic(at), length), port_in(at)};
}

Socket accept(const Socket& listener) {
  Socket s(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (s) tune(s.fd());
  return s;
}

Connected connect(const Address& to, Clock::time_point deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(to.host.c_str(), std::to_string(to.port).c_str(), &hints, &found);
  if (code != 0) return {{}, gai_strerror(code)};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  Connected out;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    Socket s(::socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!s) {
      out.why = words(errno);
      continue;
    }
    const int error = connect_to(s, a->ai_addr, a->ai_addrlen, deadline);
    if (error != 0) {
      out.why = words(error);
      continue;
    }
    if (to_itself(s)) {
      out.why = words(ECONNREFUSED);
      continue;
    }
    tune(s.fd());
    return {std::move(s), {}};
  }
  return out;
}

std::int64_t send_some(const Socket& socket, std::span<const std::byte> bytes) {
  if (bytes.empty()) return 0;
  for (;;) {
    const auto n = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) return n;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
  }
}

std::int64_t receive_some(const Socket& socket, std::span<std::byte> bytes) {
  if (bytes.empty()) return 0;
  for (;;) {
    const auto n = ::recv(socket.fd(), bytes.data(), bytes.size(), 0);
    if (n > 0) return n;
    if (n == 0) return -1;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
  }
}

bool send_all(const Socket& socket, std::span<const std::byte> bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const std::int64_t n = send_some(socket, bytes);
    if (n < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    if (n == 0 && !ready(socket.fd(), POLLOUT, deadline)) return false;
  }
  return true;
}

bool receive_all(const Socket& socket, std::span<std::byte> bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const std::int64_t n = receive_some(socket, bytes);
    if (n < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    if (n == 0 && !ready(socket.fd(), POLLIN, deadline)) return false;
  }
  return true;
}

bool closed(const Socket& socket) {
  std::byte one{};
  const auto n = ::recv(socket.fd(), &one, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

int wait_ms(Clock::time_point deadline, int most) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, most));
}

std::vector<std::string> own_addresses() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return {"127.0.0.1"};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(found, freeifaddrs);
  std::vector<std::string> near;
  std::vector<std::string> out;
  for (const ifaddrs* i = found; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const std::string host =
        numeric(i->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (host.empty() || host.find('%') != std::string::npos) continue;  // of a link alone
    ((i->ifa_flags & IFF_LOOPBACK) != 0 ? near : out).push_back(host);
  }
  out.insert(out.end(), near.begin(), near.end());
  return out;
}

bool is_loopback(const std::string& host) { return host.starts_with("127.") || host == "::1"; }

}  // namespace kerf::comm::tcp
