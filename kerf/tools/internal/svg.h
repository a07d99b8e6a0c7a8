// Pieces of SVG that all charts are drawn with.
#pragma once

#include <string>

#include "kerf/tools/chart.h"

namespace kerf::tools::internal {

// Pixels: of the whole chart, and of the margins beside a plot.
inline constexpr double chart_width = 720;
inline constexpr double left = 66;
inline constexpr double right = 24;

// As text or as an attribute's value.
std::string escaped(const std::string& text);
std::string text_at(double x, double y, const std::string& text, const char* anchor,
                    const char* css_class = "");
std::string line(double x1, double y1, double x2, double y2, const char* css_class);

// A map of cells: its height, the style of its colours, and itself from `map_top` on.
double map_height(const HeatMap& map);
std::string map_style();
std::string drawn(const HeatMap& map, double map_top);

}  // namespace kerf::tools::internal
