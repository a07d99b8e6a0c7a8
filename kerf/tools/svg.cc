#include "kerf/tools/internal/svg.h"
#include "kerf/base/format.h"

namespace kerf::tools::internal {

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;  // XML has no other control characters
    }
  }
  return out;
}

std::string text_at(double x, double y, const std::string& text, const char* anchor, const char* css_class) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", x, y,
                     anchor, css_class, escaped(text));
}

std::string line(double x1, double y1, double x2, double y2, const char* css_class) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1,
                     x2, y2, css_class);
}

}  // namespace kerf::tools::internal
