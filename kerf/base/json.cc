#include "kerf/base/json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/base/json_stream.h"
#include "kerf/base/text.h"

namespace kerf {

namespace {

// Looks for what the parser itself takes: a key that comes twice, depth without end, and more values than
// there is room for. (Its own callback could look too, but goes through a whole container at the end of each
// object in it.)
class Look : public nlohmann::json_sax<nlohmann::json> {
 public:
  Look(const std::string& file, ErrorKind kind) : file_(file), kind_(kind) {}

  bool null() override { return takes(0); }
  bool boolean(bool /*value*/) override { return takes(0); }
  bool number_integer(number_integer_t /*value*/) override { return takes(0); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return takes(0); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return takes(0); }
  bool string(string_t& value) override { return takes(string_bytes + std::ssize(value)); }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*size*/) override {
    keys_.emplace_back();
    return takes(container_bytes) && open();
  }
  bool key(string_t& key) override {
    takes(key_bytes + std::ssize(key));
    --values_;
    if (!keys_.back().insert(key).second)
      fail(kind_, "{}: the key '{}' comes twice in one object", file_, shown(key));
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t /*size*/) override { return takes(container_bytes) && open(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    return false;  // the parser finds it again
  }

 private:
  // What a tree of such values takes, allocator and growth included: a value is 16 bytes in an array that may
  // have had to grow, a container or a string has a block of its own, a key is a node of a tree.
  static constexpr std::int64_t value_bytes = 32;
  static constexpr std::int64_t container_bytes = 64;
  static constexpr std::int64_t string_bytes = 48;
  static constexpr std::int64_t key_bytes = 80;

  bool takes(std::int64_t more) {
    ++values_;
    bytes_ += value_bytes + more;
    if (bytes_ > most_tree_bytes)
      fail(kind_, "{}: its first {} values would take {} bytes in memory, wanted at most {} for all of them",
           file_, values_, bytes_, most_tree_bytes);
    return true;
  }

  bool open() {
    if (++depth_ > most_json_depth + 1) fail(kind_, "{}: nested deeper than {}", file_, most_json_depth);
    return true;
  }

  const std::string& file_;
  ErrorKind kind_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  int depth_ = 0;
  std::int64_t values_ = 0;
  std::int64_t bytes_ = 0;
};

// A number as Python writes it and JSON does not know it. While the parser is at work, a string of as many
// bytes stands for it, so that errors name the right byte. A file may have such a string itself: it is taken
// for the number, which it could have as well.
struct NotFinite {
  std::string_view word;
  std::string_view stand_in;  // in quotes
  double value;
};
constexpr std::array kNotFinite = {
    NotFinite{"NaN", "\"\x7f\"", std::numeric_limits<double>::quiet_NaN()},
    NotFinite{"Infinity", "\"\x7f+    \"", std::numeric_limits<double>::infinity()},
    NotFinite{"-Infinity", "\"\x7f-     \"", -std::numeric_limits<double>::infinity()}};
static_assert(kNotFinite[0].word.size() == kNotFinite[0].stand_in.size());
static_assert(kNotFinite[1].word.size() == kNotFinite[1].stand_in.size());
static_assert(kNotFinite[2].word.size() == kNotFinite[2].stand_in.size());

// Whether `text`, after white space, goes on as after a value, and not as after a key.
bool ends_value(std::string_view text) {
  const std::size_t next = text.find_first_not_of(" \t\r\n");
  return next == std::string_view::npos || text[next] == ',' || text[next] == ']' || text[next] == '}';
}

// The text with the one for the other where a value stands, and nothing inside strings or in place of a key.
std::string exchanged(std::string_view text, std::string_view NotFinite::*from,
                      std::string_view NotFinite::*to) {
  std::string out(text);
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
      continue;
    }
    const auto* const found = std::find_if(kNotFinite.begin(), kNotFinite.end(), [&](const NotFinite& n) {
      return (n.*from).front() == c && text.substr(i).starts_with(n.*from) &&
             ends_value(text.substr(i + (n.*from).size()));
    });
    in_string = found == kNotFinite.end() && c == '"';
    if (found == kNotFinite.end()) continue;
    out.replace(i, (found->*from).size(), found->*to);
    i += (found->*from).size() - 1;
  }
  return out;
}

void put_numbers(nlohmann::json& value) {
  if (value.is_string()) {
    const std::string_view text = value.get_ref<const std::string&>();
    for (const NotFinite& number : kNotFinite)
      if (text == number.stand_in.substr(1, number.stand_in.size() - 2)) {
        value = number.value;
        return;
      }
  }
  if (value.is_structured())
    for (nlohmann::json& inner : value) put_numbers(inner);  // as deep as most_json_depth
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& file, ErrorKind kind) {
  const JsonStream::Refuse refuse = [&](const std::string& what, std::int64_t at) {
    fail(kind, "{}: not valid JSON at byte {}: {}", file, at, what);
  };
  Look look(file, kind);
  (void)JsonStream(text, most_json_token, refuse).parse(look);
  JsonStream stream(text, most_json_token, refuse);
  try {
    return nlohmann::json::parse(stream.begin(), JsonStream::end());
  } catch (const nlohmann::json::parse_error&) {
    fail(kind, "{}: not valid JSON at byte {}", file, stream.taken());
  } catch (const nlohmann::json::exception&) {
    fail(kind, "{}: not valid JSON: a number out of range", file);
  }
}

std::string with_stand_ins(std::string_view text) {
  return exchanged(text, &NotFinite::word, &NotFinite::stand_in);
}

std::string without_stand_ins(std::string_view text) {
  return exchanged(text, &NotFinite::stand_in, &NotFinite::word);
}

nlohmann::json parse_python_json(std::string_view text, const std::string& file, ErrorKind kind) {
  nlohmann::json out = parse_json(with_stand_ins(text), file, kind);
  put_numbers(out);
  return out;
}

std::string json_text(const nlohmann::json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    return std::isnan(value.get<double>()) ? "NaN" : value.get<double>() < 0 ? "-Infinity" : "Infinity";
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string got(const nlohmann::json& value) {
  return fmt::format("{} ({})", shown(json_text(value)), value.type_name());
}

}  // namespace kerf
