// E, division, square root and the conversions have the host's bits on the device.
#include <random>

#include "tests/support/device_numeric.h"
#include "tests/support/gpu.h"

namespace kerf::numeric {
namespace {

using DeviceNumeric = test::OnGpu;
using test::Numeric;

TEST_F(DeviceNumeric, HasTheHostsBits) {
  constexpr std::size_t count = std::size_t{1} << 21;
  std::vector<float> x(count);
  std::vector<float> y(count);
  std::mt19937 random(7);
  const auto any = [&] { return std::bit_cast<float>(static_cast<std::uint32_t>(random())); };
  for (std::size_t i = 0; i < count; ++i) {
    x[i] = any();
    y[i] = any();
    // Half of them where things happen: E's range, the small formats' midpoints, results below 2^-126.
    if (i % 4 == 1) x[i] = std::fmod(x[i], 110.0F);
    if (i % 4 == 2) x[i] = std::round(std::fmod(x[i], 500.0F) * 64.0F) / 64.0F;
    if (i % 8 == 3) y[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random() & 0x80FFFFFFU));
  }
  constexpr float specials[] = {0.0F,    -0.0F,  1.0F,   0x1p-149F, 0x1p-126F,
                                3.4e38F, 448.0F, 464.0F, 0.25F,     5.0F};
  std::size_t at = 0;
  for (const float a : specials)
    for (const float b : specials) x[at] = a, y[at++] = -b;

  for (int f = 0; f <= static_cast<int>(Numeric::from_e4m3); ++f) {
    const auto function = static_cast<Numeric>(f);
    const std::vector<std::uint32_t> got = evaluate_on_device(function, x, y);
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(got[i], evaluate(function, x[i], y[i])) << "function " << f << " of " << x[i] << ", " << y[i];
  }
}

}  // namespace
}  // namespace kerf::numeric
