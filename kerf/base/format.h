// Formatting for kerf's own sources: fmt stays out of the public headers.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "kerf/base/error.h"

namespace kerf {

// Throws an Error, gives a Reason, of a kind and a formatted text.
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(kind, fmt::format(text, std::forward<Args>(args)...));
}

template <typename... Args>
Reason because(ErrorKind kind, fmt::format_string<Args...> text, Args&&... args) {
  return Reason{kind, fmt::format(text, std::forward<Args>(args)...)};
}

}  // namespace kerf
