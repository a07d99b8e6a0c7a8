// Line charts as SVG: a file that any browser shows, in light and in dark, with nothing to load.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kerf::tools {

struct ChartPoint {
  double x = 0;  // > 0: the axis is logarithmic
  double y = 0;  // >= 0, with what it varied between
  double least = 0;
  double most = 0;
};

struct Curve {
  std::string name;  // in the legend
  std::vector<ChartPoint> points;
};

struct Panel {
  std::string title, x_label, y_label;
  std::vector<Curve> curves;
};

struct Chart {
  std::string title, subtitle;
  std::vector<Panel> panels;  // one below the other
};

// The whole file. Each panel has axes with ticks (x at every point that there is, y from 0 to 1 or more), a
// legend, and a line at y = 1; each curve is a <g class="curve" data-name="..."> with a line, a marker a
// point, and a bar from `least` to `most`. Texts may hold any characters.
std::string svg(const Chart& chart);

// Writes it; the file appears whole or not at all. Error{usage} where it cannot be written
// (checkpoint::check_writable() says so beforehand).
void write_svg(const std::filesystem::path& path, const Chart& chart);

}  // namespace kerf::tools
