#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kerf/base/format.h"
#include "kerf/tools/internal/svg.h"

namespace kerf::tools::internal {

namespace {

// Pixels.
constexpr double top = 62;  // title, legend
constexpr double bottom = 52;
constexpr double least_row = 3;
constexpr double most_row = 22;
constexpr double wanted_rows = 330;  // of all rows, while they are neither too low nor too high

// From the smallest value to the largest; told apart in light and dark, and without colour by lightness.
constexpr std::array<const char*, 8> colours = {"#440154", "#46327e", "#365c8d", "#277f8e",
                                                "#1fa187", "#4ac16d", "#a0da39", "#fde725"};

double row_height(const HeatMap& map) {
  const double rows = std::max<double>(1, static_cast<double>(map.rows.size()));
  return std::clamp(wanted_rows / rows, least_row, most_row);
}

struct Limits {
  double least = std::numeric_limits<double>::infinity();
  double most = 0;

  [[nodiscard]] std::size_t colour(double value) const {
    if (!(most > least)) return 0;
    const double part = std::log(value / least) / std::log(most / least);
    return std::min(colours.size() - 1, static_cast<std::size_t>(part * static_cast<double>(colours.size())));
  }
  // The value at which colour i begins.
  [[nodiscard]] double begin(std::size_t i) const {
    return least * std::pow(most / least, static_cast<double>(i) / static_cast<double>(colours.size()));
  }
};

Limits limits_of(const HeatMap& map) {
  Limits out;
  for (const HeatCell& cell : map.cells) {
    out.least = std::min(out.least, cell.value);
    out.most = std::max(out.most, cell.value);
  }
  return out;
}

std::string legend(const Limits& limits, double y) {
  std::string out;
  constexpr double step = 78;
  const std::size_t shown = limits.most > limits.least ? colours.size() : 1;
  for (std::size_t i = 0; i < shown; ++i) {
    const double x = left + step * static_cast<double>(i);
    out +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" class=\"h{}\"/>\n", x, y, i);
    out += text_at(x + 16, y + 11, fmt::format("{:.2g}", limits.begin(i)), "start", "small");
  }
  return out;
}

}  // namespace

double map_height(const HeatMap& map) {
  return top + row_height(map) * static_cast<double>(map.rows.size()) + bottom;
}

std::string map_style() {
  std::string out;
  for (std::size_t i = 0; i < colours.size(); ++i)
    out += fmt::format("  .h{} {{ fill: {} }}\n", i, colours[i]);
  return out;
}

std::string drawn(const HeatMap& map, double map_top) {
  const Limits limits = limits_of(map);
  const double height = row_height(map);
  const double width =
      (chart_width - left - right) / static_cast<double>(std::max<std::int64_t>(1, map.columns));
  const double begin = map_top + top;
  const double end = begin + height * static_cast<double>(map.rows.size());
  std::string out = text_at(left, map_top + 16, map.title, "start");
  if (!map.cells.empty()) out += legend(limits, map_top + 30);
  out += "<g class=\"map\">\n";
  for (const HeatCell& cell : map.cells)
    out += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" class=\"h{}\">"
        "<title>{}</title></rect>\n",
        left + width * static_cast<double>(cell.column), begin + height * static_cast<double>(cell.row),
        width, height, limits.colour(cell.value), escaped(cell.text));
  out += "</g>\n";
  // Labels that would lie on each other are left out.
  double last = -1e9;
  for (std::size_t row = 0; row < map.rows.size(); ++row) {
    const double y = begin + height * (static_cast<double>(row) + 0.5);
    if (y - last < 14) continue;
    out += text_at(left - 8, y + 4, fmt::format("{}", map.rows[row]), "end", "small");
    last = y;
  }
  last = -1e9;
  for (std::int64_t column = 0; column < map.columns; ++column) {
    const double x = left + width * (static_cast<double>(column) + 0.5);
    if (x - last < 34) continue;
    out += text_at(x, end + 16, fmt::format("{}", column), "middle", "small");
    last = x;
  }
  out += line(left, end, chart_width - right, end, "axis");
  out += line(left, begin, left, end, "axis");
  out += text_at((left + chart_width - right) / 2, end + 38, map.x_label, "middle");
  return out + fmt::format(
                   "<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                   (begin + end) / 2, escaped(map.y_label));
}

}  // namespace kerf::tools::internal
