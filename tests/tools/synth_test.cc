#include "kerf/tools/synth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/layout/geometry.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/tools/internal/synth_values.h"
#include "kerf/tools/verify.h"
#include "tests/support/test_env.h"

namespace kerf::tools {
namespace {

namespace fs = std::filesystem;

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::map<std::string, std::string> files_of(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory))
    files[entry.path().filename().string()] = slurp(entry.path());
  return files;
}

SynthOptions small(SynthModel model) {
  SynthOptions o = synth_defaults(model);
  o.experts = 4;
  o.hidden = 256;
  o.intermediate = 192;
  o.layers = 2;
  o.top_k = 2;
  o.bf16_layers = {1};
  return o;
}

std::string refusal(const SynthOptions& o, ErrorKind kind) {
  const Verdict why = unsupported(o);
  EXPECT_TRUE(why);
  if (!why) return {};
  EXPECT_EQ(why->kind, kind) << why->text;
  return why->text;
}

class SynthModels : public testing::TestWithParam<SynthModel> {};

TEST_P(SynthModels, SameBytesAtAnyThreadCount) {
  const test::TempDir dir;
  const SynthOptions o = small(GetParam());
  synth(dir.path() / "one", o, Workers(1));
  synth(dir.path() / "three", o, Workers(3));
  const auto one = files_of(dir.path() / "one");
  EXPECT_EQ(one, files_of(dir.path() / "three"));
  EXPECT_TRUE(one.contains("config.json"));
  EXPECT_TRUE(one.contains("model.safetensors.index.json"));
}

TEST_P(SynthModels, AnotherSeedGivesOtherWeights) {
  const test::TempDir dir;
  SynthOptions o = small(GetParam());
  synth(dir.path() / "a", o, Workers(1));
  o.seed = 2;
  synth(dir.path() / "b", o, Workers(1));
  const auto a = files_of(dir.path() / "a");
  const auto b = files_of(dir.path() / "b");
  EXPECT_EQ(a.at("config.json"), b.at("config.json"));
  EXPECT_NE(a.at("model-00001-of-00001.safetensors"), b.at("model-00001-of-00001.safetensors"));
}

TEST_P(SynthModels, OpensAndVerifiesClean) {
  const test::TempDir dir;
  const SynthOptions o = small(GetParam());
  const SynthReport report = synth(dir.path(), o, Workers(2));
  const auto ckpt = checkpoint::Checkpoint::open(dir.path());
  EXPECT_EQ(ckpt.config().experts, o.experts);
  EXPECT_EQ(ckpt.config().hidden, o.hidden);
  EXPECT_EQ(ckpt.config().intermediate, o.intermediate);
  EXPECT_EQ(ckpt.config().top_k, o.top_k);
  ASSERT_EQ(ckpt.moe_layers(), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(ckpt.layer(0).kind(), checkpoint::ExpertKind::nvfp4);
  EXPECT_EQ(ckpt.layer(1).kind(), checkpoint::ExpertKind::bf16);
  std::int64_t on_disk = 0;
  for (const auto& shard : ckpt.shards()) on_disk += shard.bytes;
  EXPECT_GT(on_disk, report.bytes);
  EXPECT_LT(on_disk, report.bytes + 200'000);

  const VerifyReport checked = verify(ckpt, Workers(2));
  EXPECT_TRUE(checked.faults.empty()) << checked.faults.text();
  EXPECT_EQ(checked.layers, 2);
  EXPECT_EQ(checked.experts, 2 * o.experts);
  // All block scales and six scalars an expert of the one layer, all BF16 weights of the other; of both the
  // router's weight, and where the model has them (at twice the width of the experts) an F32 bias, two norms'
  // weights and two projections in BF16.
  const std::int64_t extras =
      2 * (GetParam() == SynthModel::muse_spark ? o.experts * 2 * o.hidden * 4 + o.experts * 4 +
                                                      2 * o.hidden * 2 + 2 * 2 * o.hidden * o.hidden * 2
                                                : o.experts * o.hidden * 2);
  const std::int64_t weights = 3 * o.hidden * o.intermediate * o.experts;
  EXPECT_EQ(checked.bytes_checked, weights / 16 + o.experts * 6 * 4 + weights * 2 + extras);
}

// Rows of unit variance for inputs of unit RMS: a row's squared weights sum to 1 on average.
TEST_P(SynthModels, RowsHaveUnitVariance) {
  const test::TempDir dir;
  const SynthOptions o = small(GetParam());
  synth(dir.path(), o, Workers(1));
  const auto ckpt = checkpoint::Checkpoint::open(dir.path());
  const checkpoint::MoeLayer& layer = ckpt.layer(0);
  checkpoint::Faults faults;
  const checkpoint::LayerScales scales = layer.scales(faults);
  ASSERT_TRUE(faults.empty());
  const auto mean_square = [](const tensor::TensorView& codes, const tensor::TensorView& sf, std::int64_t k,
                              float factor) {
    std::vector<std::uint8_t> c(codes.bytes.size());
    std::vector<std::uint8_t> s(sf.bytes.size());
    std::memcpy(c.data(), codes.bytes.data(), c.size());
    std::memcpy(s.data(), sf.bytes.data(), s.size());
    std::vector<float> values(2 * c.size());
    numeric::dequantise_rows(c, s, k, factor, values);
    double sum = 0;
    for (const float v : values) sum += double{v} * double{v};
    return sum / static_cast<double>(values.size()) * static_cast<double>(k);
  };
  for (std::int64_t e = 0; e < o.experts; ++e) {
    const checkpoint::ExpertViews v = layer.expert(e);
    const auto i = static_cast<std::size_t>(e);
    // 49,152 weights of kurtosis below 4 and shared block scales: the mean square is within 5 % by far more
    // than six standard deviations (each below 1 %).
    EXPECT_NEAR(mean_square(v.gate, v.gate_sf, o.hidden, scales.ws2_gate[i]), 1.0, 0.05) << e;
    EXPECT_NEAR(mean_square(v.down, v.down_sf, o.intermediate, scales.ws2_down[i]), 1.0, 0.05) << e;
  }
  // The BF16 layer: no quantisation, the same width.
  const checkpoint::ExpertViews v = ckpt.layer(1).expert(0);
  double sum = 0;
  for (std::size_t i = 0; i + 2 <= v.up.bytes.size(); i += 2) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, v.up.bytes.data() + i, 2);
    sum += std::pow(double{numeric::bf16_to_f32(bits)}, 2);
  }
  EXPECT_NEAR(sum / static_cast<double>(o.intermediate), 1.0, 0.05);
}

TEST_P(SynthModels, SomeGateAndUpScalesDiffer) {
  const test::TempDir dir;
  SynthOptions o = small(GetParam());
  o.experts = 32;
  synth(dir.path(), o, Workers(2));
  const auto ckpt = checkpoint::Checkpoint::open(dir.path());
  checkpoint::Faults faults;
  const checkpoint::LayerScales scales = ckpt.layer(0).scales(faults);
  EXPECT_GT(scales.gate_up_differ, 0);
  EXPECT_LT(scales.gate_up_differ, 32);
  EXPECT_GT(scales.largest_gate_up_ratio, 1.1);
  // Calibrated for unit-RMS inputs: largest magnitude 4 to 5, over 6 * 448.
  EXPECT_GE(scales.in13, 4.0F / 2688.0F);
  EXPECT_LE(scales.in13, 5.0F / 2688.0F);
  EXPECT_FALSE(scales.weight_only);
}

INSTANTIATE_TEST_SUITE_P(All, SynthModels,
                         testing::Values(SynthModel::muse_spark, SynthModel::qwen3_moe, SynthModel::tiny),
                         [](const auto& instance) {
                           std::string text(name(instance.param));
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text;
                         });

TEST(Synth, ShardsHoldTheTensorsOfOneFile) {
  const test::TempDir dir;
  SynthOptions o = small(SynthModel::qwen3_moe);
  const SynthReport whole = synth(dir.path() / "whole", o, Workers(1));
  o.shard_bytes = 200'000;
  const SynthReport cut = synth(dir.path() / "cut", o, Workers(1));
  EXPECT_EQ(whole.shards, 1);
  EXPECT_GT(cut.shards, 4);
  EXPECT_EQ(whole.bytes, cut.bytes);
  EXPECT_EQ(whole.tensors, cut.tensors);
  const auto a = checkpoint::Checkpoint::open(dir.path() / "whole");
  const auto b = checkpoint::Checkpoint::open(dir.path() / "cut");
  for (std::int64_t e = 0; e < o.experts; ++e) {
    const auto va = a.layer(0).expert(e).down;
    const auto vb = b.layer(0).expert(e).down;
    ASSERT_TRUE(std::equal(va.bytes.begin(), va.bytes.end(), vb.bytes.begin(), vb.bytes.end())) << e;
  }
}

TEST(Synth, ReplacesWhatItWrote) {
  const test::TempDir dir;
  SynthOptions o = small(SynthModel::tiny);
  o.shard_bytes = 200'000;
  synth(dir.path() / "c", o, Workers(1));
  o.shard_bytes = std::int64_t{1} << 30;
  synth(dir.path() / "c", o, Workers(1));
  synth(dir.path() / "fresh", o, Workers(1));
  EXPECT_EQ(files_of(dir.path() / "c"), files_of(dir.path() / "fresh"));
}

TEST(Synth, RefusesADirectoryWithOtherFiles) {
  const test::TempDir dir;
  const SynthOptions o = small(SynthModel::tiny);
  // A model somebody downloaded: shard names alone do not make it ours.
  const fs::path theirs = dir.path() / "theirs";
  fs::create_directory(theirs);
  std::ofstream(theirs / "model-00001-of-00002.safetensors") << "weights";
  // A directory of ours that something was put into.
  const fs::path ours = dir.path() / "ours";
  synth(ours, o, Workers(1));
  std::ofstream(ours / "notes.txt") << "keep";
  for (const auto& [path, name] :
       {std::pair{theirs, "model-00001-of-00002.safetensors"}, {ours, "notes.txt"}}) {
    const auto before = files_of(path);
    try {
      synth(path, o, Workers(1));
      ADD_FAILURE() << path;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage);
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
    EXPECT_EQ(before, files_of(path));
  }
}

TEST(Synth, RefusesAFileAndAPlaceThatCannotBe) {
  const test::TempDir dir;
  const SynthOptions o = small(SynthModel::tiny);
  std::ofstream(dir.path() / "file") << "x";
  EXPECT_THROW(synth(dir.path() / "file", o, Workers(1)), Error);
  EXPECT_THROW(synth(dir.path() / "file" / "below", o, Workers(1)), Error);
}

TEST(Synth, InterruptedRunsDoNotOpen) {
  const test::TempDir dir;
  const fs::path path = dir.path() / "c";
  SynthOptions o = small(SynthModel::tiny);
  synth(path, o, Workers(1));
  o.seed = 2;
  struct Stop {};
  EXPECT_THROW(synth(path, o, Workers(1), [](std::int64_t, std::int64_t) { throw Stop{}; }), Stop);
  EXPECT_THROW(checkpoint::Checkpoint::open(path), Error);
  synth(path, o, Workers(1));
  EXPECT_NO_THROW(checkpoint::Checkpoint::open(path));
}

// Whatever a run that was killed has left, the next one clears away: temporary files too, and those of a run
// that had not even marked the directory. config.json comes last, so that nothing opens before all is there.
TEST(Synth, ClearsAwayWhatAKilledRunLeft) {
  const test::TempDir dir;
  const SynthOptions o = small(SynthModel::tiny);
  synth(dir.path() / "fresh", o, Workers(1));
  const fs::path path = dir.path() / "c";
  fs::create_directory(path);
  std::ofstream(path / ".kerf-synth.tmp-17-0") << "half";
  synth(path, o, Workers(1));
  EXPECT_EQ(files_of(path), files_of(dir.path() / "fresh"));
  for (const char* name :
       {"hf_quant_config.json.tmp-17-0", "config.json.tmp-17-1", "model.safetensors.index.json.tmp-17-2",
        "model-00001-of-00001.safetensors.tmp-17-3"})
    std::ofstream(path / name) << "half";
  synth(path, o, Workers(1));
  EXPECT_EQ(files_of(path), files_of(dir.path() / "fresh"));
  for (const auto& entry : fs::directory_iterator(path))
    EXPECT_LE(fs::last_write_time(entry), fs::last_write_time(path / "config.json")) << entry.path();
  fs::remove(path / "config.json");
  EXPECT_THROW(checkpoint::Checkpoint::open(path), Error);
}

TEST(Synth, ProgressEndsAtTheTotal) {
  const test::TempDir dir;
  std::int64_t last = 0;
  std::int64_t all = 0;
  const SynthReport r =
      synth(dir.path(), small(SynthModel::tiny), Workers(2), [&](std::int64_t done, std::int64_t total) {
        EXPECT_GT(done, last);
        last = done;
        all = total;
      });
  EXPECT_EQ(last, r.bytes);
  EXPECT_EQ(all, r.bytes);
}

TEST(Synth, TheModelsWidthIsItsOwn) {
  const test::TempDir dir;
  SynthOptions o = small(SynthModel::muse_spark);
  EXPECT_EQ(model_width(o), 512);
  o.model_hidden = 320;
  EXPECT_EQ(model_width(o), 320);
  synth(dir.path(), o, Workers(1));
  const auto ckpt = checkpoint::Checkpoint::open(dir.path());
  EXPECT_EQ(ckpt.config().model_hidden, 320);
  EXPECT_EQ(ckpt.config().hidden, 256);
  for (const std::int64_t l : {0, 1}) {
    const checkpoint::BlockFiles block = ckpt.layer(l).block(true);
    EXPECT_EQ(block.gate.dtype, tensor::Dtype::f32);
    EXPECT_EQ(block.gate.shape, (tensor::Shape{4, 320}));
    EXPECT_TRUE(block.bias);
    EXPECT_EQ(block.pre_proj.shape, (tensor::Shape{256, 320}));
    EXPECT_EQ(block.post_proj.shape, (tensor::Shape{320, 256}));
  }
  o = small(SynthModel::qwen3_moe);
  EXPECT_EQ(model_width(o), 256);
  o.model_hidden = 256;
  EXPECT_FALSE(unsupported(o));
}

TEST(Synth, RefusesSizesByName) {
  const SynthOptions good = small(SynthModel::muse_spark);
  EXPECT_FALSE(unsupported(good));
  const auto with = [&](auto change) {
    SynthOptions o = good;
    change(o);
    return o;
  };
  const auto has = [](const std::string& text, const char* words) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  has(refusal(with([](SynthOptions& o) { o.hidden = 192; }), ErrorKind::unsupported), "hidden 192");
  has(refusal(with([](SynthOptions& o) { o.intermediate = 100; }), ErrorKind::unsupported),
      "intermediate 100");
  has(refusal(with([](SynthOptions& o) { o.experts = 0; }), ErrorKind::usage), "experts is 0");
  has(refusal(with([](SynthOptions& o) { o.experts = -4; }), ErrorKind::usage), "experts is -4");
  has(refusal(with([](SynthOptions& o) { o.layers = 0; }), ErrorKind::usage), "layers is 0");
  has(refusal(with([](SynthOptions& o) { o.top_k = 5; }), ErrorKind::usage), "only 4 experts");
  has(refusal(with([](SynthOptions& o) { o.model_hidden = -1; }), ErrorKind::usage), "model width is -1");
  has(refusal(with([](SynthOptions& o) {
                o.model = SynthModel::tiny;
                o.model_hidden = 512;
              }),
              ErrorKind::usage),
      "tiny has no projection");
  has(refusal(with([](SynthOptions& o) { o.bf16_layers = {2}; }), ErrorKind::usage), "BF16 layer 2");
  has(refusal(with([](SynthOptions& o) { o.hidden = std::int64_t{1} << 40; }), ErrorKind::usage),
      "hidden is");
  has(refusal(with([](SynthOptions& o) {
                o.layers = 1 << 20;
                o.experts = 1 << 20;
              }),
              ErrorKind::usage),
      "petabyte");
}

TEST(Synth, ModelsByName) {
  for (const std::string& n : synth_model_names()) EXPECT_EQ(name(synth_model(n)), n);
  EXPECT_THROW(synth_model("gpt"), Error);
}

double cpu_seconds(std::int64_t experts) {
  const test::TempDir dir;
  SynthOptions o = synth_defaults(SynthModel::tiny);
  o.experts = experts;
  o.hidden = 128;
  o.intermediate = 64;
  o.layers = 1;
  const std::clock_t start = std::clock();
  synth(dir.path(), o, Workers(1));
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Eight times the tensors take about eight times as long. To look through all names for each takes up to 64
// times; three times what is expected is left for the machine.
TEST(Synth, TakesTimeInProportionToItsTensors) {
  (void)cpu_seconds(64);
  const double few = cpu_seconds(1024);
  EXPECT_LT(cpu_seconds(8192), 24 * few);
}

TEST(Synth, TheOrderOfBf16LayersDoesNotMatter) {
  const test::TempDir dir;
  SynthOptions o = small(SynthModel::tiny);
  o.layers = 3;
  o.bf16_layers = {2, 0};
  synth(dir.path() / "a", o, Workers(1));
  o.bf16_layers = {0, 2};
  synth(dir.path() / "b", o, Workers(1));
  EXPECT_EQ(files_of(dir.path() / "a"), files_of(dir.path() / "b"));
  EXPECT_EQ(checkpoint::Checkpoint::open(dir.path() / "a").layer(2).kind(), checkpoint::ExpertKind::bf16);
}

TEST(Synth, DefaultsCanBeCut) {
  for (const std::string& model : synth_model_names()) {
    const SynthOptions o = synth_defaults(synth_model(model));
    EXPECT_FALSE(layout::cuttable(o.hidden, o.intermediate, 2)) << model;
    EXPECT_EQ(!layout::cuttable(o.hidden, o.intermediate, 4), model != "tiny") << model;
  }
}

// Its own names alone do not make a file its own.
TEST(Synth, LeavesWhatIsNoRegularFileAlone) {
  const test::TempDir dir;
  const SynthOptions o = small(SynthModel::tiny);
  synth(dir.path() / "c", o, Workers(1));
  const fs::path thesis = dir.path() / "thesis";
  std::ofstream(thesis) << "years of work";
  fs::create_symlink(thesis, dir.path() / "c" / "config.json.tmp-1-0");
  try {
    synth(dir.path() / "c", o, Workers(1));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(e.what()).find("config.json.tmp-1-0"), std::string::npos) << e.what();
  }
  EXPECT_EQ(slurp(thesis), "years of work");
  EXPECT_TRUE(fs::exists(dir.path() / "c" / "config.json"));
}

// Any cut of a tensor into parts gives the same bytes.
TEST(SynthValues, BytesDependOnPositionAlone) {
  using internal::Fill;
  for (const Fill fill : {Fill::codes, Fill::block_scales, Fill::bf16_normal, Fill::f32_normal}) {
    const internal::Source source{fill, internal::stream_of(7, "a"), 0.5F, {}};
    std::vector<std::byte> whole(1000);
    internal::fill_bytes(source, 0, whole);
    for (const std::size_t at : {std::size_t{8}, std::size_t{256}, std::size_t{992}}) {
      std::vector<std::byte> part(whole.size() - at);
      internal::fill_bytes(source, static_cast<std::int64_t>(at), part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(at)));
    }
  }
}

TEST(SynthValues, RootMeanSquaresAreWhatIsWritten) {
  std::vector<std::byte> bytes(1 << 18);
  const auto stream = internal::stream_of(3, "x");
  internal::fill_bytes({internal::Fill::codes, stream, 1.0F, {}}, 0, bytes);
  double sum = 0;
  for (const std::byte b : bytes)
    for (const unsigned code : {static_cast<unsigned>(b) & 15U, static_cast<unsigned>(b) >> 4})
      sum += std::pow(double{numeric::e2m1_to_f32(static_cast<std::uint8_t>(code))}, 2);
  // 2^19 codes: the mean square's relative standard deviation is below 0.2 %.
  EXPECT_NEAR(std::sqrt(sum / (2.0 * static_cast<double>(bytes.size()))) / double{internal::code_rms()}, 1.0,
              0.01);
  internal::fill_bytes({internal::Fill::block_scales, stream, 1.0F, {}}, 0, bytes);
  sum = 0;
  for (const std::byte b : bytes) {
    const auto code = static_cast<std::uint8_t>(b);
    ASSERT_GT(code, 0);
    ASSERT_LT(code, 0x7F);
    sum += std::pow(double{numeric::e4m3_to_f32(code)}, 2);
  }
  EXPECT_NEAR(std::sqrt(sum / static_cast<double>(bytes.size())) / double{internal::scale_rms()}, 1.0, 0.01);
}

}  // namespace
}  // namespace kerf::tools
