#include "kerf/base/json.h"

#include <set>
#include <string>
#include <vector>

#include "kerf/base/file.h"
#include "kerf/base/format.h"

namespace kerf {

namespace {

// Looks for what the parser itself takes: a key that comes twice, and depth without end. (Its own callback
// could look too, but goes through a whole container at the end of each object in it.)
class Look : public nlohmann::json_sax<nlohmann::json> {
 public:
  Look(const std::string& file, ErrorKind kind) : file_(file), kind_(kind) {}

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*size*/) override {
    keys_.emplace_back();
    return open();
  }
  bool key(string_t& key) override {
    if (!keys_.back().insert(key).second)
      fail(kind_, "{}: the key '{}' comes twice in one object", file_, shown(key));
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t /*size*/) override { return open(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    return false;  // the parser finds it again
  }

 private:
  bool open() {
    constexpr int most_depth = 64;
    if (++depth_ > most_depth + 1) fail(kind_, "{}: nested deeper than {}", file_, most_depth);
    return true;
  }

  const std::string& file_;
  ErrorKind kind_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  int depth_ = 0;
};

}  // namespace

nlohmann::json parse_json(const std::string& text, const std::string& file, ErrorKind kind) {
  // A parser would take a NUL for the end of the text and leave what follows it unread.
  if (text.find('\0') != std::string::npos) fail(kind, "{}: not valid JSON: a zero byte in it", file);
  Look look(file, kind);
  (void)nlohmann::json::sax_parse(text, &look);
  try {
    return nlohmann::json::parse(text);
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
