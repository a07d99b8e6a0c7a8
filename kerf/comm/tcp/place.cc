#include "kerf/comm/tcp/place.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "kerf/base/format.h"

namespace kerf::comm::tcp {

namespace {

constexpr std::string_view kFirst = "kerf rendezvous 1";
constexpr std::size_t kMostBytes = 64UL * 1024;
constexpr int kMostPort = 65'535;

bool number(std::string_view text, std::uint64_t& to, int base) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), to, base);
  return code == std::errc() && end == text.data() + text.size();
}

}  // namespace

void write_place(const std::string& path, const Place& place) {
  std::string text = fmt::format("{}\ntoken {:x} {:x}\n", kFirst, place.token[0], place.token[1]);
  for (const Address& a : place.addresses) text += fmt::format("at {} {}\n", a.port, a.host);
  text += "end\n";
  const std::string beside = fmt::format("{}.{}", path, ::getpid());
  const Socket file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const bool written = file && ::write(file.fd(), text.data(), text.size()) == std::ssize(text) &&
                       ::fsync(file.fd()) == 0 && std::rename(beside.c_str(), path.c_str()) == 0;
  if (written) return;
  const int error = errno;
  (void)::unlink(beside.c_str());
  fail(ErrorKind::usage, "{}: cannot write it: {}", path, std::generic_category().message(error));
}

bool read_place(const std::string& path, Place& place, std::string& why) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    why = fmt::format("{} is not there", path);
    return false;
  }
  std::string text(kMostBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  std::istringstream lines(text);
  std::string line;
  place = {};
  bool ended = false;
  bool sound = std::getline(lines, line) && line == kFirst;
  while (sound && !ended && std::getline(lines, line)) {
    std::istringstream words(line);
    std::string word;
    std::string first;
    std::string second;
    words >> word;
    if (word == "end") {
      ended = true;
      continue;
    }
    words >> first >> second;
    std::uint64_t port = 0;
    if (word == "token") {
      sound = number(first, place.token[0], 16) && number(second, place.token[1], 16);
    } else if (word == "at") {
      sound = number(first, port, 10) && port > 0 && port <= kMostPort && !second.empty();
      place.addresses.push_back({second, static_cast<int>(port)});
    } else {
      sound = false;
    }
  }
  if (sound && ended && !place.addresses.empty() && place.token != Token{}) return true;
  why = fmt::format("{} is not a file of a rendezvous", path);
  return false;
}

void remove_place(const std::string& path, const Token& token) noexcept {
  (void)attempt([&] {
    Place place;
    std::string why;
    if (read_place(path, place, why) && place.token == token) (void)::unlink(path.c_str());
  });
}

}  // namespace kerf::comm::tcp
