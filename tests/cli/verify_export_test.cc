// `kerf verify` of an export: values and shapes, not only digests. What a program wrote wrong has right
// digests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "kerf/checkpoint/export_file.h"
#include "tests/cli/exports.h"

namespace kerf::test {
namespace {

using checkpoint::ExportFile;
using checkpoint::NamedShape;

struct Tensor {
  NamedShape shape;
  std::vector<std::byte> bytes;
};

// An export for one rank written anew, digests and all, once `change` has had its way with its tensors.
void rewritten(const fs::path& from, const fs::path& to,
               const std::function<void(const std::string& name, Tensor&)>& change) {
  const Workers workers(1);
  const ExportFile file = ExportFile::open_of_rank(from, 0, 1);
  std::vector<std::pair<std::int64_t, Tensor>> tensors;
  for (const auto& [name, entry] : file.header().tensors) {
    if (name == checkpoint::exported_digests || name == checkpoint::exported_ranks) continue;
    Tensor t{{std::string(name), entry.dtype, entry.shape}, {}};
    t.bytes.resize(static_cast<std::size_t>(entry.end - entry.begin));
    checkpoint::ExportReader(file, t.shape.name).read(t.bytes, workers);
    change(t.shape.name, t);
    tensors.emplace_back(entry.begin, std::move(t));
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<NamedShape> shapes;
  for (const auto& [begin, t] : tensors) shapes.push_back(t.shape);
  fs::create_directories(to);
  checkpoint::ExportWriter writer(to, file.facts(), shapes);
  for (const auto& [begin, t] : tensors) writer.append(t.bytes, workers);
  const checkpoint::Digest digest = writer.close();
  writer.finish({&digest, 1});
}

TEST(VerifyExport, LooksAtValuesAndShapes) {
  const TempDir dir;
  const fs::path sound = dir.path() / "sound";
  ASSERT_EQ(exported(model(), sound, {"--ranks", "1"}).code, 0);
  const auto verified = [&](const std::function<void(const std::string&, Tensor&)>& change) {
    const fs::path to = dir.path() / "changed";
    fs::remove_all(to);
    rewritten(sound, to, change);
    return run_program({"verify", to.string()});
  };
  // A start looks as well.
  const auto expect_no_start = [&](std::initializer_list<const char*> words) {
    const Ran ran = run_program({"decode", (dir.path() / "changed").string(), "--ranks", "1"});
    EXPECT_EQ(ran.code, 3);
    for (const char* w : words) EXPECT_TRUE(contains(ran.err, w)) << ran.err;
  };
  EXPECT_EQ(verified([](const std::string&, Tensor&) {}).code, 0);

  // Expert 3 of 8, by the tensors of the layers that model() has: NVFP4, BF16, NVFP4.
  const Ran scales = verified([](const std::string& name, Tensor& t) {
    if (!name.ends_with("layers.2.mlp.experts.w13_sf") && !name.ends_with("layers.0.mlp.experts.w2_sf"))
      return;
    const std::size_t each = t.bytes.size() / 8;
    t.bytes[3 * each + 5] = std::byte{0x7F};
    t.bytes[3 * each + 6] = std::byte{0xB8};
    t.bytes[3 * each + 7] = std::byte{0x80};  // -0 serves
  });
  EXPECT_EQ(scales.code, 3);
  for (const char* words : {"NaN block scale: 2", "negative block scale: 2",
                            "w13_sf, expert 3, byte 5 of its converted scales, 0x7F",
                            "w2_sf, expert 3, byte 6 of its converted scales, 0xB8"})
    EXPECT_TRUE(contains(scales.out, words));
  expect_no_start({"NaN block scale", "w2_sf, expert 3, byte 5 of its converted scales, 0x7F"});

  const Ran values = verified([](const std::string& name, Tensor& t) {
    if (!name.ends_with("layers.1.mlp.experts.w2")) return;
    t.bytes[t.bytes.size() - 2] = std::byte{0x80};
    t.bytes[t.bytes.size() - 1] = std::byte{0x7F};
  });
  EXPECT_EQ(values.code, 3);
  EXPECT_TRUE(contains(values.out, "BF16 weight that is not finite: 1"));
  EXPECT_TRUE(contains(values.out, "expert 7, value 262143 of it as converted, bits 0x7F80"));
  expect_no_start({"BF16 weight that is not finite", "expert 7, value 262143"});

  const Ran shaped = verified([](const std::string& name, Tensor& t) {
    const tensor::Shape was = t.shape.shape;
    if (name.ends_with("layers.0.mlp.experts.w13")) t.shape.shape = {was[0], was[2], was[1]};
  });
  EXPECT_EQ(shaped.code, 3);
  EXPECT_TRUE(contains(shaped.out, "w13: got U8 [8, 128, 2048], wanted U8 [8, 2048, 128]"));

  const Ran without = verified([](const std::string& name, Tensor& t) {
    if (name.ends_with("layers.0.mlp.experts.w2")) t.shape.name += "_of_another";
  });
  EXPECT_EQ(without.code, 3);
  EXPECT_TRUE(contains(without.out, "mlp.experts.w2"));
}

}  // namespace
}  // namespace kerf::test
