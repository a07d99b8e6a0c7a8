// Charts of lines and maps of cells as SVG: a file that any browser shows, in light and in dark, with nothing
// to load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace kerf::tools {

// How values go along an axis.
enum class Axis : std::uint8_t { linear, logarithmic };

// One measurement.
struct ChartPoint {
  double x = 0;  // > 0 where the axis is logarithmic
  double y = 0;  // >= 0, > 0 where the axis is logarithmic, with what it varied between
  double least = 0;
  double most = 0;
};

// Measurements of one kind, x ascending.
struct Curve {
  std::string name;  // in the legend
  std::vector<ChartPoint> points;
};

// Curves in one pair of axes.
struct Panel {
  std::string title, x_label, y_label;
  std::vector<Curve> curves;
  Axis x = Axis::logarithmic;
  Axis y = Axis::linear;
};

// A grid of cells, each coloured by the logarithm of its value.
struct HeatCell {
  std::int64_t column = 0;
  std::int64_t row = 0;  // from the top
  double value = 0;      // > 0
  std::string text;      // shown where a pointer rests on the cell
};

// Cells in rows and columns.
struct HeatMap {
  std::string title, x_label, y_label;
  std::vector<HeatCell> cells;     // places without one stay empty
  std::vector<std::int64_t> rows;  // their names, from the top
  std::int64_t columns = 0;        // named 0 to columns - 1
};

// A drawing.
struct Chart {
  std::string title, subtitle;
  std::vector<Panel> panels;       // one below the other
  std::vector<HeatMap> maps = {};  // below them
};

// The whole file. Each panel has axes with ticks (x at every point that there is; y from 0 to 1 or more, with
// a line at 1, or at powers of ten) and a legend; each curve is a <g class="curve" data-name="..."> with a
// line, a marker a point, and a bar from `least` to `most`. A map is a <g class="map"> with a <rect> and a
// <title> a cell, in eight colours between the smallest and the largest value, which its legend names. Texts
// may hold any characters.
std::string svg(const Chart& chart);

// Writes it; the file appears whole or not at all. Error{usage} where it cannot be written
// (checkpoint::check_writable() says so beforehand).
void write_svg(const std::filesystem::path& path, const Chart& chart);

}  // namespace kerf::tools
#pragma GCC visibility pop
