#include "kerf/tools/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <span>

#include "kerf/base/format.h"
#include "kerf/checkpoint/atomic_file.h"
#include "kerf/tools/internal/svg.h"

namespace kerf::tools {

namespace {

using internal::chart_width;
using internal::escaped;
using internal::left;
using internal::line;
using internal::map_height;
using internal::map_style;
using internal::right;
using internal::text_at;

// Pixels.
constexpr double header = 64;
constexpr double panel_height = 330;
constexpr double top = 34;  // of a panel, above the plot: title and legend
constexpr double bottom = 52;

// Colours of curves, for light and for dark; curves also differ in dashes and markers.
constexpr std::array<const char*, 4> light = {"#1f6feb", "#bf4b00", "#1a7f37", "#8250df"};
constexpr std::array<const char*, 4> dark = {"#79b8ff", "#ffa657", "#7ee787", "#d2a8ff"};
constexpr std::array<const char*, 4> dashes = {"none", "7 4", "2 3", "9 3 2 3"};

std::string style() {
  std::string out =
      "<style>\n"
      "  text { font: 13px system-ui, sans-serif; fill: #1f2328 }\n"
      "  .title { font-size: 16px; font-weight: 600 } .small { font-size: 12px }\n"
      "  .paper { fill: #ffffff } .axis { stroke: #1f2328 } .grid { stroke: #d0d7de }\n"
      "  .unit { stroke: #57606a; stroke-dasharray: 4 3 } .curve { fill: none; stroke-width: 2 }\n";
  for (std::size_t i = 0; i < light.size(); ++i)
    out += fmt::format("  .c{0} {{ stroke: {1} }} .c{0} .mark {{ fill: {1} }}\n", i, light[i]);
  out +=
      "  @media (prefers-color-scheme: dark) {\n"
      "    text { fill: #e6edf3 } .paper { fill: #0d1117 } .axis { stroke: #e6edf3 }\n"
      "    .grid { stroke: #30363d } .unit { stroke: #8b949e }\n";
  for (std::size_t i = 0; i < dark.size(); ++i)
    out += fmt::format("    .c{0} {{ stroke: {1} }} .c{0} .mark {{ fill: {1} }}\n", i, dark[i]);
  return out + "  }\n" + map_style() + "</style>\n";
}

// From values to pixels.
struct Scale {
  bool x_log = true, y_log = false;
  double x_low = 1, x_high = 2;  // > 0 where x_log
  double y_low = 0, y_high = 1;  // powers of ten where y_log
  double y_step = 0.2;           // of a linear axis
  double panel_top = 0;

  [[nodiscard]] double base() const { return panel_top + panel_height - bottom; }
  [[nodiscard]] double x(double value) const {
    double part = 0.5;
    if (x_high > x_low)
      part = x_log ? std::log(value / x_low) / std::log(x_high / x_low) : (value - x_low) / (x_high - x_low);
    return left + 24 + (chart_width - left - right - 48) * part;
  }
  [[nodiscard]] double y(double value) const {
    const double inside = std::clamp(value, y_low, y_high);
    const double part = y_log ? std::log(inside / y_low) / std::log(y_high / y_low) : inside / y_high;
    return base() - (panel_height - top - bottom) * part;
  }
};

// The powers of ten around what there is; one apart at least.
void fit_powers(const Panel& panel, Scale& s) {
  double least = std::numeric_limits<double>::infinity();
  double most = 0;
  for (const Curve& curve : panel.curves)
    for (const ChartPoint& p : curve.points) {
      least = std::min(least, p.least);
      most = std::max(most, p.most);
    }
  const bool any = most > 0;
  const double low = any ? std::floor(std::log10(least)) : 0;
  const double high = any ? std::ceil(std::log10(most)) : 1;
  s.y_low = std::pow(10.0, low);
  s.y_high = std::pow(10.0, std::max(high, low + 1));
}

Scale scale_of(const Panel& panel, double panel_top) {
  Scale s;
  s.panel_top = panel_top;
  s.x_log = panel.x == Axis::logarithmic;
  s.y_log = panel.y == Axis::logarithmic;
  bool any = false;
  for (const Curve& curve : panel.curves)
    for (const ChartPoint& p : curve.points) {
      s.x_low = any ? std::min(s.x_low, p.x) : p.x;
      s.x_high = any ? std::max(s.x_high, p.x) : p.x;
      if (!s.y_log) s.y_high = std::max(s.y_high, p.most);
      any = true;
    }
  if (s.y_log) {
    fit_powers(panel, s);
    return s;
  }
  while (s.y_high / s.y_step > 8) s.y_step *= 2;
  s.y_high = std::ceil(s.y_high / s.y_step - 1e-9) * s.y_step;
  return s;
}

std::string y_ticks(const Scale& s) {
  std::string out;
  const double end = chart_width - right;
  const auto tick = [&](double value, const std::string& text) {
    const double y = s.y(value);
    out += line(left, y, end, y, "grid");
    out += text_at(left - 8, y + 4, text, "end");
  };
  if (s.y_log) {
    for (double value = s.y_low; value < s.y_high * 1.5; value *= 10)
      tick(value, fmt::format("{:.0e}", value));
    return out;
  }
  for (int i = 0; i * s.y_step <= s.y_high + 1e-9; ++i)
    tick(i * s.y_step, fmt::format("{:.1f}", i * s.y_step));
  return out;
}

std::string axes(const Panel& panel, const Scale& s) {
  std::string out = y_ticks(s);
  const double end = chart_width - right;
  std::set<double> ticks;
  for (const Curve& curve : panel.curves)
    for (const ChartPoint& p : curve.points) ticks.insert(p.x);
  double last = -1e9;  // labels that would lie on each other are left out, their ticks stay
  for (const double tick : ticks) {
    const double x = s.x(tick);
    out += line(x, s.base(), x, s.base() + 5, "axis");
    if (x - last < 34) continue;
    out += text_at(x, s.base() + 19, fmt::format("{:g}", tick), "middle");
    last = x;
  }
  out += line(left, s.base(), end, s.base(), "axis");
  out += line(left, s.panel_top + top, left, s.base(), "axis");
  if (!s.y_log) out += line(left, s.y(1), end, s.y(1), "unit");
  out += text_at((left + end) / 2, s.base() + 40, panel.x_label, "middle");
  const double middle = (s.panel_top + top + s.base()) / 2;
  return out + fmt::format(
                   "<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                   middle, escaped(panel.y_label));
}

std::string marker(std::size_t kind, double x, double y) {
  if (kind % 2 == 0)
    return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" class=\"mark\"/>\n", x, y);
  return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"8\" height=\"8\" class=\"mark\"/>\n", x - 4,
                     y - 4);
}

std::string drawn(const Curve& curve, std::size_t kind, const Scale& s) {
  std::string line_points;
  std::string marks;
  for (const ChartPoint& p : curve.points) {
    const double x = s.x(p.x);
    line_points += fmt::format("{}{:.1f},{:.1f}", line_points.empty() ? "" : " ", x, s.y(p.y));
    marks += line(x, s.y(p.least), x, s.y(p.most), "spread");
    marks += marker(kind, x, s.y(p.y));
  }
  return fmt::format(
      "<g class=\"curve c{}\" data-name=\"{}\">\n<polyline points=\"{}\" stroke-dasharray=\"{}\"/>\n{}</g>\n",
      kind % light.size(), escaped(curve.name), line_points, dashes[kind % dashes.size()], marks);
}

// At the right of the title, the last curve rightmost.
std::string legend(const Panel& panel, const Scale& s) {
  std::string out;
  double x = chart_width - right;
  const double y = s.panel_top + 16;
  for (std::size_t i = panel.curves.size(); i-- > 0;) {
    const std::string& name = panel.curves[i].name;
    out += text_at(x, y, name, "end");
    x -= 8.0 * static_cast<double>(name.size()) + 40;
    out += fmt::format(
        "<g class=\"curve c{}\">\n<path d=\"M {:.1f} {:.1f} h 30\" stroke-dasharray=\"{}\"/>\n{}</g>\n",
        i % light.size(), x, y - 4, dashes[i % dashes.size()], marker(i, x + 15, y - 4));
    x -= 16;
  }
  return out;
}

}  // namespace

std::string svg(const Chart& chart) {
  double height = header + panel_height * static_cast<double>(chart.panels.size());
  for (const HeatMap& map : chart.maps) height += map_height(map);
  std::string out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\">\n<title>{2}</title>\n",
      chart_width, height, escaped(chart.title));
  out += style();
  out += fmt::format("<rect width=\"{:.0f}\" height=\"{:.0f}\" class=\"paper\"/>\n", chart_width, height);
  out += text_at(left, 28, chart.title, "start", "title");
  out += text_at(left, 48, chart.subtitle, "start", "small");
  double panel_top = header;
  for (const Panel& panel : chart.panels) {
    const Scale s = scale_of(panel, panel_top);
    out += text_at(left, panel_top + 16, panel.title, "start");
    out += axes(panel, s);
    for (std::size_t i = 0; i < panel.curves.size(); ++i) out += drawn(panel.curves[i], i, s);
    out += legend(panel, s);
    panel_top += panel_height;
  }
  for (const HeatMap& map : chart.maps) {
    out += internal::drawn(map, panel_top);
    panel_top += map_height(map);
  }
  return out + "</svg>\n";
}

void write_svg(const std::filesystem::path& path, const Chart& chart) {
  const std::string text = svg(chart);
  checkpoint::AtomicFile file(path);
  file.append(std::as_bytes(std::span(text)));
  file.finish();
}

}  // namespace kerf::tools
