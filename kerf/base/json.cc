#include "kerf/base/json.h"

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

std::string got(const nlohmann::json& value) {
  const std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return fmt::format("{} ({})", shown(text), value.type_name());
}

}  // namespace kerf
