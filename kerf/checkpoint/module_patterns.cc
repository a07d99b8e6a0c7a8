#include "kerf/checkpoint/internal/module_patterns.h"

#include <fnmatch.h>
#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <set>

#include "kerf/base/file.h"
#include "kerf/base/format.h"

namespace kerf::checkpoint::internal {

namespace {

constexpr std::string_view kRegex = "re:";
constexpr std::size_t kMostLength = 1000;
// For an expression's program and the automaton made of it while it is used.
constexpr std::int64_t kMostBytes = std::int64_t{64} << 10;
// Of one character against one instruction or one character of a glob.
constexpr std::int64_t kStepCost = 3;

// Escapes and groups that RE2 has and Python has not, or reads as something else; and counts without a lower
// bound, which are characters to RE2.
constexpr auto kOtherThanPython =
    std::to_array<std::string_view>({"\\Q", "\\E", "\\C", "\\p", "\\P", "\\z", "\\x{", "{,", "[:"});

// Groups with flags anywhere but in front, which Python refuses or applies to all that there is, names that
// are none there, and repetitions of what has no width.
bool python_refuses(std::string_view text) {
  constexpr std::string_view repeats = "*+?{";
  std::set<std::string_view> names;
  const auto at = [&](std::size_t i) { return i < text.size() ? text[i] : '\0'; };
  const auto repeats_at = [&](std::size_t i) {
    return i < text.size() && repeats.find(text[i]) != std::string_view::npos;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      const char c = at(++i);
      if ((c == 'b' || c == 'B' || c == 'A') && repeats_at(i + 1)) return true;
      if (c >= '0' && c <= '9') return true;  // a back reference or an octal number, by rules of their own
    } else if (text[i] == '[') {
      ++i;
      if (at(i) == '^') ++i;
      if (at(i) == ']') ++i;
      for (; i < text.size() && text[i] != ']'; ++i)
        if (text[i] == '\\') ++i;
    } else if (text[i] == '^') {
      if (repeats_at(i + 1)) return true;
    } else if (text.substr(i).starts_with("(?")) {
      const std::string_view rest = text.substr(i + 2);
      const std::size_t flags = rest.find_first_not_of("ims");
      const bool leads = i == 0 && flags != 0 && flags != std::string_view::npos && rest[flags] == ')';
      const bool named = rest.starts_with("P<") && rest.size() > 2 && !(rest[2] >= '0' && rest[2] <= '9') &&
                         names.insert(rest.substr(0, rest.find('>'))).second;
      if (!rest.starts_with(':') && !named && !leads) return true;
    }
  }
  return false;
}

bool reads_as_python(std::string_view expression) {
  if (python_refuses(expression)) return false;
  return std::none_of(kOtherThanPython.begin(), kOtherThanPython.end(), [&](std::string_view other) {
    return expression.find(other) != std::string_view::npos;
  });
}

std::shared_ptr<const re2::RE2> compile(std::string_view expression) {
  if (expression.size() > kMostLength || !reads_as_python(expression)) return nullptr;
  re2::RE2::Options options;
  options.set_max_mem(kMostBytes);
  options.set_log_errors(false);
  auto out =
      std::make_shared<const re2::RE2>(re2::StringPiece(expression.data(), expression.size()), options);
  return out->ok() ? out : nullptr;
}

}  // namespace

ModulePattern::ModulePattern(std::string text, bool globs) : text_(std::move(text)) {
  if (text_.starts_with(kRegex)) {
    kind_ = Kind::regex;
    compiled_ = compile(std::string_view(text_).substr(kRegex.size()));
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
    case Kind::regex: {
      if (compiled_ == nullptr)
        fail(ErrorKind::unsupported, "the pattern '{}' of the quantisation: kerf cannot read it",
             shown(text_));
      const re2::StringPiece name(module.data(), module.size());
      return compiled_->Match(name, 0, name.size(), re2::RE2::ANCHOR_START, nullptr, 0);
    }
    case Kind::name:
      break;
  }
  return module.starts_with(text_) && (module.size() == text_.size() || module[text_.size()] == '.');
}

std::int64_t ModulePattern::cost(std::string_view module) const {
  const auto steps = [&](std::int64_t count) { return look_cost + kStepCost * count * std::ssize(module); };
  if (kind_ == Kind::regex) return compiled_ == nullptr ? look_cost : steps(compiled_->ProgramSize());
  if (kind_ == Kind::glob && module.starts_with(std::string_view(text_).substr(0, literal_)))
    return steps(std::ssize(text_) - static_cast<std::int64_t>(literal_));
  return look_cost;
}

}  // namespace kerf::checkpoint::internal
