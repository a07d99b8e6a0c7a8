#include "kerf/base/text.h"

#include <algorithm>
#include <array>

#include "kerf/base/format.h"

namespace kerf {

namespace {

// The number of bytes that the well-formed UTF-8 character at the start of `text` has, 0 where there is none.
std::size_t character(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((at(i) & 0xC0U) != 0x80U) return 0;
  // Encodings that are longer than needed, surrogates, and what lies beyond the last character.
  if ((first == 0xE0 && at(1) < 0xA0) || (first == 0xED && at(1) > 0x9F) || (first == 0xF0 && at(1) < 0x90) ||
      (first == 0xF4 && at(1) > 0x8F))
    return 0;
  return length;
}

// Of a well-formed character of at most 3 bytes; what is meant below needs no more.
unsigned code_point(std::string_view character) {
  const auto at = [&](std::size_t i) {
    return static_cast<unsigned>(static_cast<unsigned char>(character[i]));
  };
  if (character.size() == 1) return at(0);
  if (character.size() == 2) return (at(0) & 0x1FU) << 6U | (at(1) & 0x3FU);
  return (at(0) & 0x0FU) << 12U | (at(1) & 0x3FU) << 6U | (at(2) & 0x3FU);
}

struct CodeRange {
  unsigned first, last;
};
// C0; DEL and C1; the mark of Arabic direction; those of left and right; line and paragraph separators with
// the embeddings and overrides behind them; the isolates.
constexpr std::array<CodeRange, 6> unprintable = {
    {{0x00, 0x1F}, {0x7F, 0x9F}, {0x61C, 0x61C}, {0x200E, 0x200F}, {0x2028, 0x202E}, {0x2066, 0x2069}}};

bool is_unprintable(std::string_view character) {
  if (character.size() > 3) return false;
  const unsigned code = code_point(character);
  return std::any_of(unprintable.begin(), unprintable.end(),
                     [code](const CodeRange& r) { return code >= r.first && code <= r.last; });
}

// The text, with `spelt(character, sound)` in the place of characters that are unprintable and bytes that are
// none.
template <typename Spelt>
std::string replaced(std::string_view text, const Spelt& spelt) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = character(text);
    const std::string_view piece = text.substr(0, std::max<std::size_t>(length, 1));
    if (length > 0 && !is_unprintable(piece))
      out += piece;
    else
      out += spelt(piece, length > 0);
    text.remove_prefix(piece.size());
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  return replaced(text, [](std::string_view piece, bool /*sound*/) {
    std::string out;
    for (const char c : piece) out += fmt::format("\\x{:02X}", static_cast<unsigned char>(c));
    return out;
  });
}

std::string cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return fmt::format("{}... ({} bytes)", text.substr(0, end), text.size());
}

std::string shown(std::string_view name) { return printable(cut(name)); }

std::string plain_json(std::string_view json) {
  return replaced(json, [](std::string_view piece, bool sound) {
    if (piece == "\n" || !sound) return std::string(piece);
    return fmt::format("\\u{:04x}", code_point(piece));
  });
}

}  // namespace kerf
