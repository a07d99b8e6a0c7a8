// Whether a text is well-formed XML, as far as kerf writes it: declaration, elements, attributes, text.
#pragma once

#include <cctype>
#include <string>
#include <vector>

namespace kerf::test {

// What is wrong first, or nothing. Knows no comments, CDATA or entities other than the five of XML.
inline std::string xml_fault(const std::string& text) {
  std::vector<std::string> open;
  bool root_seen = false;
  std::size_t at = 0;
  const auto entity_fault = [](const std::string& piece) {
    for (std::size_t i = piece.find('&'); i != std::string::npos; i = piece.find('&', i + 1)) {
      const std::string name = piece.substr(i, piece.find(';', i) - i);
      if (name != "&amp" && name != "&lt" && name != "&gt" && name != "&quot" && name != "&apos") return true;
    }
    for (const char c : piece)
      if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') return true;
    return false;
  };
  while (at < text.size()) {
    const std::size_t tag = text.find('<', at);
    const std::string between = text.substr(at, tag == std::string::npos ? tag : tag - at);
    if (entity_fault(between)) return "bad text: " + between;
    if (open.empty() && between.find_first_not_of(" \n\t") != std::string::npos)
      return "text outside: " + between;
    if (tag == std::string::npos) break;
    const std::size_t end = text.find('>', tag);
    if (end == std::string::npos) return "a tag that does not end";
    std::string inside = text.substr(tag + 1, end - tag - 1);
    at = end + 1;
    if (inside.starts_with("?")) {
      if (tag != 0 || !inside.ends_with("?")) return "a declaration that is not first";
      continue;
    }
    if (inside.starts_with("/")) {
      if (open.empty() || open.back() != inside.substr(1)) return "closes what is not open: " + inside;
      open.pop_back();
      continue;
    }
    const bool empty = inside.ends_with("/");
    if (empty) inside.pop_back();
    std::size_t i = 0;
    while (i < inside.size() && (std::isalnum(static_cast<unsigned char>(inside[i])) != 0)) ++i;
    const std::string name = inside.substr(0, i);
    if (name.empty()) return "a tag without a name: " + inside;
    if (open.empty() && root_seen) return "a second root: " + name;
    root_seen = true;
    std::vector<std::string> attributes;
    while (i < inside.size()) {
      if (inside[i] != ' ') return "no space before an attribute: " + inside;
      const std::size_t equals = inside.find("=\"", ++i);
      if (equals == std::string::npos) return "an attribute without a value: " + inside;
      const std::size_t quote = inside.find('"', equals + 2);
      if (quote == std::string::npos) return "a value that does not end: " + inside;
      const std::string attribute = inside.substr(i, equals - i);
      for (const std::string& other : attributes)
        if (other == attribute) return "an attribute twice: " + inside;
      attributes.push_back(attribute);
      if (entity_fault(inside.substr(equals + 2, quote - equals - 2))) return "a bad value: " + inside;
      i = quote + 1;
    }
    if (!empty) open.push_back(name);
  }
  if (!open.empty()) return "not closed: " + open.back();
  return root_seen ? "" : "no element";
}

}  // namespace kerf::test
