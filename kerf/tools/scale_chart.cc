#include <algorithm>
#include <iterator>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/tools/blocks.h"

namespace kerf::tools {

namespace {

// One matrix of all layers: a bar from its smallest to its largest scale, a marker at the largest.
Curve curve(const char* name, const std::vector<LayerBlocks>& layers, ScaleRange ExpertBlocks::*matrix) {
  Curve out{name, {}};
  for (const LayerBlocks& layer : layers) {
    const ScaleRange range = layer.total().*matrix;
    if (range.known() && range.least > 0)
      out.points.push_back({static_cast<double>(layer.layer), range.most, range.least, range.most});
  }
  return out;
}

HeatMap map_of(const std::vector<LayerBlocks>& layers) {
  HeatMap out{"Largest scale of each expert", "expert", "layer", {}, {}, 0};
  for (const LayerBlocks& layer : layers) {
    out.rows.push_back(layer.layer);
    out.columns = std::max(out.columns, std::ssize(layer.experts));
    for (std::size_t e = 0; e < layer.experts.size(); ++e) {
      const ScaleRange range = layer.experts[e].all();
      if (!range.known() || !(range.most > 0)) continue;
      out.cells.push_back(
          {static_cast<std::int64_t>(e), std::ssize(out.rows) - 1, range.most,
           fmt::format("layer {}, expert {}: {:.4g} to {:.4g}, {} of {} blocks zero", layer.layer, e,
                       range.least, range.most, layer.experts[e].zeros, layer.experts[e].blocks)});
    }
  }
  return out;
}

}  // namespace

Chart scale_chart(const std::string& name, const std::vector<LayerBlocks>& layers) {
  Chart chart;
  chart.title = fmt::format("Scales of the NVFP4 experts of {}", name);
  chart.subtitle = "block scale times global scale, of blocks that are not all zeros";
  // A panel each: on one, their bars would hide each other.
  for (const auto& [matrix, member] :
       {std::pair{"gate", &ExpertBlocks::gate}, {"up", &ExpertBlocks::up}, {"down", &ExpertBlocks::down}})
    chart.panels.push_back({fmt::format("Smallest to largest scale of a layer's experts, {}", matrix),
                            "layer",
                            "scale",
                            {curve(matrix, layers, member)},
                            Axis::linear,
                            Axis::logarithmic});
  chart.maps.push_back(map_of(layers));
  return chart;
}

}  // namespace kerf::tools
