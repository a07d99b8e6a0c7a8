// kerf export and starts from what it wrote: the same outputs as from the checkpoint, and back to it byte for
// byte; what is refused, and what an interrupted run leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "kerf/checkpoint/export_facts.h"
#include "kerf/checkpoint/safetensors.h"
#include "kerf/tools/synth.h"
#include "tests/cli/exports.h"
#include "tests/cli/program.h"
#include "tests/support/onehot.h"

namespace kerf::test {
namespace {

namespace fs = std::filesystem;

struct Start {
  const char* label;
  bool wide;              // which model
  Arguments exporting;    // options of the export
  Arguments direct;       // of the decode from the checkpoint
  Arguments from_export;  // of the decode from the export
};

class ExportedStart : public testing::TestWithParam<Start> {};

TEST_P(ExportedStart, HasTheOutputsOfTheCheckpoint) {
  const Start& s = GetParam();
  const TempDir out;
  const std::string from = s.wide ? model() : narrow();
  const Ran ran = exported(from, out.path(), s.exporting);
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto wanted = outputs(from, s.direct);
  const auto got = outputs(out.path().string(), s.from_export);
  ASSERT_FALSE(wanted.empty());
  EXPECT_EQ(got, wanted);
}

// Alpha and clamp limits of the activation are in the config alone: experts of both kinds, whole and cut.
TEST(ExportCommand, KeepsTheActivationsParameters) {
  const TempDir from;
  tools::SynthOptions o = tools::synth_defaults(tools::SynthModel::tiny);
  o.layers = 2;
  o.bf16_layers = {1};
  tools::synth(from.path(), o, Workers(1));
  const auto before = outputs(from.path().string(), {"--ranks", "2"});
  auto config = nlohmann::json::parse(read_text(from.path() / "config.json"));
  config["hidden_act"] = "swigluoai";
  std::ofstream(from.path() / "config.json") << config.dump(2);
  const auto wanted = outputs(from.path().string(), {"--ranks", "2"});
  for (const bool cut : {false, true}) {
    const TempDir out;
    Arguments options = {"--ranks", "2"};
    if (cut) options.emplace_back("--expert-tp");
    ASSERT_EQ(exported(from.path().string(), out.path(), options).code, 0);
    const auto got = outputs(out.path().string(), {});
    ASSERT_FALSE(got.empty());
    for (const auto& [step, digest] : got) {
      EXPECT_EQ(digest, wanted.at(step)) << step;
      EXPECT_NE(digest, before.at(step)) << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ExportedStart,
    testing::Values(
        Start{"Ep1", true, {"--ranks", "1"}, {"--ranks", "1"}, {}},
        Start{"Ep4", true, {"--ranks", "4"}, {"--ranks", "4"}, {}},
        Start{"Ep4Hybrid", true, {"--ranks", "4"}, {"--ranks", "4", "--ep", "2"}, {"--ep", "2"}},
        Start{"Ep2Weights", true, {"--ranks", "2"}, {"--ranks", "2", "--act", "bf16"}, {"--act", "bf16"}},
        Start{"Tp2",
              true,
              {"--ranks", "2", "--expert-tp"},
              {"--ranks", "2", "--mode", "tp", "--tail", "both"},
              {"--tail", "both"}},
        Start{
            "Tp4", true, {"--ranks", "4", "--expert-tp"}, {"--ranks", "4", "--mode", "tp"}, {"--mode", "tp"}},
        Start{"Tp4Weights",
              true,
              {"--ranks", "4", "--expert-tp"},
              {"--ranks", "4", "--mode", "tp", "--act", "bf16"},
              {"--act", "bf16"}},
        Start{"Hybrid",
              true,
              {"--ranks", "4", "--ep", "2", "--tp", "2", "--expert-tp"},
              {"--ranks", "4", "--ep", "2", "--tp", "2", "--mode", "tp", "--tail", "both"},
              {"--tail", "both"}},
        Start{"Block",
              true,
              {"--ranks", "2", "--expert-tp"},
              {"--ranks", "2", "--mode", "tp", "--block", "muse-spark"},
              {"--block", "muse-spark"}},
        Start{"Ep2Exact", true, {"--ranks", "2"}, {"--ranks", "2", "--tail", "exact"}, {"--tail", "exact"}},
        Start{"Layers", true, {"--ranks", "2"}, {"--ranks", "2", "--layers", "1-2"}, {"--layers", "1-2"}},
        Start{"Reference",
              true,
              {"--ranks", "2", "--expert-tp"},
              {"--ranks", "2", "--mode", "tp", "--backend", "reference", "--batch", "1"},
              {"--backend", "reference", "--batch", "1"}},
        Start{"PaddedEp",
              false,
              {"--ranks", "2", "--pad"},
              {"--ranks", "2", "--pad", "--mode", "ep"},
              {"--mode", "ep"}},
        Start{"PaddedTp",
              false,
              {"--ranks", "2", "--pad", "--expert-tp"},
              {"--ranks", "2", "--pad", "--mode", "tp"},
              {}},
        Start{"PaddedUneven",
              false,
              {"--ranks", "2", "--pad", "--uneven", "--expert-tp"},
              {"--ranks", "2", "--pad", "--uneven", "--mode", "tp"},
              {}}),
    [](const auto& i) { return std::string(i.param.label); });

TEST(ExportCommand, AStartConvertsNothing) {
  const TempDir out;
  ASSERT_EQ(exported(model(), out.path(), {"--ranks", "2", "--expert-tp"}).code, 0);
  const Ran ran = decoded(out.path().string(), {});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto json = json_of(ran);
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["startup"]["convert_s"], 0.0);
  EXPECT_EQ(json["startup"]["reshard_s"], 0.0);
  EXPECT_GT(json["startup"]["read_s"], 0.0);
  EXPECT_TRUE(json["reshard"].is_null());
  // Half of the NVFP4 experts' bytes, with scalars of all eight, and four whole BF16 experts.
  EXPECT_EQ(json["memory_per_rank"]["sliced"], 2 * (8 * 3 * 256 * 512 * 9 / 16 + 8 * 3 * 4 + 8));
  EXPECT_EQ(json["memory_per_rank"]["stock"], 4 * 3 * 256 * 1024 * 2);
}

TEST(ExportCommand, RunHasTheRowsOfTheCheckpoint) {
  const TempDir dir;
  const fs::path in = dir.path() / "in.safetensors";
  const std::vector<float> x(256, 0.5F);
  const std::vector<float> logits = {0, 1, 2, 3, 4, 5, 6, 7};
  using View = tensor::TensorView;
  const std::vector<std::pair<std::string, View>> tensors = {
      {"x", View{tensor::Dtype::f32, {1, 256}, std::as_bytes(std::span(x))}},
      {"router_logits", View{tensor::Dtype::f32, {1, 8}, std::as_bytes(std::span(logits))}}};
  checkpoint::write_safetensors(in, tensors);
  ASSERT_EQ(exported(model(), dir.path() / "ep", {"--ranks", "2"}).code, 0);
  ASSERT_EQ(exported(model(), dir.path() / "tp", {"--ranks", "2", "--expert-tp"}).code, 0);
  const auto y = [&](const std::string& from, Arguments more) {
    Arguments a = {"run",   from, "--layer", "2", "--in", in.string(), "--out", (dir.path() / "y").string(),
                   "--json"};
    a.insert(a.end(), more.begin(), more.end());
    const Ran ran = run_program(a);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.code == 0 ? json_of(ran)["y_sha256"].get<std::string>() : std::string("none");
  };
  EXPECT_EQ(y((dir.path() / "ep").string(), {}), y(model(), {"--ranks", "2"}));
  EXPECT_EQ(y((dir.path() / "tp").string(), {}), y(model(), {"--ranks", "2", "--mode", "tp"}));
}

// An export of `model()` for two ranks that a test may spoil.
class SpoiltExport : public testing::Test {
 protected:
  void SetUp() override {
    const Ran ran = exported(model(), dir_.path(), {"--ranks", "2", "--expert-tp"});
    ASSERT_EQ(ran.code, 0) << ran.err;
  }
  [[nodiscard]] fs::path file(int rank, int ranks = 2) const {
    return dir_.path() / checkpoint::export_file_name(rank, ranks);
  }
  [[nodiscard]] std::string path() const { return dir_.path().string(); }

  // Turns one bit of the file.
  static void flip(const fs::path& file, std::int64_t at) {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(at);
    const auto byte = static_cast<char>(f.get() ^ 4);
    f.seekp(at);
    f.put(byte);
  }

  TempDir dir_;
};

TEST_F(SpoiltExport, AnotherPlacementIsForeign) {
  expect_refusal(decoded(path(), {"--ranks", "4"}), 3,
                 {"an export for 2 ranks of slices (EP 1 x TP 2)", "here are 4"});
  expect_refusal(decoded(path(), {"--ranks", "1"}), 3, {"export for 1"});
  expect_refusal(decoded(path(), {"--ranks", "2", "--ep", "2"}), 3, {"EP 1 x TP 2"});
  expect_refusal(decoded(path(), {"--mode", "both"}), 3, {"no whole experts"});
  expect_refusal(decoded(path(), {"--mode", "ep"}), 3, {"no whole experts"});
  expect_refusal(decoded(path(), {"--pad", "--mode", "ep"}), 3, {"no whole experts"});
  ASSERT_EQ(exported(narrow(), dir_.path(), {"--ranks", "2", "--pad"}).code, 0);
  expect_refusal(decoded(path(), {"--mode", "tp"}), 3, {"width 192, and wanted is 256"});
}

TEST_F(SpoiltExport, AnotherLayoutOrFormatIsForeign) {
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string text = read_text(file(0));
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
    std::ofstream(file(0), std::ios::binary) << text;
  };
  edited("trtllm-gen-1", "trtllm-gen-2");
  expect_refusal(decoded(path(), {}), 3, {"layout 'trtllm-gen-2'", "trtllm-gen-1"});
  edited("trtllm-gen-2", "trtllm-gen-1");
  EXPECT_EQ(decoded(path(), {}).code, 0);
  edited(R"(\"format\":4)", R"(\"format\":2)");
  expect_refusal(decoded(path(), {}), 3, {"format 2", "format 4", "export again"});
}

TEST_F(SpoiltExport, ABitIsFoundWhereverItTurned) {
  const auto header = checkpoint::read_header(file(1));
  std::vector<std::int64_t> places = {0, 9, 200, header.data_begin - 2};
  for (const auto& [name, entry] : header.tensors)
    if (!name.ends_with("mlp.gate.weight") || entry.end - entry.begin < 100'000)
      places.push_back((entry.begin + entry.end) / 2);
  for (const std::int64_t at : places) {
    flip(file(1), at);
    const Ran ran = decoded(path(), {"--batch", "1"});
    EXPECT_EQ(ran.code, 3) << "byte " << at << ": " << ran.err;
    EXPECT_EQ(run_program({"verify", path()}).code, 3) << "byte " << at;
    flip(file(1), at);
  }
  EXPECT_EQ(decoded(path(), {"--batch", "1"}).code, 0);
  EXPECT_EQ(run_program({"verify", path()}).code, 0);
}

TEST_F(SpoiltExport, VerifyNamesFileAndTensor) {
  const auto header = checkpoint::read_header(file(1));
  const auto w13 = std::ranges::find_if(
      header.tensors, [](const auto& t) { return t.first.ends_with("layers.0.mlp.experts.w13"); });
  ASSERT_NE(w13, header.tensors.end());
  flip(file(1), w13->second.begin);
  const Ran ran = run_program({"verify", path(), "--json"});
  EXPECT_EQ(ran.code, 3);
  EXPECT_EQ(json_of(ran)["faults_total"], 1);
  EXPECT_TRUE(contains(
      ran.out, "kerf-rank-00001-of-00002.safetensors: damaged: the digest of " + std::string(w13->first)));
}

TEST_F(SpoiltExport, InspectLooksAtEveryRanksFile) {
  const auto json = [&](Arguments more) {
    Arguments whole = {"inspect", path(), "--json"};
    whole.insert(whole.end(), more.begin(), more.end());
    const Ran ran = run_program(whole);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return json_of(ran);
  };
  for (const Arguments& how : {Arguments{}, {"--headers"}}) {
    EXPECT_EQ(json(how)["faults_total"], 0);
    ASSERT_EQ(json(how)["shards"].size(), 2U);
    EXPECT_EQ(json(how)["shards"][1]["name"], checkpoint::export_file_name(1, 2));
  }
  const auto header = checkpoint::read_header(file(1));
  const auto w2 = std::ranges::find_if(
      header.tensors, [](const auto& t) { return t.first.ends_with("layers.2.mlp.experts.w2"); });
  ASSERT_NE(w2, header.tensors.end());
  flip(file(1), w2->second.begin + 7);
  EXPECT_EQ(json({})["faults_total"], 1);
  EXPECT_EQ(json({"--headers"})["faults_total"], 0);  // says so: headers alone
  const Ran text = run_program({"inspect", path()});
  EXPECT_TRUE(contains(
      text.out, "kerf-rank-00001-of-00002.safetensors: damaged: the digest of " + std::string(w2->first)));
  EXPECT_EQ(text.out.find("no faults found"), std::string::npos);
  flip(file(1), w2->second.begin + 7);
  flip(file(1), 9);  // of the header
  for (const Arguments& how : {Arguments{}, {"--headers"}}) EXPECT_EQ(json(how)["faults_total"], 1);
}

// The disk is full in the middle of it, or the run is killed: what is left is no checkpoint, and the same
// command again ends as if nothing had been.
TEST_F(SpoiltExport, AFailedLogicalExportDoesNotBlockItsRetry) {
  const TempDir back;
  const TempDir clean;
  ASSERT_EQ(exported(path(), clean.path(), {"--to", "logical"}).code, 0);
  const auto size = fs::file_size(clean.path() / "model-00002-of-00003.safetensors") / 1024;  // the largest
  const Ran full = run_executable(
      "/bin/sh", {"-c", "ulimit -f " + std::to_string(size / 2) + "; exec " + std::string(program_path) +
                            " export " + path() + " " + back.path().string() + " --to logical"});
  EXPECT_EQ(full.code, 2) << full.err;
  EXPECT_EQ(run_program({"verify", back.path().string()}).code, 3);
  for (int i = 0; i < 2; ++i) {  // over what the failed one left, and over a finished one
    const Ran again = exported(path(), back.path(), {"--to", "logical"});
    EXPECT_EQ(again.code, 0) << again.err;
    for (const auto& entry : fs::directory_iterator(clean.path()))
      EXPECT_EQ(read_text(entry.path()), read_text(back.path() / entry.path().filename())) << entry.path();
  }
  std::ofstream(back.path() / "notes.txt") << "mine";
  expect_refusal(exported(path(), back.path(), {"--to", "logical"}), 2,
                 {"holds notes.txt, which kerf export --to logical did not write"});
  EXPECT_EQ(run_program({"verify", back.path().string()}).code, 0);  // nothing was changed
  const TempDir others;
  std::ofstream(others.path() / "config.json") << "{}";
  expect_refusal(exported(path(), others.path(), {"--to", "logical"}), 2, {"holds config.json"});
}

// What fails leaves what was there, whatever it fails of.
TEST_F(SpoiltExport, AnEarlierOneStaysUntilTheNextIsWhole) {
  const Arguments one = {"--batch", "1", "--mode", "tp"};
  const auto before = outputs(path(), one);
  const TempDir faulty;
  write_model(faulty.path(), tools::SynthModel::muse_spark, 1024, 2);
  const fs::path shard = faulty.path() / "model-00001-of-00001.safetensors";
  const auto header = checkpoint::read_header(shard);
  for (const auto& [name, entry] : header.tensors) {
    if (!name.ends_with("layers.2.mlp.experts.down_proj_weight_scale")) continue;
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(entry.begin + 7);
    file.put('\x7F');
  }
  expect_refusal(exported(faulty.path().string(), dir_.path(), {"--ranks", "2", "--expert-tp"}), 3,
                 {"NaN block scale"});
  EXPECT_EQ(outputs(path(), one), before);
  const TempDir back;
  ASSERT_EQ(exported(path(), back.path(), {"--to", "logical"}).code, 0);
  flip(file(1), static_cast<std::int64_t>(fs::file_size(file(1))) / 2);
  EXPECT_EQ(exported(path(), back.path(), {"--to", "logical"}).code, 3);
  EXPECT_EQ(run_program({"verify", back.path().string()}).code, 0);
}

TEST_F(SpoiltExport, CutShort) {
  fs::resize_file(file(1), fs::file_size(file(1)) - 1);
  expect_refusal(decoded(path(), {}), 3, {"truncated"});
}

TEST_F(SpoiltExport, FilesOfTwoExportsDoNotStart) {
  const TempDir other;
  const TempDir seeded;
  write_model(seeded.path(), tools::SynthModel::muse_spark, 1024, 2);
  ASSERT_EQ(exported(seeded.path().string(), other.path(), {"--ranks", "2", "--expert-tp"}).code, 0);
  fs::copy_file(other.path() / checkpoint::export_file_name(1, 2), file(1),
                fs::copy_options::overwrite_existing);
  expect_refusal(decoded(path(), {}), 3, {"files of two exports"});
  EXPECT_EQ(run_program({"verify", path()}).code, 3);
  EXPECT_EQ(exported(path(), other.path() / "back", {"--to", "logical"}).code, 3);
}

// Neither hides the other.
TEST_F(SpoiltExport, OneInACheckpointsDirectoryIsRefused) {
  fs::copy_file(fs::path(model()) / "config.json", dir_.path() / "config.json");
  for (const char* command : {"decode", "verify", "inspect", "plan"})
    expect_refusal(run_program({command, path()}), 3,
                   {"an export for 2 ranks and a checkpoint's config.json in one directory"});
  fs::remove(dir_.path() / "config.json");
  fs::copy_file(file(0), dir_.path() / "model.safetensors");
  expect_refusal(decoded(path(), {}), 3, {"a checkpoint's model.safetensors"});
  fs::remove(dir_.path() / "model.safetensors");
  EXPECT_EQ(decoded(path(), {"--batch", "1"}).code, 0);
}

TEST_F(SpoiltExport, ARenamedFileIsNotAnotherRanks) {
  fs::copy_file(file(0), file(1), fs::copy_options::overwrite_existing);
  const TempDir back;
  expect_refusal(decoded(path(), {}), 3, {"says that it is rank 0's of 2"});
  expect_refusal(exported(path(), back.path(), {"--to", "logical"}), 3, {"says that it is rank 0's of 2"});
  EXPECT_TRUE(fs::is_empty(back.path()));
}

TEST_F(SpoiltExport, WhatAStoppedRunLeavesDoesNotStart) {
  fs::rename(file(1), file(1).string() + ".tmp-77-0");
  expect_refusal(decoded(path(), {}), 3, {"without kerf-rank-00001-of-00002.safetensors", "export again"});
  fs::remove(file(0));
  for (const Arguments& command : {Arguments{"decode"}, {"verify"}, {"inspect"}, {"plan"}}) {
    Arguments whole = command;
    whole.push_back(path());
    expect_refusal(run_program(whole), 3, {"an export that was stopped", "export again"});
  }
  ASSERT_EQ(exported(model(), dir_.path(), {"--ranks", "4"}).code, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_.path()), fs::directory_iterator()), 4);
  EXPECT_EQ(decoded(path(), {"--batch", "1"}).code, 0);
}

TEST_F(SpoiltExport, AStaleOneIsRefusedAsLongAsItsSourceIsThere) {
  const TempDir source;
  write_model(source.path(), tools::SynthModel::muse_spark, 1024);
  ASSERT_EQ(exported(source.path().string(), dir_.path(), {"--ranks", "2"}).code, 0);
  ASSERT_EQ(decoded(path(), {"--batch", "1"}).code, 0);
  fs::last_write_time(source.path() / "config.json", fs::file_time_type::clock::now());
  EXPECT_EQ(decoded(path(), {"--batch", "1"}).code, 0);                // times say nothing
  write_model(source.path(), tools::SynthModel::muse_spark, 1024, 2);  // another model of the same shape
  expect_refusal(decoded(path(), {}), 3, {"stale", source.path().string()});
  fs::remove(source.path() / "config.json");
  EXPECT_EQ(decoded(path(), {"--batch", "1"}).code, 0);
}

// One byte in the middle of one tensor of the source, far from what every start looks at.
TEST_F(SpoiltExport, OneChangedByteOfTheSourceIsFound) {
  const TempDir source;
  write_model(source.path(), tools::SynthModel::muse_spark, 1024);
  ASSERT_EQ(exported(source.path().string(), dir_.path(), {"--ranks", "2"}).code, 0);
  const fs::path shard = source.path() / "model-00001-of-00001.safetensors";
  const auto time = fs::last_write_time(shard);
  checkpoint::TensorEntry entry;  // the largest tensor
  for (const auto& [name, found] : checkpoint::read_header(shard).tensors)
    if (found.end - found.begin > entry.end - entry.begin) entry = found;
  const std::int64_t at = entry.begin + (entry.end - entry.begin) / 3 + 5;
  const auto verified = [&] { return run_program({"verify", path(), "--source", source.path().string()}); };
  ASSERT_EQ(verified().code, 0) << verified().err;
  flip(shard, at);
  expect_refusal(decoded(path(), {"--batch", "1"}), 3,
                 {"stale", source.path().string(), "digest of all of model-00001-of-00001.safetensors"});
  EXPECT_EQ(run_program({"verify", path()}).code, 0);  // of the export itself, which is sound
  EXPECT_TRUE(contains(verified().out, "other source: 1"));
  EXPECT_EQ(verified().code, 3);
  // With the old time on it, a start cannot know; verify does.
  fs::last_write_time(shard, time);
  EXPECT_EQ(decoded(path(), {"--batch", "1"}).code, 0);
  EXPECT_EQ(verified().code, 3);
  // The old bytes with a new time are the old source.
  flip(shard, at);
  EXPECT_EQ(decoded(path(), {"--batch", "1"}).code, 0);
  EXPECT_EQ(verified().code, 0);
  // A copy elsewhere is the same source.
  const TempDir copy;
  fs::copy(source.path(), copy.path(), fs::copy_options::recursive);
  EXPECT_EQ(run_program({"verify", path(), "--source", copy.path().string()}).code, 0);
  fs::remove(copy.path() / "config.json");
  EXPECT_EQ(run_program({"verify", path(), "--source", copy.path().string()}).code, 3);
  expect_refusal(run_program({"verify", model(), "--source", model()}), 2, {"no export"});
}

// What a block would leave out is known to an export, too, which does not carry the tensor.
TEST(ExportCommand, WhatNoBlockComputesIsRefusedFromBoth) {
  const TempDir dir;
  const fs::path from = dir.path() / "model";
  const fs::path out = dir.path() / "export";
  write_model(from, tools::SynthModel::qwen3_moe, 256);
  const Arguments block = {"--batch", "1", "--block", "qwen3-moe"};
  EXPECT_EQ(decoded(from.string(), block).code, 0);
  const std::string name = "model.layers.2.mlp.shared_expert.up_proj.weight";
  const std::vector<std::byte> bytes(8);
  const std::pair<std::string, tensor::TensorView> more{name, {tensor::Dtype::bf16, {4}, bytes, nullptr}};
  checkpoint::write_safetensors(from / "more.safetensors", std::span(&more, 1));
  auto index = nlohmann::json::parse(std::ifstream(from / "model.safetensors.index.json"));
  index["weight_map"][name] = "more.safetensors";
  std::ofstream(from / "model.safetensors.index.json") << index;
  ASSERT_EQ(exported(from.string(), out, {}).code, 0);
  for (const fs::path& start : {from, out}) {
    expect_refusal(decoded(start.string(), block), 4, {"layer 2", name, "does not compute shared experts"});
    EXPECT_EQ(decoded(start.string(), {"--batch", "1"}).code, 0);
  }
}

// A router that no block computes is nothing to an export either.
TEST(ExportCommand, ARouterOfAnotherDtypeIsCarried) {
  Onehot onehot;
  for (auto& shard : onehot.shards)
    for (auto& [name, tensor] : shard.tensors)
      if (name == onehot.layer_name("mlp.gate.weight")) tensor.dtype = tensor::Dtype::f16;
  const TempDir dir;
  const fs::path from = dir.path() / "model";
  fs::create_directories(from);
  onehot.write(from);
  EXPECT_EQ(decoded(from.string(), {"--batch", "1"}).code, 0);
  ASSERT_EQ(exported(from.string(), dir.path() / "export", {}).code, 0);
  EXPECT_EQ(outputs((dir.path() / "export").string(), {"--batch", "1"}),
            outputs(from.string(), {"--batch", "1"}));
  ASSERT_EQ(exported((dir.path() / "export").string(), dir.path() / "back", {"--to", "logical"}).code, 0);
  const auto back = checkpoint::Checkpoint::open(dir.path() / "back");
  EXPECT_EQ(back.layer(0).stored("mlp.gate.weight")->dtype, tensor::Dtype::f16);
}

TEST(ExportCommand, TheSameExportHasTheSameBytes) {
  const TempDir a;
  const TempDir b;
  ASSERT_EQ(exported(model(), a.path(), {"--ranks", "2", "--expert-tp", "--threads", "1"}).code, 0);
  ASSERT_EQ(exported(model(), b.path(), {"--ranks", "2", "--expert-tp", "--threads", "2"}).code, 0);
  for (int r = 0; r < 2; ++r)
    EXPECT_TRUE(read_text(a.path() / checkpoint::export_file_name(r, 2)) ==
                read_text(b.path() / checkpoint::export_file_name(r, 2)));
}

TEST(ExportCommand, RefusesBeforeItWrites) {
  const TempDir dir;
  const fs::path out = dir.path() / "out";
  expect_refusal(exported(model(), out, {"--ranks", "3"}), 4, {"8 experts over 3 ranks"});
  expect_refusal(exported(model(), out, {"--ranks", "1", "--expert-tp"}), 4, {"at least 2 ranks"});
  expect_refusal(exported(narrow(), out, {"--ranks", "2", "--expert-tp"}), 4, {"legal tp"});
  EXPECT_FALSE(fs::exists(out));
  expect_refusal(exported(model(), model(), {}), 2, {"did not write", "nothing was changed"});
  fs::create_directories(out);
  std::ofstream(out / "notes.txt") << "mine";
  expect_refusal(exported(model(), out, {}), 2, {"holds notes.txt"});
  expect_refusal(exported(model(), out, {"--to", "logical"}), 2, {"no export"});
  EXPECT_EQ(read_text(out / "notes.txt"), "mine");
}

// A full disk, as far as a program can tell: files may not grow.
TEST(ExportCommand, AFullDiskLeavesNothing) {
  const TempDir dir;
  const Ran ran =
      run_executable("/bin/sh", {"-c", std::string("ulimit -f 2048; exec ") + program_path + " export " +
                                           model() + " " + dir.path().string() + " --ranks 2"});
  expect_refusal(ran, 2, {"cannot write it"});
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

std::map<std::string, std::string> contents(const fs::path& directory) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().filename() != ".kerf-export")  // which lists what a run was about to write, too
      out[entry.path().filename().string()] = read_text(entry.path());
  return out;
}

// The last bytes do not fit: the earlier export is there until the next one is, on the disk.
TEST(ExportCommand, AFullDiskLeavesAnEarlierExport) {
  for (const std::string& to : {std::string(), std::string(" --to logical")}) {
    const TempDir dir;
    const TempDir sound;
    ASSERT_EQ(exported(model(), sound.path(), {"--ranks", "2"}).code, 0);
    const std::string from = to.empty() ? model() : sound.path().string();
    const std::string again = std::string(program_path) + " export " + from + " " + dir.path().string() + to;
    const std::string command = again + (to.empty() ? " --ranks 2" : "");
    ASSERT_EQ(run_executable("/bin/sh", {"-c", command}).code, 0);
    const auto before = contents(dir.path());
    std::uintmax_t largest = 0;
    for (const auto& entry : fs::directory_iterator(dir.path()))
      largest = std::max(largest, entry.file_size());
    const std::string limit = "ulimit -f " + std::to_string((largest - 1) / 512) + "; exec ";
    expect_refusal(run_executable("/bin/sh", {"-c", limit + command}), 2, {"cannot write it"});
    EXPECT_TRUE(contents(dir.path()) == before) << to;
    const TempDir fresh;
    const std::string elsewhere =
        std::string(program_path) + " export " + from + " " + fresh.path().string() + to;
    expect_refusal(run_executable("/bin/sh", {"-c", limit + elsewhere + (to.empty() ? " --ranks 2" : "")}), 2,
                   {"cannot write it"});
    EXPECT_TRUE(fs::is_empty(fresh.path())) << to;
  }
}

TEST(ExportCommand, InspectAndPlanKnowAnExport) {
  const TempDir out;
  ASSERT_EQ(exported(model(), out.path(), {"--ranks", "4", "--ep", "2", "--tp", "2", "--expert-tp"}).code, 0);
  const Ran ran = run_program({"inspect", out.path().string(), "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto json = json_of(ran);
  EXPECT_EQ(json["export"]["ranks"], 4);
  EXPECT_EQ(json["export"]["ep"], 2);
  EXPECT_EQ(json["export"]["tp"], 2);
  EXPECT_EQ(json["export"]["layout"], "trtllm-gen-1");
  EXPECT_EQ(json["layers"].size(), 3U);
  EXPECT_EQ(json["layers"][0]["dialect"], "exported");
  EXPECT_EQ(json["layers"][0]["gate_up_differ"],
            json_of(run_program({"inspect", model(), "--json"}))["layers"][0]["gate_up_differ"]);
  EXPECT_EQ(run_program({"inspect", out.path().string()}).code, 0);
  EXPECT_TRUE(json_of(run_program({"inspect", model(), "--json"}))["export"].is_null());
  const Ran plan = run_program({"plan", out.path().string(), "--ranks", "4", "--json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(json_of(plan)["bf16_layers"], 1);
}

}  // namespace
}  // namespace kerf::test
