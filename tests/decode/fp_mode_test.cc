// Outputs have the same bits whatever floating point mode the ranks' own threads run in.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kerf/decode/decode.h"
#include "tests/decode/support.h"
#include "tests/support/flushing.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

// An exact model whose scales are sound, but whose g1_alphas = 2^-70 * 2^-70 is subnormal. The gate's raw dot
// is multiplied by it, up's scale and the output's are ordinary.
Onehot with_subnormal_products() {
  Onehot onehot;
  for (std::int64_t e = 0; e < Onehot::experts; ++e) {
    onehot.set_f32(onehot.name(e, "gate_proj.input_scale"), 0x1p-70F);
    onehot.set_f32(onehot.name(e, "up_proj.input_scale"), 0x1p-70F);
    onehot.set_f32(onehot.name(e, "gate_proj.weight_scale_2"), 0x1p-70F);
    onehot.set_f32(onehot.name(e, "up_proj.weight_scale_2"), 0x1p70F);
  }
  return onehot;
}

template <typename Result>
Result with_mode(bool flushing, const std::function<Result(const decode::Rank&)>& body) {
  std::vector<Result> results(2);
  on_ranks({2, 2, {}}, [&](const decode::Rank& rank) {
    std::optional<Flushing> mode;
    if (flushing) mode.emplace();
    results[static_cast<std::size_t>(rank.group.rank())] = body(rank);
    EXPECT_EQ(Flushing::now(), flushing) << "the caller's mode is put back";
  });
  return results[0];
}

TEST(FpMode, DigestsAreTheSameWhereTheRanksFlush) {
  const TempDir dir;
  with_subnormal_products().write(dir.path());
  const checkpoint::Checkpoint from = checkpoint::Checkpoint::open(dir.path());
  decode::Options options;
  options.modes = {decode::Mode::ep, decode::Mode::tp};
  options.repetitions = 1;
  options.seconds = 0;
  const auto digests = [&](bool flushing) {
    return with_mode<std::vector<std::string>>(flushing, [&](const decode::Rank& rank) {
      std::vector<std::string> out;
      for (const auto& step : decode::run(from, options, rank).steps) out.push_back(step.output_sha256);
      return out;
    });
  };
  EXPECT_EQ(digests(true), digests(false));
}

// Subnormal f32 rows that the layer's own scale brings into range.
TEST(FpMode, RowsOfALayerAreTheSameWhereTheRanksFlush) {
  const TempDir dir;
  Onehot onehot;
  for (std::int64_t e = 0; e < Onehot::experts; ++e)
    for (const char* m : {"gate_proj", "up_proj"}) {
      onehot.set_f32(onehot.name(e, std::string(m) + ".input_scale"), 0x1p-126F);
      onehot.set_f32(onehot.name(e, std::string(m) + ".weight_scale_2"), 0x1p116F);
    }
  // What is left of 2^-126 x 2^116, squared by the gate, is given back by the down projection.
  for (std::int64_t e = 0; e < Onehot::experts; ++e) {
    onehot.set_f32(onehot.name(e, "down_proj.input_scale"), 216 * 0x1p-21F);
    onehot.set_f32(onehot.name(e, "down_proj.weight_scale_2"), 0x1p21F);
  }
  onehot.write(dir.path());
  const checkpoint::Checkpoint from = checkpoint::Checkpoint::open(dir.path());
  decode::LayerInputs in = onehot_tokens({0, 1, 3, 2}, {0.5F, 0.5F, 1, 0.25F});
  in.x.clear();
  for (int t = 0; t < 2; ++t)
    for (const float v : onehot_input()) in.x_f32.push_back(v * 0x1p-130F);
  const auto y = [&](bool flushing) {
    return with_mode<std::vector<std::uint16_t>>(
        flushing, [&](const decode::Rank& rank) { return decode::run_layer(from, {}, in, rank).y; });
  };
  const std::vector<std::uint16_t> wanted = y(false);
  EXPECT_NE(wanted, std::vector<std::uint16_t>(wanted.size()));
  EXPECT_EQ(y(true), wanted);
}

}  // namespace
}  // namespace kerf::test
