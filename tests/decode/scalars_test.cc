#include "kerf/decode/scalars.h"

#include <gtest/gtest.h>

#include "kerf/base/error.h"

namespace kerf::decode {
namespace {

checkpoint::LayerScales scales_of_three() {
  checkpoint::LayerScales s;
  s.ws2_gate = {9.0F, 0.1F, 3.0F};
  s.ws2_up = {9.0F, 0.7F, 5.0F};
  s.ws2_down = {9.0F, 0.3F, 7.0F};
  s.in13 = 1.1F;
  s.in2 = 0.9F;
  return s;
}

TEST(Scalars, OfQuantisedRowsAreOneRoundingAnOperation) {
  tensor::HostMemory memory;
  const layout::Nvfp4Experts experts(memory, {2, 128, 64}, 1);  // experts 1 and 2 of three
  write_scalars(scales_of_three(), op::Input::nvfp4, experts);
  const auto gate = experts.g1_alphas.as<const float>();
  const auto up = experts.g1_scale_c.as<const float>();
  const auto down = experts.g2_alphas.as<const float>();
  const float first_up = 1.1F * 0.7F;  // the product is rounded before the quotient
  const float second_up = 1.1F * 5.0F;
  EXPECT_EQ(gate[0], 1.1F * 0.1F);
  EXPECT_EQ(gate[1], 1.1F * 3.0F);
  EXPECT_EQ(up[0], first_up / 0.9F);
  EXPECT_EQ(up[1], second_up / 0.9F);
  EXPECT_EQ(down[0], 0.9F * 0.3F);
  EXPECT_EQ(down[1], 0.9F * 7.0F);
  EXPECT_EQ(experts.a1_gscale.as<const float>()[0], 1.0F / 1.1F);
  EXPECT_EQ(experts.a2_gscale.as<const float>()[0], 1.0F / 0.9F);
}

TEST(Scalars, OfBf16RowsAreTheWeightsOwn) {
  tensor::HostMemory memory;
  const layout::Nvfp4Experts experts(memory, {2, 128, 64}, 1);
  write_scalars(scales_of_three(), op::Input::bf16, experts);
  EXPECT_EQ(experts.g1_alphas.as<const float>()[0], 0.1F);
  EXPECT_EQ(experts.g1_scale_c.as<const float>()[1], 5.0F);
  EXPECT_EQ(experts.g2_alphas.as<const float>()[1], 7.0F);
  EXPECT_EQ(experts.a1_gscale.as<const float>()[0], 1.0F);
  EXPECT_EQ(experts.a2_gscale.as<const float>()[0], 1.0F);
}

// Each scale is a sound f32, but a product or quotient of them is not.
TEST(Scalars, RefusesWhatLeavesTheRange) {
  tensor::HostMemory memory;
  const layout::Nvfp4Experts experts(memory, {2, 128, 64}, 1);
  checkpoint::LayerScales s = scales_of_three();
  s.ws2_up[2] = 1e30F;
  s.in2 = 1e-20F;
  try {
    write_scalars(s, op::Input::nvfp4, experts);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::checkpoint);
    EXPECT_NE(std::string(e.what()).find("expert 2"), std::string::npos) << e.what();
  }
  s = scales_of_three();
  s.ws2_gate[1] = 1e-30F;
  s.in13 = 1e-20F;
  EXPECT_THROW(write_scalars(s, op::Input::nvfp4, experts), Error);
}

// 1e33 is a number, times (448 x 6)^2 it is none; of bf16 rows only 448 x 6 counts.
TEST(Scalars, RefusesWhatOverflowsInOneProduct) {
  tensor::HostMemory memory;
  const layout::Nvfp4Experts experts(memory, {3, 128, 64}, 0);
  checkpoint::LayerScales s = scales_of_three();
  s.ws2_down[1] = 1e33F;
  EXPECT_THROW(write_scalars(s, op::Input::nvfp4, experts), Error);
  EXPECT_NO_THROW(write_scalars(s, op::Input::bf16, experts));
  checkpoint::Faults faults;
  check_scalars(s, op::Input::nvfp4, 7, faults);
  EXPECT_EQ(faults.total(), 1);
  EXPECT_NE(faults.text().find("layer 7, expert 1: "), std::string::npos) << faults.text();
  check_scalars(s, op::Input::bf16, 7, faults);
  EXPECT_EQ(faults.total(), 1);
}

}  // namespace
}  // namespace kerf::decode
