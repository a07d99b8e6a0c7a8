// Values of the one-hot checkpoint that are corrupted, every code of a scale byte and every class of a global
// scale: what cannot be right is refused, what may be is taken at its word. No checksum stands beside a
// value, so that one which is as good as another cannot be told from it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "kerf/checkpoint/checkpoint.h"
#include "tests/decode/support.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

// The rows of four tokens, each of one expert alone; nothing where the checkpoint is refused, as it may be.
std::optional<std::vector<float>> rows_of(const Onehot& onehot, const std::string& what) {
  const TempDir dir;
  onehot.write(dir.path());
  std::optional<std::vector<float>> out;
  const decode::LayerInputs in = onehot_tokens({0, -1, 1, -1, 2, -1, 3, -1}, {1, 0, 1, 0, 1, 0, 1, 0});
  const Verdict refused = attempt(
      [&] { out = widened(run_on(placements()[0], checkpoint::Checkpoint::open(dir.path()), in).y); });
  if (refused) {
    EXPECT_EQ(refused->kind, ErrorKind::checkpoint) << what << ": " << refused->text;
    EXPECT_NE(refused->text.find("layer 0"), std::string::npos) << refused->text;
  }
  return out;
}

std::vector<float> sound_rows() {
  std::vector<float> out;
  for (std::int64_t e = 0; e < 4; ++e)
    for (const float v : onehot_output(e)) out.push_back(v);
  return out;
}

// Expert 2's row 5 of up: block 11 holds its one value that is not zero, block 12 nothing.
TEST(Values, EveryCodeOfABlockScale) {
  const std::vector<float> sound = sound_rows();
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const bool legal = code < 0x7F || code == 0x80;
    for (const std::size_t block : {11, 12}) {
      Onehot onehot;
      onehot.at(onehot.name(2, "up_proj.weight_scale")).bytes[5 * 16 + block] = byte;
      const std::string what = "byte " + std::to_string(code) + " in block " + std::to_string(block);
      const auto rows = rows_of(onehot, what);
      ASSERT_EQ(rows.has_value(), legal) << what;
      if (!legal) continue;
      // Row 5 of up meets columns h of down where (5 h + 2) mod 128 == 5: 103 and 231, of expert 2 alone.
      std::vector<float> others = *rows;
      for (const std::size_t h : {103, 231}) {
        const float got = others[2 * 256 + h];
        const bool unchanged = block == 12 || byte == 0x38;
        const bool zero = byte == 0 || byte == 0x80;
        if (unchanged || zero) {
          EXPECT_EQ(got, unchanged ? 648 : 0) << what;
        }
        EXPECT_TRUE(std::isfinite(got)) << what;
      }
      // A large value takes the codes of its block's other 15 away: columns 0 to 15 of down.
      for (std::size_t h = 0; h < 256; ++h)
        if ((5 * h + 2) % 128 < 16 && block == 11) others[2 * 256 + h] = sound[2 * 256 + h];
      EXPECT_EQ(others, sound) << what;
    }
  }
}

// Powers of two scale rows exactly where they leave the codes alone; all others change nothing else than that
// row.
TEST(Values, EveryClassOfAGlobalScale) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> sound = sound_rows();
  for (const char* name : {"gate_proj.weight_scale_2", "up_proj.weight_scale_2", "down_proj.weight_scale_2",
                           "gate_proj.input_scale", "up_proj.input_scale", "down_proj.input_scale"}) {
    for (const float bad : {0.0F, -0.0F, -1.0F, nan, -nan, inf, -inf, 1e-45F, -1e-45F, 1e-39F}) {
      Onehot onehot;
      onehot.set_f32(onehot.name(1, name), bad);
      EXPECT_FALSE(rows_of(onehot, name)) << name << " = " << bad;
    }
    for (const float legal :
         {std::numeric_limits<float>::max(), std::numeric_limits<float>::min(), 1e30F, 1e-30F, 0.5F, 3.0F}) {
      Onehot onehot;
      onehot.set_f32(onehot.name(1, name), legal);
      const auto rows = rows_of(onehot, name);
      // What no f32 holds together with the others is refused.
      if (!rows && (legal > 100 || legal < 0.01F)) continue;
      ASSERT_TRUE(rows) << name << " = " << legal;
      if (std::string_view(name).find("input") != std::string_view::npos)
        continue;  // the layer's, of all experts
      std::vector<float> others = *rows;
      std::copy_n(sound.begin() + 256, 256, others.begin() + 256);
      EXPECT_EQ(others, sound) << name << " = " << legal;
    }
  }
  Onehot onehot;
  onehot.set_f32(onehot.name(1, "down_proj.weight_scale_2"), 0.5F);
  const auto rows = rows_of(onehot, "a half");
  ASSERT_TRUE(rows);
  for (std::size_t h = 0; h < 256; ++h) EXPECT_EQ((*rows)[256 + h], sound[256 + h] / 2);
}

}  // namespace
}  // namespace kerf::test
