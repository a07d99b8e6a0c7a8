#include "kerf/checkpoint/internal/module_patterns.h"

#include <fnmatch.h>
#include <regex.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "kerf/base/file.h"
#include "kerf/base/format.h"

namespace kerf::checkpoint::internal {

namespace {

constexpr std::string_view kRegex = "re:";
constexpr std::size_t kMostLength = 1000;
constexpr int kMostRepeats = 255;

// Reads a Python expression from left to right and writes a POSIX one.
class Translation {
 public:
  explicit Translation(std::string_view python) : from_(python) {}

  std::optional<std::string> run() {
    if (from_.size() > kMostLength) return std::nullopt;
    while (at_ < from_.size())
      if (!step()) return std::nullopt;
    return fmt::format("^({})", out_);
  }

 private:
  [[nodiscard]] bool next_is(std::string_view text) const { return from_.substr(at_).starts_with(text); }

  bool step() {
    const char c = from_[at_];
    if (c == '\\') return escape();
    if (c == '[') return bracket();
    if (c == '{') return count();
    if (next_is("(?:")) return take(3, "(");
    if (next_is("(?")) return false;
    if (c == '*' || c == '+' || c == '?') {
      // What a lazy or a possessive repetition matches is another matter; whether there is a match is not,
      // but for possessive ones.
      const bool lazy = at_ + 1 < from_.size() && from_[at_ + 1] == '?';
      if (at_ + 1 < from_.size() && from_[at_ + 1] == '+') return false;
      return take(lazy ? 2 : 1, std::string(1, c));
    }
    return take(1, std::string(1, c));
  }

  bool take(std::size_t count, const std::string& text) {
    at_ += count;
    out_ += text;
    return true;
  }

  // Python's classes in a bracket, or nothing for another escape of a letter or digit.
  static std::optional<std::string> class_of(char c) {
    switch (c) {
      case 'd':
        return "0-9";
      case 'w':
        return "A-Za-z0-9_";
      case 's':
        return " \t\n\r\f\v";
      default:
        return std::nullopt;
    }
  }

  static bool letter_or_digit(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  }

  bool escape() {
    if (at_ + 1 == from_.size()) return false;
    const char c = from_[at_ + 1];
    if (const auto members = class_of(c)) return take(2, fmt::format("[{}]", *members));
    if (letter_or_digit(c)) return false;
    return take(2, std::string(".[]{}()*+?^$|\\").find(c) == std::string::npos ? std::string(1, c)
                                                                               : std::string("\\") + c);
  }

  // "]" and "^" keep their places; a backslash is an escape in Python only.
  bool bracket() {
    std::string members;
    std::size_t at = at_ + 1;
    const bool negated = at < from_.size() && from_[at] == '^';
    if (negated) ++at;
    const std::size_t first = at;
    bool closing = false;
    bool dash = false;
    for (; at < from_.size(); ++at) {
      char c = from_[at];
      if (c == ']' && at != first) {
        closing = true;
        break;
      }
      if (c == '[') return false;  // POSIX reads "[:", "[." and "[=" as its own
      if (c == '\\') {
        if (++at == from_.size()) return false;
        c = from_[at];
        if (const auto inside = class_of(c)) {
          members += *inside;
          continue;
        }
        if (letter_or_digit(c) || c == ']' || c == '^') return false;
        if (c == '-') {
          dash = true;  // only at the end is it a member
          continue;
        }
      }
      members += c;
    }
    if (!closing || members.empty()) return false;
    if (!members.empty() && members[0] == '^' && !negated) return false;
    out_ += negated ? "[^" : "[";
    out_ += members;
    out_ += dash ? "-]" : "]";
    at_ = at + 1;
    return true;
  }

  bool count() {
    const std::size_t end = from_.find('}', at_);
    if (end == std::string_view::npos) return false;
    const std::string_view inside = from_.substr(at_ + 1, end - at_ - 1);
    if (inside.empty() || inside.find_first_not_of("0123456789,") != std::string_view::npos) return false;
    for (std::size_t begin = 0; begin < inside.size();) {
      const std::size_t comma = std::min(inside.find(',', begin), inside.size());
      int value = 0;
      const auto part = inside.substr(begin, comma - begin);
      if (!part.empty()) {
        const auto [last, error] = std::from_chars(part.data(), part.data() + part.size(), value);
        if (error != std::errc() || value > kMostRepeats) return false;
      }
      begin = comma + 1;
    }
    // Counts of counts multiply in the compiled automaton.
    if (++counts_ > 2) return false;
    return take(end - at_ + 1, fmt::format("{{{}}}", inside));
  }

  std::string_view from_;
  std::size_t at_ = 0;
  int counts_ = 0;
  std::string out_;
};

}  // namespace

std::optional<std::string> posix_of(std::string_view python) { return Translation(python).run(); }

struct ModulePattern::Compiled {
  explicit Compiled(const std::string& posix) : sound(regcomp(&regex, posix.c_str(), flags) == 0) {}
  ~Compiled() {
    if (sound) regfree(&regex);
  }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  Compiled(Compiled&&) = delete;
  Compiled& operator=(Compiled&&) = delete;

  static constexpr int flags = REG_EXTENDED | REG_NOSUB;
  regex_t regex{};
  bool sound;
};

ModulePattern::ModulePattern(std::string text, bool globs) : text_(std::move(text)) {
  if (text_.starts_with(kRegex)) {
    kind_ = Kind::regex;
    if (const auto posix = posix_of(std::string_view(text_).substr(kRegex.size())))
      if (auto compiled = std::make_shared<Compiled>(*posix); compiled->sound)
        compiled_ = std::move(compiled);
    return;
  }
  literal_ = text_.find_first_of("*?[\\");
  if (globs && literal_ != std::string::npos) kind_ = Kind::glob;
}

bool ModulePattern::may_cover(std::string_view prefix) const {
  if (kind_ == Kind::regex) return true;
  const std::string_view own =
      std::string_view(text_).substr(0, kind_ == Kind::glob ? literal_ : text_.size());
  const std::size_t both = std::min(own.size(), prefix.size());
  return own.substr(0, both) == prefix.substr(0, both);
}

bool ModulePattern::covers(std::string_view module) const {
  switch (kind_) {
    case Kind::glob:
      if (!module.starts_with(std::string_view(text_).substr(0, literal_))) return false;
      return fnmatch(text_.c_str(), std::string(module).c_str(), 0) == 0;
    case Kind::regex:
      if (compiled_ == nullptr)
        fail(ErrorKind::unsupported, "the pattern '{}' of the quantisation: kerf cannot read it",
             shown(text_));
      return regexec(&compiled_->regex, std::string(module).c_str(), 0, nullptr, 0) == 0;
    case Kind::name:
      break;
  }
  return module.starts_with(text_) && (module.size() == text_.size() || module[text_.size()] == '.');
}

}  // namespace kerf::checkpoint::internal
