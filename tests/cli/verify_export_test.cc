// `kerf verify` of an export: values and shapes, not only digests. What a program wrote wrong has right
// digests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
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

// What is changed of a rank's file: its facts, and its tensors one by one.
struct Changes {
  std::function<void(std::int64_t rank, checkpoint::ExportFacts&)> facts = [](std::int64_t, auto&) {};
  std::function<void(std::int64_t rank, const std::string& name, Tensor&)> tensor =
      [](std::int64_t, const std::string&, Tensor&) {};
};

// An export written anew, digests and all.
void rewritten(const fs::path& from, const fs::path& to, std::int64_t ranks, const Changes& changes) {
  const Workers workers(1);
  fs::create_directories(to);
  std::vector<std::unique_ptr<checkpoint::ExportWriter>> writers;
  std::vector<checkpoint::Digest> digests;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const ExportFile file = ExportFile::open_of_rank(from, rank, ranks);
    std::vector<std::pair<std::int64_t, Tensor>> tensors;
    for (const auto& [name, entry] : file.header().tensors) {
      if (name == checkpoint::exported_digests || name == checkpoint::exported_ranks) continue;
      Tensor t{{std::string(name), entry.dtype, entry.shape}, {}};
      t.bytes.resize(static_cast<std::size_t>(entry.end - entry.begin));
      checkpoint::ExportReader(file, t.shape.name).read(t.bytes, workers);
      changes.tensor(rank, t.shape.name, t);
      tensors.emplace_back(entry.begin, std::move(t));
    }
    std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<NamedShape> shapes;
    for (const auto& [begin, t] : tensors) shapes.push_back(t.shape);
    checkpoint::ExportFacts facts = file.facts();
    changes.facts(rank, facts);
    writers.push_back(std::make_unique<checkpoint::ExportWriter>(to, facts, shapes));
    for (const auto& [begin, t] : tensors) writers.back()->append(t.bytes, workers);
    digests.push_back(writers.back()->close());
  }
  for (const auto& writer : writers) {
    writer->end(digests);
    writer->finish();
  }
}

void rewritten(const fs::path& from, const fs::path& to,
               const std::function<void(const std::string& name, Tensor&)>& change) {
  rewritten(from, to, 1,
            {.tensor = [&](std::int64_t, const std::string& name, Tensor& t) { change(name, t); }});
}

void replace(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from << " in " << text;
  text.replace(at, from.size(), to);
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
  // A start looks as well, and so does the way back.
  const auto expect_no_start = [&](std::initializer_list<const char*> words) {
    const std::string changed = (dir.path() / "changed").string();
    for (const Ran& ran : {run_program({"decode", changed, "--ranks", "1"}),
                           exported(changed, dir.path() / "back", {"--to", "logical"})}) {
      EXPECT_EQ(ran.code, 3);
      for (const char* w : words) EXPECT_TRUE(contains(ran.err, w)) << ran.err;
    }
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
  EXPECT_TRUE(contains(without.err, "mlp.experts.w2_of_another"));
}

// Every command that takes an export refuses this one, with these words.
void expect_refused_everywhere(const fs::path& path, std::int64_t ranks, const char* mode,
                               std::initializer_list<const char*> words) {
  const std::string n = std::to_string(ranks);
  const fs::path logical = path.parent_path() / "logical";
  fs::remove_all(logical);
  for (const Arguments& command :
       {Arguments{"decode", path.string(), "--ranks", n, "--mode", mode, "--seconds", "0"},
        Arguments{"verify", path.string()},
        Arguments{"export", path.string(), logical.string(), "--to", "logical"}}) {
    const Ran ran = run_program(command);
    EXPECT_EQ(ran.code, 3) << command.front() << "\n" << ran.out << ran.err;
    for (const char* w : words)
      EXPECT_TRUE(contains(ran.out + ran.err, w)) << command.front() << ran.out << ran.err;
  }
}

// Two ranks' files of one export, each sound by itself, that are of two models.
TEST(VerifyExport, RanksFilesMustBeOfOneModel) {
  const TempDir dir;
  const fs::path to = dir.path() / "changed";
  for (const char* mode : {"ep", "tp"}) {
    const fs::path sound = dir.path() / mode;
    Arguments how = {"--ranks", "2"};
    if (mode == std::string_view("tp")) how.emplace_back("--expert-tp");
    ASSERT_EQ(exported(model(), sound, how).code, 0);
    const auto refused = [&](const Changes& changes, std::initializer_list<const char*> words) {
      fs::remove_all(to);
      rewritten(sound, to, 2, changes);
      expect_refused_everywhere(to, 2, mode, words);
    };
    fs::remove_all(to);
    rewritten(sound, to, 2, {});
    EXPECT_EQ(run_program({"verify", to.string()}).code, 0);
    EXPECT_EQ(run_program({"decode", to.string(), "--ranks", "2", "--mode", mode, "--seconds", "0"}).code, 0);

    const char* both = "kerf-rank-00001-of-00002.safetensors are of one export, but differ in ";
    refused({.facts =
                 [](std::int64_t rank, checkpoint::ExportFacts& facts) {
                   if (rank == 1)
                     replace(facts.configs.config, "\"num_experts_per_tok\": 2",
                             "\"num_experts_per_tok\": 3");
                 }},
            {both, "config"});
    refused({.facts =
                 [](std::int64_t rank, checkpoint::ExportFacts& facts) {
                   if (rank == 1) facts.layers[0].names["mlp.gate.weight"] = "mlp.router.weight";
                 }},
            {both, "layers"});
    for (const char* name : {"layers.0.mlp.gate.weight", "layers.1.mlp.experts.post_expert_norm.weight",
                             "layers.2.mlp.experts.weight_scale_2", "layers.0.mlp.experts.input_scale"})
      refused({.tensor =
                   [&](std::int64_t rank, const std::string& full, Tensor& t) {
                     if (rank == 1 && full.ends_with(name)) t.bytes[0] ^= std::byte{1};
                   }},
              {both, "the digest of ", name});
  }
}

TEST(VerifyExport, FactsMustFitTheConfiguration) {
  const TempDir dir;
  const fs::path to = dir.path() / "changed";
  const fs::path sound = dir.path() / "sound";
  ASSERT_EQ(exported(model(), sound, {"--ranks", "1"}).code, 0);
  const auto refused = [&](const std::function<void(checkpoint::ExportFacts&)>& change,
                           std::initializer_list<const char*> words) {
    fs::remove_all(to);
    rewritten(sound, to, 1, {.facts = [&](std::int64_t, checkpoint::ExportFacts& facts) { change(facts); }});
    expect_refused_everywhere(to, 1, "ep", words);
  };
  refused(
      [](auto& facts) {
        replace(facts.configs.config, "\"moe_intermediate_size\": 1024", "\"moe_intermediate_size\": 512");
      },
      {"width 1024, and wanted is 512"});
  refused([](auto& facts) { facts.layers[1].prefix = "model.layers.0."; }, {"prefix"});
  refused([](auto& facts) { facts.layers[0].root = "../"; },
          {"root is \"../\"", "where models keep experts"});
  refused([](auto& facts) { facts.layers[0].names["x"] = "y"; }, {"names"});
  refused([](auto& facts) { facts.layers[0].names["mlp.gate.weight"] = "mlp.router.scale"; }, {"names"});
}

TEST(VerifyExport, WeightOnlyIsWhatTheConfigurationSays) {
  const TempDir dir;
  const fs::path to = dir.path() / "changed";
  const fs::path sound = dir.path() / "sound";
  ASSERT_EQ(exported(model(), sound, {"--ranks", "1"}).code, 0);
  rewritten(sound, to, 1, {.facts = [](std::int64_t, checkpoint::ExportFacts& facts) {
              facts.layers[0].has_inputs = false;
            }});
  // The tensor is there all the same: it is none of such an export.
  expect_refused_everywhere(
      to, 1, "ep", {"layers.0.mlp.experts.input_scale', which an export of such layers does not have"});
}

TEST(VerifyExport, FaultsOfScalesHaveTheirNames) {
  const TempDir dir;
  const fs::path sound = dir.path() / "sound";
  ASSERT_EQ(exported(model(), sound, {"--ranks", "1"}).code, 0);
  rewritten(sound, dir.path() / "changed", [](const std::string& name, Tensor& t) {
    const auto four = [&](std::size_t at, std::uint8_t last) {
      for (std::size_t i = 0; i < 4; ++i) t.bytes[at + i] = std::byte{i == 3 ? last : std::uint8_t{0}};
    };
    if (name.ends_with("layers.0.mlp.experts.weight_scale_2")) four(0, 0);  // 0
    if (name.ends_with("layers.2.mlp.experts.input_scale")) four(4, 0xBF);  // -0.5
  });
  const Ran ran = run_program({"verify", (dir.path() / "changed").string()});
  EXPECT_EQ(ran.code, 3);
  EXPECT_TRUE(contains(ran.out, "zero weight_scale_2")) << ran.out;
  EXPECT_TRUE(contains(ran.out, "negative input_scale")) << ran.out;
}

TEST(ExportWriter, AnotherSizeIsRefused) {
  const TempDir dir;
  ASSERT_EQ(exported(model(), dir.path() / "sound", {"--ranks", "1"}).code, 0);
  const checkpoint::ExportFacts facts = ExportFile::open_of_rank(dir.path() / "sound", 0, 1).facts();
  const fs::path to = dir.path() / "to";
  fs::create_directories(to);
  const std::vector<NamedShape> shapes = {{"a", tensor::Dtype::bf16, {4}}};
  for (const std::size_t bytes : {0, 7, 9}) {
    checkpoint::ExportWriter writer(to, facts, shapes);
    const Verdict v = attempt([&] { writer.append(std::vector<std::byte>(bytes), Workers(1)); });
    ASSERT_TRUE(v) << bytes;
    EXPECT_EQ(*v, (Reason{ErrorKind::bug, "a: " + std::to_string(bytes) + " bytes, 8 were announced"}));
  }
  EXPECT_TRUE(fs::is_empty(to));
}

// A file of some 50 MB that claims very many of both: each name is looked up once, not in every layer.
TEST(VerifyExport, ManyLayersAndTensorsAreSoonLookedAt) {
  const TempDir dir;
  const fs::path sound = dir.path() / "sound";
  const fs::path many = dir.path() / "many";
  ASSERT_EQ(exported(model(), sound, {"--ranks", "1"}).code, 0);
  checkpoint::ExportFacts facts = ExportFile::open_of_rank(sound, 0, 1).facts();
  const checkpoint::ExportedLayer like = facts.layers.front();
  facts.layers.clear();
  std::vector<NamedShape> shapes;
  for (std::int64_t i = 0; i < 40'000; ++i) {
    facts.layers.push_back(like);
    facts.layers.back().index = i;
    facts.layers.back().prefix = "model.language_model.layers." + std::to_string(i) + ".";
    for (const char* part : {"w13", "w13_sf", "w2", "w2_sf"})
      shapes.push_back({facts.layers.back().prefix + "mlp.experts." + part, tensor::Dtype::u8, {0}});
  }
  fs::create_directories(many);
  checkpoint::ExportWriter writer(many, facts, shapes);
  for (std::size_t i = 0; i < shapes.size(); ++i) writer.append({}, Workers(1));
  const checkpoint::Digest digest = writer.close();
  writer.end(std::span(&digest, 1));
  writer.finish();
  const auto begin = std::chrono::steady_clock::now();
  const Ran ran = run_program({"verify", many.string()});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
  EXPECT_EQ(ran.code, 3) << ran.out << ran.err;
}

}  // namespace
}  // namespace kerf::test
