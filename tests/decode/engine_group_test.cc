// The whole story on an engine's own group: built, resharded, probed and decoded over callbacks alone, with
// the bits of the local group, in every placement.
#include <gtest/gtest.h>

#include <array>

#include "kerf/comm/local.h"
#include "kerf/decode/inputs.h"
#include "tests/comm/engine.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

struct Case {
  int ep, tp;
  decode::Mode mode;
};

// Rank 0's rows, [T, H] bf16; all ranks have them.
std::vector<std::uint16_t> rows_of(const Case& c, const EngineHas* engine) {
  static const checkpoint::Checkpoint from = small_model().open();
  decode::LayerInputs in;
  in.tokens = 3;
  in.rows_name = "x";
  in.routes_name = "topk_ids";
  for (std::int64_t i = 0; i < in.tokens * 256; ++i)
    in.x.push_back(static_cast<std::uint16_t>(0x3F00 + i * 7 % 256 + (i % 3 == 0 ? 0x8000 : 0)));
  in.ids = decode::spread_routes(in.tokens, 4, 16);
  in.weights.assign(in.ids.size(), 0.25F);
  std::vector<decode::LayerResult> got(static_cast<std::size_t>(c.ep * c.tp));
  comm::run_local(c.ep * c.tp, {}, [&](comm::Group& host) {
    std::unique_ptr<comm::Group> made;
    if (engine != nullptr) made = comm::make_engine_group(engine_of(host, *engine));
    comm::Group& group = made ? *made : host;
    const comm::Grid grid(group, c.ep, c.tp);
    Checked checked(host.rank());
    decode::Meter meter(checked.memory);
    decode::LayerOptions options;
    options.mode = c.mode;
    got[static_cast<std::size_t>(host.rank())] =
        decode::run_layer(from, options, in, {group, meter, Workers(1), {}, &grid});
    host.barrier("all are through");
  });
  for (const auto& result : got) EXPECT_EQ(result.y, got[0].y);
  return got[0].y;
}

TEST(EngineGroup, DecodesWithTheBitsOfTheLocalGroup) {
  constexpr EngineHas least{};
  constexpr EngineHas most{.sums = true, .ordered = true, .splits = true, .barrier = true};
  for (const Case& c : {Case{1, 1, decode::Mode::ep}, Case{4, 1, decode::Mode::ep},
                        Case{1, 4, decode::Mode::tp}, Case{2, 2, decode::Mode::tp}}) {
    const auto wanted = rows_of(c, nullptr);
    ASSERT_EQ(wanted.size(), 3 * 256);
    EXPECT_EQ(rows_of(c, &least), wanted) << c.ep << " x " << c.tp;
    EXPECT_EQ(rows_of(c, &most), wanted) << c.ep << " x " << c.tp;
  }
}

}  // namespace
}  // namespace kerf::test
