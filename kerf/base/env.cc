#include "kerf/base/env.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "kerf/base/format.h"

namespace kerf {

std::optional<std::string> env_value(std::string_view name) {
  const bool listed =
      std::any_of(env_table.begin(), env_table.end(), [&](const EnvVariable& v) { return name == v.name; });
  if (!listed) fail(ErrorKind::bug, "{} is not in the table of environment variables", name);
  const char* value = std::getenv(std::string(name).c_str());  // NOLINT(concurrency-mt-unsafe)
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<int> env_positive(std::string_view name, int most) {
  const auto text = env_value(name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, code] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (code != std::errc() || end != text->data() + text->size() || value < 1 || value > most)
    fail(ErrorKind::usage, "{} is '{}', wanted a whole number from 1 to {}", name, *text, most);
  return value;
}

}  // namespace kerf
