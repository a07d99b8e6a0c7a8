// 06: routing metadata that the caller writes. An engine that has routed its tokens already runs the body of
// the op from nine tensors of its own; the rows are those of the public op, which routes for itself.
//     06_own_metadata CHECKPOINT
#include <algorithm>
#include <cstdio>
#include <vector>

#include "kerf/kerf.h"

namespace {

using kerf::routing::MetadataShape;

// The nine tensors; kerf/routing/metadata.h has their meaning.
struct Nine {
  explicit Nine(const MetadataShape& s)
      : expanded_to_permuted(at(s.routes())),
        permuted_to_token(at(s.max_padded() + 1)),
        expert_weights(at(s.routes())),
        histogram(at(std::max<std::int64_t>(2 * s.experts, 512))),
        tokens_per_expert(at(s.experts)),
        tile_to_expert(at(s.max_tiles())),
        tile_to_limit(at(s.max_tiles())) {}
  static std::size_t at(std::int64_t n) { return static_cast<std::size_t>(n); }

  std::int32_t total_padded = 0, live_tiles = 0;
  std::vector<std::int32_t> expanded_to_permuted, permuted_to_token;
  std::vector<float> expert_weights;
  std::vector<std::int32_t> histogram, tokens_per_expert, tile_to_expert, tile_to_limit;

  kerf::routing::Metadata view() {
    return {{&total_padded, 1}, expanded_to_permuted, permuted_to_token, expert_weights,  histogram,
            tokens_per_expert,  tile_to_expert,       tile_to_limit,     {&live_tiles, 1}};
  }
};

// Each expert's routes in their order, from the next multiple of the tile on.
Nine route(const MetadataShape& s, const std::vector<std::int32_t>& ids, const std::vector<float>& weights) {
  Nine out(s);
  std::ranges::copy(weights, out.expert_weights.begin());
  const auto tile = static_cast<std::int32_t>(s.tile);
  std::int32_t row = 0;
  std::int32_t tiles = 0;
  for (std::int32_t expert = 0; expert < s.experts; ++expert) {
    const std::int32_t first = row;
    for (std::size_t r = 0; r < ids.size(); ++r) {
      if (ids[r] != expert) continue;
      out.expanded_to_permuted[r] = row;
      out.permuted_to_token[Nine::at(row)] =
          static_cast<std::int32_t>(r) / static_cast<std::int32_t>(s.top_k);
      ++row;
    }
    out.tokens_per_expert[Nine::at(expert)] = row - first;
    for (std::int32_t t = first; t < row; t += tile) {
      out.tile_to_expert[Nine::at(tiles)] = expert;
      out.tile_to_limit[Nine::at(tiles)] = std::min(t + tile, row);
      ++tiles;
    }
    row = tiles * tile;
  }
  out.live_tiles = tiles;
  out.total_padded = row;
  return out;
}

int compare(const char* path) {
  const auto checkpoint = kerf::checkpoint::Checkpoint::open(path);
  const std::int64_t tokens = 5;
  bool same = false;
  kerf::comm::run_local(1, {}, [&](kerf::comm::Group& group) {
    kerf::tensor::HostMemory host;
    kerf::decode::Meter memory(host);
    const kerf::decode::RuntimeOptions options;
    const auto runtime =
        kerf::decode::Runtime::build(checkpoint, options, {group, memory, kerf::Workers(1), {}});
    const auto layers = runtime.layers();
    const auto found = std::ranges::find_if(
        layers, [](const kerf::decode::Layer& l) { return l.input == kerf::op::Input::nvfp4; });
    if (found == layers.end())
      throw kerf::Error(kerf::ErrorKind::unsupported,
                        "no layer's experts are given quantised rows: wanted one");
    const kerf::decode::Layer& layer = *found;
    const kerf::op::RoutedExperts& experts = *layer.ep;
    const std::int64_t hidden = experts.shape().hidden;

    // Quantised rows, and routes.
    const std::vector<std::uint16_t> x(Nine::at(tokens * hidden), 0x3F80);
    std::vector<std::uint8_t> a(x.size() / 2), a_sf(x.size() / 16);
    kerf::numeric::quantise_rows(std::span<const std::uint16_t>(x), hidden, layer.input_scale(), a, a_sf);
    const kerf::op::Tokens rows{tokens, a, a_sf, {}};
    const auto ids = kerf::decode::spread_routes(tokens, experts.top_k(), experts.num_experts());
    const std::vector<float> weights(ids.size(), 0.5F);

    const kerf::op::Tactic tactic{8, -1};  // a tile of 8 rows, its default kernel
    const MetadataShape shape = experts.metadata_shape(tokens, tactic.tile);
    kerf::require(experts.prepare(tactic));
    const kerf::routing::MetadataBuffer own_metadata(memory, kerf::routing::metadata_words(shape));
    std::vector<std::byte> workspace(experts.workspace_bytes(shape, tactic));
    const auto room = Nine::at(kerf::op::gemm2_rows(shape, hidden) * hidden);
    std::vector<std::uint16_t> from_ids(room), from_nine(room);
    const kerf::Workers workers(1);

    const auto wanted = kerf::op::routed_experts(experts, rows, {ids, weights}, tactic, workers,
                                                 {&own_metadata, workspace, std::span(from_ids), nullptr});
    Nine nine = route(shape, ids, weights);
    const auto got =
        kerf::op::routed_experts_from_metadata(experts, rows, shape, nine.view(), tactic, workers,
                                               {nullptr, workspace, std::span(from_nine), nullptr});

    same = true;
    for (std::size_t r = 0; r < ids.size(); ++r) {
      const auto row_of = [&](const kerf::op::Unfinalized& of) {
        return of.rows.subspan(Nine::at(of.map[r] * hidden), Nine::at(hidden));
      };
      same = same && std::ranges::equal(row_of(got), row_of(wanted));
    }
    std::printf("%zu routes in %d tiles\n", ids.size(), nine.live_tiles);
  });
  std::printf("the body's rows: %s\n", same ? "the public op's bits" : "DIFFERENT");
  return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int code = 0;
  const kerf::Verdict failed = kerf::attempt([&] {
    if (argc != 2) throw kerf::Error(kerf::ErrorKind::usage, "usage: 06_own_metadata CHECKPOINT");
    code = compare(argv[1]);
  });
  if (failed) std::fprintf(stderr, "%s\n", failed->text.c_str());
  return failed ? static_cast<int>(failed->kind) : code;
}
