// kerf run through the program: every kind of input, the files it writes, and what it refuses.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kerf/checkpoint/safetensors.h"
#include "kerf/numeric/bf16.h"
#include "kerf/tools/synth.h"
#include "tests/support/gpu.h"
#include "tests/support/onehot.h"
#include "tests/support/program.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

using checkpoint::SafetensorsFile;
using tensor::Dtype;
using tensor::Shape;

// Tensors to write: name, dtype, shape, bytes.
struct Named {
  std::string name;
  Dtype dtype;
  Shape shape;
  std::vector<std::byte> bytes;
};

template <typename T>
Named named(std::string name, Dtype dtype, const Shape& shape, const std::vector<T>& values) {
  Named out{std::move(name), dtype, shape, std::vector<std::byte>(values.size() * sizeof(T))};
  if (!values.empty()) std::memcpy(out.bytes.data(), values.data(), out.bytes.size());
  return out;
}

class RunCommand : public ::testing::Test {
 protected:
  void SetUp() override { Onehot().write(dir_.path() / "model"); }

  [[nodiscard]] std::string path(const std::string& name) const { return (dir_.path() / name).string(); }

  // Two tokens, ids [0, 1] and [2, -1].
  static Named x() {
    const std::vector<float> row = onehot_input();
    std::vector<std::uint16_t> bits;
    for (int t = 0; t < 2; ++t)
      for (const float v : row) bits.push_back(numeric::f32_to_bf16(v));
    return named("x", Dtype::bf16, {2, 256}, bits);
  }
  static Named ids() { return named<std::int32_t>("topk_ids", Dtype::i32, {2, 2}, {0, 1, 2, -1}); }
  static Named weights() { return named<float>("topk_weights", Dtype::f32, {2, 2}, {0.5F, 0.5F, 1, 9}); }
  static std::vector<float> wanted() {
    std::vector<float> y;
    for (std::size_t h = 0; h < 256; ++h)
      y.push_back(numeric::round_to_bf16(0.5F * onehot_output(0)[h] + 0.5F * onehot_output(1)[h]));
    for (std::size_t h = 0; h < 256; ++h) y.push_back(onehot_output(2)[h]);
    return y;
  }

  void write(const std::vector<Named>& tensors) const {
    std::vector<std::pair<std::string, tensor::TensorView>> views;
    for (const Named& n : tensors) views.emplace_back(n.name, tensor::TensorView{n.dtype, n.shape, n.bytes});
    checkpoint::write_safetensors(path("in.safetensors"), views);
  }

  [[nodiscard]] Ran run(std::vector<std::string> more = {}, const std::string& layer = "0") const {
    std::vector<std::string> arguments = {"run",  path("model"),          "--layer", layer,
                                          "--in", path("in.safetensors"), "--out",   path("out.safetensors")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  }

  [[nodiscard]] std::vector<float> y() const {
    const auto file = SafetensorsFile::open(path("out.safetensors"));
    const tensor::TensorView view = file.at("y");
    EXPECT_EQ(view.dtype, Dtype::bf16);
    std::vector<std::uint16_t> bits(view.bytes.size() / 2);
    if (!bits.empty()) std::memcpy(bits.data(), view.bytes.data(), view.bytes.size());
    std::vector<float> out;
    for (const std::uint16_t b : bits) out.push_back(numeric::bf16_to_f32(b));
    return out;
  }

  // Refused with a code and words; nothing is written.
  void expect_refused(const Ran& ran, int code, const std::vector<std::string>& words) const {
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_FALSE(std::filesystem::exists(path("out.safetensors")));
    for (const std::string& word : words)
      EXPECT_NE(ran.err.find(word), std::string::npos) << "no '" << word << "' in: " << ran.err;
  }

 private:
  TempDir dir_;
};

TEST_F(RunCommand, WarnsOfRowsThatAreNotFinite) {
  write({x(), ids(), named<float>("topk_weights", Dtype::f32, {2, 2}, {3e38F, 0.5F, 1, 9})});
  const Ran ran = run();
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find("layer 0: 1 of 2 output rows are not finite"), std::string::npos) << ran.err;

  // Sound scales, each and combined, under which bf16 rows overflow.
  Onehot onehot;
  for (int e = 0; e < 4; ++e)
    for (const char* of : {"gate_proj", "up_proj", "down_proj"})
      onehot.set_f32(onehot.name(e, std::string(of) + ".weight_scale_2"), 1e30F);
  onehot.write(path("large"));
  const Ran decoded = run_program({"decode", path("large"), "--act", "bf16", "--batch", "2"});
  EXPECT_EQ(decoded.code, 0) << decoded.err;
  EXPECT_NE(decoded.err.find("layer 0: ep step: 2 of 2 output rows are not finite"), std::string::npos)
      << decoded.err;
}

TEST_F(RunCommand, GivesTheExactRowsAtEveryPlacement) {
  write({x(), ids(), weights()});
  const std::vector<std::vector<std::string>> placements = {{},
                                                            {"--ranks", "2"},
                                                            {"--ranks", "4"},
                                                            {"--ranks", "2", "--mode", "tp"},
                                                            {"--backend", "reference"},
                                                            {"--ranks", "4", "--mode", "tp", "--ep", "2"}};
  for (const auto& placement : placements) {
    const Ran ran = run(placement);
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(y(), wanted());
    EXPECT_NE(ran.out.find("y BF16 [2, 256]"), std::string::npos) << ran.out;
  }
}

TEST_F(RunCommand, ExactTailsWriteTheSameFileForAnyPlacement) {
  write({x(), ids(), named<float>("topk_weights", Dtype::f32, {2, 2}, {0.5F, 0.5F, 1, std::nanf("")})});
  for (const char* ranks : {"1", "2", "4"}) {
    const Ran ran = run({"--ranks", ranks, "--tail", "exact", "--json"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(y(), wanted()) << ranks;
    EXPECT_EQ(nlohmann::json::parse(ran.out)["tail"], "exact");
  }
  const Ran narrow = run({"--ranks", "2", "--mode", "tp", "--tail", "exact"});
  EXPECT_EQ(narrow.code, 4);
  EXPECT_NE(narrow.err.find("2 slices of I = 128 do not"), std::string::npos) << narrow.err;

  // Experts whose slices are nodes: EP and TP agree, and TP's unfinalised rows are sums.
  tools::SynthOptions options = tools::synth_defaults(tools::SynthModel::muse_spark);
  options.experts = 4;
  options.hidden = 256;
  options.intermediate = 1024;
  options.layers = 1;
  options.top_k = 2;
  options.bf16_layers = {};
  std::filesystem::remove_all(path("model"));
  tools::synth(path("model"), options, Workers(1));
  std::vector<std::vector<float>> seen;
  for (const std::vector<std::string>& placement : std::vector<std::vector<std::string>>{
           {}, {"--ranks", "4"}, {"--ranks", "2", "--mode", "tp", "--unfinalized"}}) {
    std::vector<std::string> arguments = placement;
    arguments.insert(arguments.end(), {"--tail", "exact"});
    ASSERT_EQ(run(arguments).code, 0);
    seen.push_back(y());
  }
  EXPECT_EQ(seen[1], seen[0]);
  EXPECT_EQ(seen[2], seen[0]);
  const auto file = SafetensorsFile::open(path("out.safetensors"));
  EXPECT_EQ(file.at("sums.1").dtype, Dtype::f32);
  EXPECT_EQ(file.at("sums.1").shape[1], 256);
  EXPECT_FALSE(file.find("rows.1"));
  EXPECT_TRUE(file.find("map.1"));
}

TEST_F(RunCommand, TakesF32RowsAndQuantisedRows) {
  std::vector<float> rows;
  for (int t = 0; t < 2; ++t)
    for (const float v : onehot_input()) rows.push_back(v);
  write({named("x", Dtype::f32, {2, 256}, rows), ids(), weights()});
  ASSERT_EQ(run().code, 0);
  EXPECT_EQ(y(), wanted());

  std::vector<std::uint8_t> codes(2 * 128);
  for (std::size_t i = 0; i < codes.size(); i += 8) codes[i] = 0x07;
  write({named("a", Dtype::u8, {2, 128}, codes),
         named("a_sf", Dtype::f8_e4m3, {2, 16}, std::vector<std::uint8_t>(32, 0x38)), ids(), weights()});
  ASSERT_EQ(run({"--ranks", "2"}).code, 0);
  EXPECT_EQ(y(), wanted());
}

// Softmax over the two chosen, equal logits: a half each.
TEST_F(RunCommand, RoutesLogitsByTheCheckpointsRouter) {
  write({x(), named<float>("router_logits", Dtype::f32, {2, 4}, {3, 3, 0, 0, 0, 1, 0, 1})});
  const Ran ran = run({"--ranks", "2", "--unfinalized"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const std::vector<float> got = y();
  for (std::size_t h = 0; h < 256; ++h) {
    EXPECT_EQ(got[h], numeric::round_to_bf16(0.5F * onehot_output(0)[h] + 0.5F * onehot_output(1)[h])) << h;
    EXPECT_EQ(got[256 + h], numeric::round_to_bf16(0.5F * onehot_output(1)[h] + 0.5F * onehot_output(3)[h]))
        << h;
  }
  const auto file = SafetensorsFile::open(path("out.safetensors"));
  float weight = 0;
  std::memcpy(&weight, file.at("weights.1").bytes.data(), 4);
  EXPECT_EQ(weight, 0.5F);
}

TEST_F(RunCommand, UnfinalizedWritesEveryRanksRows) {
  write({x(), ids(), weights()});
  const Ran ran = run({"--ranks", "2", "--unfinalized", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(nlohmann::json::parse(ran.out)["tokens"], 2);
  const auto file = SafetensorsFile::open(path("out.safetensors"));
  EXPECT_EQ(file.header().tensors.size(), 7U);
  for (const int rank : {0, 1}) {
    const std::string suffix = rank == 0 ? ".0" : ".1";
    EXPECT_EQ(file.at("rows" + suffix).dtype, Dtype::bf16);
    EXPECT_EQ(file.at("rows" + suffix).shape[1], 256);
    EXPECT_EQ(file.at("map" + suffix).dtype, Dtype::i32);
    EXPECT_EQ(file.at("map" + suffix).shape, (Shape{2, 2}));
    EXPECT_EQ(file.at("weights" + suffix).dtype, Dtype::f32);
    std::vector<std::int32_t> map(4);
    std::memcpy(map.data(), file.at("map" + suffix).bytes.data(), 16);
    const std::vector<bool> here = {map[0] >= 0, map[1] >= 0, map[2] >= 0, map[3] >= 0};
    EXPECT_EQ(here, rank == 0 ? (std::vector<bool>{true, true, false, false})
                              : (std::vector<bool>{false, false, true, false}));
  }
}

TEST_F(RunCommand, NoTokensWork) {
  write({named<std::uint16_t>("x", Dtype::bf16, {0, 256}, {}),
         named<std::int32_t>("topk_ids", Dtype::i32, {0, 2}, {}),
         named<float>("topk_weights", Dtype::f32, {0, 2}, {})});
  for (const auto& placement : std::vector<std::vector<std::string>>{{}, {"--ranks", "2", "--mode", "tp"}}) {
    const Ran ran = run(placement);
    ASSERT_EQ(ran.code, 0) << ran.err;
    const auto file = SafetensorsFile::open(path("out.safetensors"));
    EXPECT_EQ(file.at("y").shape, (Shape{0, 256}));
  }
}

TEST_F(RunCommand, SaysWhatItDidNotUse) {
  write({x(), ids(), weights(), named<float>("hidden_states", Dtype::f32, {1}, {0})});
  const Ran ran = run();
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find("not used: hidden_states"), std::string::npos) << ran.err;
}

TEST_F(RunCommand, RefusesWrongTensors) {
  const Named logits = named<float>("router_logits", Dtype::f32, {2, 4}, std::vector<float>(8));
  const auto refused = [&](const std::vector<Named>& tensors, const std::vector<std::string>& words) {
    write(tensors);
    expect_refused(run(), 2, words);
  };
  refused({ids(), weights()}, {"in.safetensors", "'x'", "'a'", "topk_ids"});
  refused({x()}, {"'topk_ids'", "'router_logits'"});
  refused({x(), ids()}, {"'topk_weights'"});
  refused({x(), ids(), weights(), logits}, {"both", "'topk_ids'", "'router_logits'"});
  refused({named("x", Dtype::f16, {2, 256}, std::vector<std::uint16_t>(512)), ids(), weights()},
          {"'x'", "F16 [2, 256]", "BF16 or F32 [T, 256]"});
  refused({named("x", Dtype::bf16, {2, 128}, std::vector<std::uint16_t>(256)), ids(), weights()},
          {"'x'", "[2, 128]", "[T, 256]"});
  refused({named("x", Dtype::bf16, {512}, std::vector<std::uint16_t>(512)), ids(), weights()},
          {"'x'", "[512]"});
  refused({x(), named<std::int32_t>("topk_ids", Dtype::i32, {3, 2}, std::vector<std::int32_t>(6)), weights()},
          {"'topk_ids'", "[3, 2]", "I32 [2, 2]"});
  refused({x(), named<std::int64_t>("topk_ids", Dtype::i64, {2, 2}, std::vector<std::int64_t>(4)), weights()},
          {"'topk_ids'", "I64", "I32"});
  refused({x(), named<std::int32_t>("topk_ids", Dtype::i32, {2, 2}, {0, 1, 4, 0}), weights()},
          {"'topk_ids'", "token 1", "slot 0", "4"});
  refused({x(), named<std::int32_t>("topk_ids", Dtype::i32, {2, 2}, {0, -2, 1, 0}), weights()},
          {"token 0", "slot 1", "-2"});
  refused({named("a", Dtype::u8, {2, 128}, std::vector<std::uint8_t>(256)), ids(), weights()}, {"'a_sf'"});
  refused({x(), named<float>("router_logits", Dtype::f32, {2, 3}, std::vector<float>(6))},
          {"'router_logits'", "[2, 3]", "[2, 4]"});
}

TEST_F(RunCommand, RefusesWhatCannotRun) {
  write({x(), ids(), weights()});
  expect_refused(run({}, "5"), 2,
                 {path("model/config.json") + ": layer 5, wanted 0 to 0 (num_hidden_layers is 1)"});
  expect_refused(run({"--mode", "tp"}), 4, {"2 ranks"});
  expect_refused(run({"--ranks", "4", "--mode", "tp"}), 4, {"32"});
  expect_refused(run({"--ranks", "3"}), 4, {"4 experts", "3 ranks"});
  if (!why_no_gpu().empty()) expect_refused(run({"--device", "cuda"}), 8, {why_no_gpu()});
  write({named("a", Dtype::u8, {2, 128}, std::vector<std::uint8_t>(256)),
         named("a_sf", Dtype::f8_e4m3, {2, 16}, std::vector<std::uint8_t>(32)), ids(), weights()});
  expect_refused(run({"--act", "bf16"}), 4, {"bf16 rows", "'x'"});
  { std::ofstream(path("in.safetensors"), std::ios::binary) << "not a safetensors file"; }
  expect_refused(run(), 3, {"in.safetensors"});
  std::filesystem::remove(path("in.safetensors"));
  expect_refused(run(), 3, {"in.safetensors"});
}

// A failed run leaves the file that was there, and nothing half-written beside it.
TEST_F(RunCommand, LeavesAnOlderOutputAloneWhenItFails) {
  write({x(), ids(), weights()});
  ASSERT_EQ(run().code, 0);
  const auto before = std::filesystem::file_size(path("out.safetensors"));
  write({x()});
  EXPECT_EQ(run().code, 2);
  EXPECT_EQ(std::filesystem::file_size(path("out.safetensors")), before);
}

// Only a regular file is replaced, and it is looked at before anything is computed.
TEST_F(RunCommand, ReplacesNothingButRegularFiles) {
  namespace fs = std::filesystem;
  write({x(), ids(), weights()});
  const auto refused = [&](const std::string& out, const std::vector<std::string>& words) {
    const auto before = fs::symlink_status(path(out));
    const Ran ran = run_program(
        {"run", path("model"), "--layer", "0", "--in", path("in.safetensors"), "--out", path(out)});
    EXPECT_EQ(ran.code, 2) << out << ": " << ran.err;
    EXPECT_EQ(fs::symlink_status(path(out)).type(), before.type());
    for (const std::string& word : words)
      EXPECT_NE(ran.err.find(word), std::string::npos) << "no '" << word << "' in: " << ran.err;
  };
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  refused("fifo", {"fifo", "a FIFO"});
  fs::create_directory(path("directory"));
  refused("directory", {"a directory"});
  fs::create_symlink("fifo", path("to_fifo"));
  refused("to_fifo", {"to_fifo", "a FIFO"});
  fs::create_symlink("itself", path("itself"));
  refused("itself", {"symlink"});
  refused("missing/out", {"no directory"});
  std::ofstream(path("kept")) << "kept";
  fs::permissions(path("kept"), fs::perms::owner_read);
  refused("kept", {"read-only"});
  EXPECT_EQ(fs::file_size(path("kept")), 4U);
}

TEST_F(RunCommand, WritesToWhereASymlinkLeads) {
  namespace fs = std::filesystem;
  write({x(), ids(), weights()});
  fs::create_directory(path("elsewhere"));
  for (const char* before : {"older", ""}) {
    if (*before != '\0') std::ofstream(path("elsewhere/file")) << before;
    fs::remove(path("out.safetensors"));
    fs::create_symlink("elsewhere/file", path("out.safetensors"));
    ASSERT_EQ(run().code, 0);
    EXPECT_TRUE(fs::is_symlink(path("out.safetensors")));
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path("elsewhere/file"))));
    EXPECT_EQ(y(), wanted());
    fs::remove(path("elsewhere/file"));
  }
}

TEST_F(RunCommand, DoesNotReplaceWhatItReads) {
  namespace fs = std::filesystem;
  write({x(), ids(), weights()});
  const auto size = fs::file_size(path("in.safetensors"));
  const std::string shard = path("model") + "/model-00001-of-00002.safetensors";
  fs::create_hard_link(path("in.safetensors"), path("same"));
  fs::create_symlink("in.safetensors", path("link"));
  fs::create_symlink("model", path("other"));
  fs::create_hard_link(shard, path("shard"));
  for (const std::string& out :
       {path("in.safetensors"), path("same"), path("link"), path("model") + "/new", path("other") + "/new",
        path("model") + "/../model/config.json", shard, path("shard")}) {
    const Ran ran =
        run_program({"run", path("model"), "--layer", "0", "--in", path("in.safetensors"), "--out", out});
    EXPECT_EQ(ran.code, 2) << out << ": " << ran.err;
    EXPECT_NE(ran.err.find("--out"), std::string::npos) << ran.err;
  }
  EXPECT_EQ(fs::file_size(path("in.safetensors")), size);
  EXPECT_FALSE(fs::exists(path("model") + "/new"));
}

}  // namespace
}  // namespace kerf::test
