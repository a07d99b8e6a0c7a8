#include "kerf/base/json.h"

#include <set>
#include <vector>

#include "kerf/base/file.h"
#include "kerf/base/format.h"

namespace kerf {

nlohmann::json parse_json(const std::string& text, const std::string& file, ErrorKind kind) {
  constexpr int most_depth = 64;
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int depth, Event event, nlohmann::json& value) {
    if (depth > most_depth) fail(kind, "{}: nested deeper than {}", file, most_depth);
    if (event == Event::object_start) {
      keys.emplace_back();
    } else if (event == Event::object_end) {
      keys.pop_back();
    } else if (event == Event::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second)
        fail(kind, "{}: the key '{}' comes twice in one object", file, shown(key));
    }
    return true;
  };
  // A parser would take a NUL for the end of the text and leave what follows it unread.
  if (text.find('\0') != std::string::npos) fail(kind, "{}: not valid JSON: a zero byte in it", file);
  try {
    return nlohmann::json::parse(text, check);
  } catch (const nlohmann::json::parse_error& e) {
    fail(kind, "{}: not valid JSON at byte {}", file, e.byte);
  } catch (const nlohmann::json::exception&) {
    fail(kind, "{}: not valid JSON: a number out of range", file);
  }
}

std::string got(const nlohmann::json& value) {
  const std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return fmt::format("{} ({})", shown(text), value.type_name());
}

}  // namespace kerf
