// Bound experts whose tensors get other contents: after reread() they have the bits of experts that are bound
// to such contents from the start, on every backend and back again.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kerf/op/op.h"
#include "tests/support/experts.h"

namespace kerf::op {
namespace {

using layout::ExpertsShape;
using test::OpResult;
using test::StepData;

class Reread : public ::testing::TestWithParam<std::string> {};

void overwrite(const layout::Nvfp4Experts& to, const layout::Nvfp4Experts& from) {
  const auto copy = [](const tensor::Tensor& t, const tensor::Tensor& f) {
    std::copy(f.bytes().begin(), f.bytes().end(), t.bytes().begin());
  };
  copy(to.w13, from.w13);
  copy(to.w13_sf, from.w13_sf);
  copy(to.w2, from.w2);
  copy(to.w2_sf, from.w2_sf);
  copy(to.g1_alphas, from.g1_alphas);
  copy(to.g1_scale_c, from.g1_scale_c);
  copy(to.g2_alphas, from.g2_alphas);
  copy(to.a1_gscale, from.a1_gscale);
  copy(to.a2_gscale, from.a2_gscale);
}

// Alpha, beta and limits of four experts, two sets.
struct Gated {
  std::vector<float> alpha, beta, limit;
  [[nodiscard]] GatedParameters all() const { return {alpha, beta, limit, limit}; }
};
const Gated first_gated = {
    {1.0F, 1.702F, 0.5F, 2.0F}, {0.0F, 1500.0F, -3.0F, 1.0F}, {3e4F, 2e3F, 1e9F, 1e2F}};
const Gated second_gated = {{2.0F, 1.0F, 1.5F, 1.0F}, {7.0F, 0.0F, 900.0F, -1.0F}, {1e3F, 1e9F, 5e2F, 7e3F}};

TEST_P(Reread, HasTheBitsOfExpertsBoundAnew) {
  tensor::HostMemory memory;
  const ExpertsShape shape{4, 256, 128};
  const auto a = test::random_nvfp4(memory, shape, 0, 1);
  const auto b = test::random_nvfp4(memory, shape, 0, 2);
  // Scales for which a backend may have other kernels: what it found out at binding holds no more.
  b.w13_sf.as<std::uint8_t>()[1234] = 0xB8;
  b.w2_sf.as<std::uint8_t>()[777] = 0x7E;
  for (const Input input : {Input::nvfp4, Input::bf16}) {
    const auto held = test::random_nvfp4(memory, shape, 0, 3);
    overwrite(held, a);
    const auto args = [&](const layout::Nvfp4Experts& e, const Gated& g) {
      return Nvfp4Args{e.view(), 4, 4, input, g.all()};
    };
    const auto bound = backend(GetParam()).bind(args(held, first_gated));
    const StepData step = test::random_step(6, 4, 4, shape.hidden, 78);
    const OpResult old_rows = test::run_op(*backend(GetParam()).bind(args(a, first_gated)), step);
    const OpResult new_rows = test::run_op(*backend(GetParam()).bind(args(b, second_gated)), step);
    ASSERT_NE(old_rows.rows, new_rows.rows);
    ASSERT_EQ(test::run_op(*bound, step).rows, old_rows.rows);
    for (const Tactic tactic : bound->tactics(6)) (void)bound->prepare(tactic);
    overwrite(held, b);
    bound->reread(second_gated.all());
    EXPECT_EQ(test::run_op(*bound, step).rows, new_rows.rows);
    overwrite(held, a);
    bound->reread(first_gated.all());
    EXPECT_EQ(test::run_op(*bound, step).rows, old_rows.rows);
  }
}

TEST_P(Reread, OfBf16ExpertsToo) {
  tensor::HostMemory memory;
  const ExpertsShape shape{4, 128, 128};
  const auto a = test::random_bf16(memory, shape, 0, 1);
  const auto b = test::random_bf16(memory, shape, 0, 2);
  const auto held = test::random_bf16(memory, shape, 0, 3);
  const auto overwrite_bf16 = [&](const layout::Bf16Experts& from) {
    std::copy(from.w13.bytes().begin(), from.w13.bytes().end(), held.w13.bytes().begin());
    std::copy(from.w2.bytes().begin(), from.w2.bytes().end(), held.w2.bytes().begin());
  };
  const auto args = [](const layout::Bf16Experts& e, const Gated& g) {
    return Bf16Args{e.view(), 4, 4, g.all()};
  };
  overwrite_bf16(a);
  const auto bound = backend(GetParam()).bind(args(held, first_gated));
  const StepData step = test::random_step(6, 4, 4, shape.hidden, 78);
  const OpResult old_rows = test::run_op(*backend(GetParam()).bind(args(a, first_gated)), step);
  const OpResult new_rows = test::run_op(*backend(GetParam()).bind(args(b, second_gated)), step);
  ASSERT_NE(old_rows.rows, new_rows.rows);
  ASSERT_EQ(test::run_op(*bound, step).rows, old_rows.rows);
  overwrite_bf16(b);
  bound->reread(second_gated.all());
  EXPECT_EQ(test::run_op(*bound, step).rows, new_rows.rows);
}

INSTANTIATE_TEST_SUITE_P(Listed, Reread, ::testing::ValuesIn(backend_names()), [](const auto& listed) {
  std::string name = listed.param;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
});

}  // namespace
}  // namespace kerf::op
