#include "kerf/comm/tcp/place.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <sstream>
#include <string_view>
#include <utility>

#include "kerf/base/file.h"
#include "kerf/base/format.h"

namespace kerf::comm::tcp {

namespace {

constexpr std::string_view kAny = "kerf rendezvous ";  // of any version
constexpr std::string_view kFirst = "kerf rendezvous 2";
constexpr std::int64_t kMostBytes = 64L * 1024;
constexpr int kMostPort = 65'535;

bool number(std::string_view text, std::uint64_t& to, int base) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), to, base);
  return code == std::errc() && end == text.data() + text.size();
}

// Whether the text is a place, whole.
bool parse_place(const std::string& text, Place& place) {
  std::istringstream lines(text);
  std::string line;
  place = {};
  if (!std::getline(lines, line) || line != kFirst) return false;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string word;
    std::string first;
    std::string second;
    words >> word >> first >> second;
    std::uint64_t port = 0;
    if (word == "end") return !place.addresses.empty() && place.run.token != Token{};
    if (word == "token") {
      if (!number(first, place.run.token[0], 16) || !number(second, place.run.token[1], 16)) return false;
    } else if (word == "job") {
      if (!number(first, place.run.job, 16)) return false;
    } else if (word == "at") {
      if (!number(first, port, 10) || port == 0 || port > kMostPort || second.empty()) return false;
      place.addresses.push_back({second, static_cast<int>(port)});
    } else {
      return false;
    }
  }
  return false;
}

// A file that is gone at the end, unless it was given another name.
class Temporary {
 public:
  explicit Temporary(std::string path)
      : path_(std::move(path)), file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {}
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (file_) (void)::unlink(path_.c_str());
  }

  // Each says whether it did; errno says why not.
  [[nodiscard]] bool fill(std::string_view text) const {
    return file_ && ::write(file_.fd(), text.data(), text.size()) == std::ssize(text) &&
           ::fsync(file_.fd()) == 0;
  }
  // Where nothing is.
  [[nodiscard]] bool link_to(const std::string& to) const { return ::link(path_.c_str(), to.c_str()) == 0; }
  [[nodiscard]] bool move_to(const std::string& to) const {
    return std::rename(path_.c_str(), to.c_str()) == 0;
  }

 private:
  std::string path_;
  Socket file_;
};

}  // namespace

Found read_place(const std::string& path, Place& place, std::string& why) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    why = errno == ENOENT ? fmt::format("{} is not there", path)
                          : fmt::format("{}: {}", path, os_reason(errno));
    return Found::nothing;
  }
  if (!S_ISREG(status.st_mode)) {
    why = fmt::format("{} is {}, wanted a file of a rendezvous, an empty one or none", path,
                      S_ISDIR(status.st_mode)   ? "a directory"
                      : S_ISLNK(status.st_mode) ? "a link"
                                                : "no regular file");
    return Found::foreign;
  }
  std::string text;
  const Verdict unread = attempt([&] {
    const OpenedFile file = open_regular(path);
    text.resize(static_cast<std::size_t>(std::min(file.bytes, kMostBytes)));
    read_exactly(file, path, 0, std::as_writable_bytes(std::span(text)));
  });
  if (unread) {  // it may have gone meanwhile
    why = unread->text;
    return Found::nothing;
  }
  if (!text.empty() && !text.starts_with(kAny)) {
    why = fmt::format("{} holds something else, wanted a file of a rendezvous, an empty one or none", path);
    return Found::foreign;
  }
  if (parse_place(text, place)) return Found::place;
  why = text.empty() ? fmt::format("{} is empty", path)
                     : fmt::format("{} is no whole file of this version's rendezvous", path);
  return Found::nothing;
}

void write_place(const std::string& path, const Place& place, FunctionRef<bool(const Place&)> alive) {
  std::string text = fmt::format("{}\ntoken {:x} {:x}\njob {:x}\n", kFirst, place.run.token[0],
                                 place.run.token[1], place.run.job);
  for (const Address& a : place.addresses) text += fmt::format("at {} {}\n", a.port, a.host);
  text += "end\n";
  const auto written = [&](bool done) {
    if (!done) fail(ErrorKind::usage, "{}: cannot write it: {}", path, os_reason(errno));
  };
  const Temporary file(fmt::format("{}.{:x}", path, place.run.token[0]));
  written(file.fill(text));
  if (file.link_to(path)) return;
  // Something is there, or the disk knows no links.
  Place there;
  std::string why;
  const Found found = read_place(path, there, why);
  if (found == Found::foreign) fail(ErrorKind::usage, "{}", why);
  if (found == Found::place && alive(there))
    fail(ErrorKind::usage, "{}: the ranks of another run are meeting there", path);
  written(file.move_to(path));
}

void remove_place(const std::string& path, const Token& token) noexcept {
  (void)attempt([&] {
    Place place;
    std::string why;
    if (read_place(path, place, why) == Found::place && place.run.token == token)
      (void)::unlink(path.c_str());
  });
}

}  // namespace kerf::comm::tcp
