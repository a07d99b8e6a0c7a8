// Right values are written out: what UTF-8's bytes are, and which characters steer a terminal.
#include "kerf/base/text.h"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>

namespace kerf {
namespace {

struct Steering {
  const char* name;
  const char* utf8;
  const char* text;  // as a terminal shows it
  const char* json;
};
constexpr std::array<Steering, 17> steering = {
    {{"line feed", "\n", "\\x0A", "\\n"},
     {"carriage return", "\r", "\\x0D", "\\r"},
     {"escape", "\x1B", "\\x1B", "\\u001b"},
     {"DEL", "\x7F", "\\x7F", "\\u007f"},
     {"first C1", "\xC2\x80", "\\xC2\\x80", "\\u0080"},
     {"CSI", "\xC2\x9B", "\\xC2\\x9B", "\\u009b"},
     {"last C1", "\xC2\x9F", "\\xC2\\x9F", "\\u009f"},
     {"Arabic mark", "\xD8\x9C", "\\xD8\\x9C", "\\u061c"},
     {"left mark", "\xE2\x80\x8E", "\\xE2\\x80\\x8E", "\\u200e"},
     {"right mark", "\xE2\x80\x8F", "\\xE2\\x80\\x8F", "\\u200f"},
     {"line separator", "\xE2\x80\xA8", "\\xE2\\x80\\xA8", "\\u2028"},
     {"paragraph", "\xE2\x80\xA9", "\\xE2\\x80\\xA9", "\\u2029"},
     {"embedding", "\xE2\x80\xAA", "\\xE2\\x80\\xAA", "\\u202a"},
     {"override", "\xE2\x80\xAE", "\\xE2\\x80\\xAE", "\\u202e"},
     {"isolate", "\xE2\x81\xA6", "\\xE2\\x81\\xA6", "\\u2066"},
     {"end of it", "\xE2\x81\xA9", "\\xE2\\x81\\xA9", "\\u2069"},
     {"tab", "\t", "\\x09", "\\t"}}};

TEST(Text, WhatSteersATerminalIsSpeltOut) {
  for (const Steering& s : steering) {
    EXPECT_EQ(printable(std::string("a") + s.utf8 + "b"), std::string("a") + s.text + "b") << s.name;
    EXPECT_EQ(shown(std::string("a") + s.utf8 + "b"), std::string("a") + s.text + "b") << s.name;
  }
}

TEST(Text, WhatDoesNotStays) {
  for (const char* text :
       {"", "plain 'text' \"\\", "\xC2\xA0\xC3\xA9", "\xE2\x80\x90\xE2\x80\xA7\xE2\x80\xAF",
        "\xE2\x81\xA5\xE2\x81\xAA", "\xE4\xB8\xAD", "\xF0\x9F\x98\x80"}) {
    EXPECT_EQ(printable(text), text);
    EXPECT_EQ(plain_json(text), text);
  }
}

TEST(Text, BytesThatAreNotUtf8AreSpeltOut) {
  EXPECT_EQ(printable("\xFF\xC3"), "\\xFF\\xC3");
  EXPECT_EQ(printable("\xC0\xAF"), "\\xC0\\xAF");           // longer than needed
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xED\\xA0\\x80");  // a surrogate
}

// The same characters in JSON, as another reader of it finds them.
TEST(Text, JsonSaysTheSameInPlainCharacters) {
  for (const Steering& s : steering) {
    const std::string value = std::string("a") + s.utf8 + "b";
    const std::string json = plain_json(nlohmann::json{{"key", value}}.dump(2));
    EXPECT_NE(json.find(std::string("a") + s.json + "b"), std::string::npos) << s.name << ": " << json;
    EXPECT_EQ(nlohmann::json::parse(json)["key"], value) << s.name;
    EXPECT_EQ(printable(json), std::string("{\\x0A  \"key\": \"a") + s.json + "b\"\\x0A}") << s.name;
  }
}

TEST(Text, LongNamesAreCutAtWholeCharactersWithTheirLength) {
  EXPECT_EQ(cut(std::string(200, 'x')), std::string(200, 'x'));
  EXPECT_EQ(cut(std::string(201, 'x')), std::string(200, 'x') + "... (201 bytes)");
  std::string accents;
  for (int i = 0; i < 101; ++i) accents += "\xC3\xA9";
  const std::string mixed = std::string("x").append(accents);
  EXPECT_EQ(cut(mixed), std::string(mixed, 0, 199).append("... (203 bytes)"));
  EXPECT_EQ(shown(std::string(300, '\x1B')).size(), 200 * 4 + std::string("... (300 bytes)").size());
}

}  // namespace
}  // namespace kerf
