// What a reshard sends, and when: checks before anything moves, then one exchange a tensor kind.
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "kerf/comm/local.h"
#include "kerf/expert_tp/expert_tp.h"
#include "tests/decode/forwarding_group.h"
#include "tests/expert_tp/layer.h"

namespace kerf::expert_tp {
namespace {

// Notes every all-to-all and all-gather that carries tensors.
class Noting : public test::ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  std::vector<std::string> exchanges, gathers;

  void all_to_all(std::span<const tensor::StridedBytes> send, std::span<const std::span<std::byte>> received,
                  std::string_view what) override {
    exchanges.emplace_back(what);
    ForwardingGroup::all_to_all(send, received, what);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) override {
    gathers.emplace_back(what);
    ForwardingGroup::all_gather(mine, all, what);
  }
};

TEST(Exchange, OneAllToAllAKindThenThreeGathers) {
  const test::Layer layer = test::random_layer(4, 256, 128, 3);
  comm::run_local(2, {}, [&](comm::Group& below) {
    Noting group(below);
    tensor::HostMemory memory;
    const auto stock = test::convert_experts(layer, 2 * group.rank(), 2, 1, 0, memory);
    (void)reshard(stock.view(), group, 4, memory);
    EXPECT_EQ(group.exchanges, (std::vector<std::string>{"w13", "w13_sf", "w2", "w2_sf"}));
    ASSERT_GE(group.gathers.size(), 3U);
    EXPECT_EQ((std::vector<std::string>{group.gathers.end() - 3, group.gathers.end()}),
              (std::vector<std::string>{"g1_alphas", "g1_scale_c", "g2_alphas"}));
  });
}

// Shapes and placement are settled first, then the global scales; where something is refused, no tensor
// moves.
TEST(Exchange, PlacementIsSettledBeforeTheGlobalScales) {
  const test::Layer layer = test::random_layer(4, 256, 128, 3);
  static const float other = std::bit_cast<float>(0x3F801235U);
  comm::run_local(2, {}, [&](comm::Group& below) {
    for (const bool misplaced : {true, false}) {
      Noting group(below);
      tensor::HostMemory memory;
      const auto stock = test::convert_experts(layer, 2 * group.rank(), 2, 1, 0, memory);
      layout::Nvfp4View view = stock.view();
      if (group.rank() == 0) view.a1_gscale.bytes = std::as_bytes(std::span(&other, 1));
      if (misplaced && group.rank() == 1) view.first_expert = 0;
      const Verdict verdict = attempt([&] { (void)reshard(view, group, 4, memory); });
      ASSERT_TRUE(verdict);
      EXPECT_NE(verdict->text.find(misplaced ? "rank 1 holds expert 0" : "a1_gscale"), std::string::npos)
          << verdict->text;
      EXPECT_TRUE(group.exchanges.empty());
    }
  });
}

}  // namespace
}  // namespace kerf::expert_tp
