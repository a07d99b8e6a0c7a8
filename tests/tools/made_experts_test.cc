// Made-up experts: the same wherever they are held and whoever makes them, regular, and of a size that the
// arithmetic can hold.
#include "kerf/tools/made_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "kerf/numeric/bf16.h"
#include "tests/support/experts.h"

namespace kerf::tools {
namespace {

constexpr layout::ExpertsShape kShape{4, 256, 128};

bool same(std::span<const std::byte> a, std::span<const std::byte> b) { return std::ranges::equal(a, b); }

TEST(MadeExperts, AnExpertIsTheSameWhereverItIsHeld) {
  tensor::HostMemory memory;
  const layout::Nvfp4Experts all = made_nvfp4(memory, kShape, 0, op::Input::nvfp4, 5, Workers(1));
  const layout::Nvfp4Experts last = made_nvfp4(memory, {1, 256, 128}, 3, op::Input::nvfp4, 5, Workers(3));
  const auto of_last = [](const tensor::Tensor& t) { return t.bytes().last(t.bytes().size() / 4); };
  EXPECT_TRUE(same(of_last(all.w13), last.w13.bytes()));
  EXPECT_TRUE(same(of_last(all.w13_sf), last.w13_sf.bytes()));
  EXPECT_TRUE(same(of_last(all.w2), last.w2.bytes()));
  EXPECT_TRUE(same(of_last(all.w2_sf), last.w2_sf.bytes()));
  EXPECT_FALSE(same(all.w13.bytes().first(last.w13.bytes().size()), last.w13.bytes()));
  const layout::Bf16Experts whole = made_bf16(memory, kShape, 0, 5, Workers(1));
  const layout::Bf16Experts part = made_bf16(memory, {1, 256, 128}, 3, 5, Workers(2));
  EXPECT_TRUE(same(of_last(whole.w13), part.w13.bytes()));
  EXPECT_TRUE(same(of_last(whole.w2), part.w2.bytes()));
  const layout::Nvfp4Experts other = made_nvfp4(memory, kShape, 0, op::Input::nvfp4, 6, Workers(1));
  EXPECT_FALSE(same(all.w13.bytes(), other.w13.bytes()));
}

TEST(MadeExperts, ScalesAreRegular) {
  tensor::HostMemory memory;
  const layout::Nvfp4Experts e = made_nvfp4(memory, kShape, 0, op::Input::nvfp4, 1, Workers(1));
  for (const tensor::Tensor* t : {&e.w13_sf, &e.w2_sf}) {
    const auto [least, most] = std::ranges::minmax(t->bytes());
    EXPECT_EQ(least, std::byte{0x30});  // 0.5
    EXPECT_EQ(most, std::byte{0x3F});   // 1.875
  }
}

// Unit rows in, rows in the neighbourhood of 1 out: nothing overflows, nothing vanishes.
TEST(MadeExperts, RowsStayNearUnitSize) {
  tensor::HostMemory memory;
  const test::StepData step = test::random_step(4, 2, kShape.experts, kShape.hidden, 3);  // quantised at 448
  for (const op::Arithmetic arithmetic :
       {op::Arithmetic::w4a4, op::Arithmetic::w4a16, op::Arithmetic::bf16}) {
    std::optional<layout::Nvfp4Experts> nvfp4;
    std::optional<layout::Bf16Experts> bf16;
    std::unique_ptr<op::RoutedExperts> bound;
    if (arithmetic == op::Arithmetic::bf16) {
      bf16.emplace(made_bf16(memory, kShape, 0, 1, Workers(1)));
      bound = op::backend("reference").bind(op::Bf16Args{bf16->view(), kShape.experts, 2, {}});
    } else {
      const auto input = arithmetic == op::Arithmetic::w4a4 ? op::Input::nvfp4 : op::Input::bf16;
      nvfp4.emplace(made_nvfp4(memory, kShape, 0, input, 1, Workers(1)));
      bound = op::backend("reference").bind(op::Nvfp4Args{nvfp4->view(), kShape.experts, 2, input, {}});
    }
    double squares = 0;
    const test::OpResult result = test::run_op(*bound, step);
    for (const std::uint16_t v : result.rows) squares += std::pow(numeric::bf16_to_f32(v), 2);
    const double rms = std::sqrt(squares / static_cast<double>(result.rows.size()));
    EXPECT_GT(rms, 0.05) << op::name(arithmetic);
    EXPECT_LT(rms, 20) << op::name(arithmetic);
  }
}

}  // namespace
}  // namespace kerf::tools
