// `kerf export --to logical`: the way back from converted experts to the source's tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kerf/checkpoint/export_facts.h"
#include "kerf/checkpoint/safetensors.h"
#include "tests/cli/exports.h"
#include "tests/support/dialects.h"

namespace kerf {
namespace {

using namespace test;

// Every tensor of a directory's shards, by name.
std::map<std::string, std::string> tensors_in(const fs::path& directory) {
  std::map<std::string, std::string> out;
  for (const auto& file : fs::directory_iterator(directory)) {
    if (file.path().extension() != ".safetensors") continue;
    const auto shard = checkpoint::SafetensorsFile::open(file.path());
    for (const auto& [name, entry] : shard.header().tensors) {
      const auto view = shard.at(name);
      out[std::string(name)] =
          std::string(tensor::name(view.dtype)) + view.shape.text() +
          std::string(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size());
    }
  }
  return out;
}

void expect_same_tensors(const fs::path& got_in, const fs::path& wanted_in) {
  const auto wanted = tensors_in(wanted_in);
  const auto got = tensors_in(got_in);
  EXPECT_EQ(got.size(), wanted.size());
  for (const auto& [name, value] : wanted) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(got.at(name) == value) << name << ": " << got.at(name).substr(0, 20);
  }
}

struct Back {
  const char* label;
  bool wide;
  Arguments exporting;
};

class ExportToLogical : public testing::TestWithParam<Back> {};

TEST_P(ExportToLogical, GivesTheTensorsBackByteForByte) {
  const Back& b = GetParam();
  const TempDir dir;
  const std::string from = b.wide ? model() : narrow();
  const Ran there = exported(from, dir.path() / "ranks", b.exporting);
  ASSERT_EQ(there.code, 0) << there.err;
  const Ran back = exported((dir.path() / "ranks").string(), dir.path() / "logical", {"--to", "logical"});
  ASSERT_EQ(back.code, 0) << back.err;
  expect_same_tensors(dir.path() / "logical", from);
  for (const char* config : {"config.json", "hf_quant_config.json"})
    EXPECT_EQ(read_text(dir.path() / "logical" / config), read_text(fs::path(from) / config));
  // It is a checkpoint again.
  EXPECT_EQ(run_program({"verify", (dir.path() / "logical").string()}).code, 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, ExportToLogical,
    testing::Values(Back{"FusedEp1", true, {"--ranks", "1"}}, Back{"FusedEp2", true, {"--ranks", "2"}},
                    Back{"FusedEp4", true, {"--ranks", "4"}},
                    Back{"FusedTp2", true, {"--ranks", "2", "--expert-tp"}},
                    Back{"FusedTp4", true, {"--ranks", "4", "--expert-tp"}},
                    Back{"FusedGrid", true, {"--ranks", "4", "--ep", "2", "--tp", "2", "--expert-tp"}},
                    Back{"PerExpertPaddedEp2", false, {"--ranks", "2", "--pad"}},
                    Back{"PerExpertPaddedTp2", false, {"--ranks", "2", "--pad", "--expert-tp"}},
                    Back{"PerExpertUnevenTp2", false, {"--ranks", "2", "--pad", "--uneven", "--expert-tp"}}),
    [](const auto& i) { return std::string(i.param.label); });

// A bit that turned in any tensor of any rank's file, of experts or beside them, is found before it is
// written back.
TEST(ExportCommand, LogicalComparesEveryDigest) {
  const TempDir dir;
  const fs::path out = dir.path() / "ranks";
  ASSERT_EQ(exported(model(), out, {"--ranks", "2", "--expert-tp"}).code, 0);
  for (int rank = 0; rank < 2; ++rank) {
    const fs::path file = out / checkpoint::export_file_name(rank, 2);
    const std::string sound = read_text(file);
    std::vector<std::pair<std::string, std::int64_t>> tensors;
    const auto opened = checkpoint::SafetensorsFile::open(file);
    for (const auto& [name, entry] : opened.header().tensors)
      if (!name.starts_with("kerf.") && name.find("layers.0.") != std::string::npos)
        tensors.emplace_back(name, entry.begin);
    ASSERT_GE(tensors.size(), 8U);
    for (const auto& [name, begin] : tensors) {
      std::string spoilt = sound;
      spoilt[static_cast<std::size_t>(begin) + 2] ^= 0x40;
      std::ofstream(file, std::ios::binary) << spoilt;
      expect_refusal(exported(out.string(), dir.path() / "back", {"--to", "logical"}), 3, {"damaged", name});
    }
    std::ofstream(file, std::ios::binary) << sound;
  }
  EXPECT_EQ(exported(out.string(), dir.path() / "back", {"--to", "logical"}).code, 0);
}

TEST(ExportCommand, LogicalIsModelOptsInConfigToo) {
  const TempDir dir;
  const std::string from = (dir.path() / "from").string();
  const auto ran = [&](const Arguments& a) {
    const Ran r = run_program(a);
    EXPECT_EQ(r.code, 0) << r.err;
    return r;
  };
  ran({"synth", from, "--model", "qwen3-moe", "--experts", "4", "--hidden", "128", "--intermediate", "128",
       "--layers", "2", "--top-k", "2", "--bf16-layers", "1", "--dialect", "compressed-tensors"});
  // What Python writes and JSON does not know stays as it is.
  std::string text = read_text(fs::path(from) / "config.json");
  text.insert(text.find('{') + 1, "\n  \"time_step_limit\": [0.0, Infinity],");
  std::ofstream(fs::path(from) / "config.json") << text;
  ASSERT_EQ(exported(from, dir.path() / "ranks", {"--ranks", "2"}).code, 0);
  ASSERT_EQ(exported((dir.path() / "ranks").string(), dir.path() / "logical", {"--to", "logical"}).code, 0);
  const std::string logical = read_text(dir.path() / "logical" / "config.json");
  const std::size_t infinite = logical.find("Infinity\n");
  ASSERT_NE(infinite, std::string::npos) << logical;
  const auto config = nlohmann::json::parse(logical.substr(0, infinite) + "1" + logical.substr(infinite + 8));
  const auto& quantisation = config["quantization_config"];
  EXPECT_EQ(quantisation["quant_method"], "modelopt");
  EXPECT_EQ(quantisation["quant_algo"], "NVFP4");
  EXPECT_EQ(quantisation["group_size"], 16);
  EXPECT_THAT(quantisation["exclude_modules"].get<std::vector<std::string>>(),
              testing::AllOf(testing::Contains("model.layers.1.mlp.experts*"),
                             testing::Each(testing::Not(testing::StartsWith("re:")))));
  const auto digest = [&](const std::string& path) {
    return json_of(ran({"decode", path, "--batch", "2", "--json"}))["steps"][0]["output_sha256"];
  };
  EXPECT_EQ(digest((dir.path() / "logical").string()), digest(from));
}

// Names, orientation and dtypes of every dialect; of one that stores divisors, what it would be without.
std::vector<std::pair<std::string, bool>> dialects_and_kinds() {
  std::vector<std::pair<std::string, bool>> out;
  for (const std::string& dialect : restated_names()) {
    out.emplace_back(dialect, true);
    if (dialect != "f4") out.emplace_back(dialect, false);
  }
  return out;
}

class LogicalOfDialect : public testing::TestWithParam<std::pair<std::string, bool>> {};

TEST_P(LogicalOfDialect, HasTheSourcesTensors) {
  const auto& [dialect, quantised] = GetParam();
  const TempDir dir;
  OnehotOptions options;
  if (!quantised) options.layers = {checkpoint::ExpertKind::bf16};
  const Onehot plain(options);
  const auto write = [&](const std::string& name, const char* to) {
    Onehot source = restated(plain, name);
    // A router under another model's name for it.
    for (auto& shard : source.shards)
      for (auto& [full, tensor] : shard.tensors)
        if (full.ends_with("mlp.gate.weight")) {
          source.index["model.layers.0.mlp.router.weight"] = source.index.at(full);
          source.index.erase(full);
          full = "model.layers.0.mlp.router.weight";
        }
    source.write(dir.path() / to);
  };
  write(dialect, "from");
  const bool packed = dialect.starts_with("compressed-tensors");
  write(packed ? (dialect.ends_with("w2") ? "w1-w3-w2" : "per-expert") : dialect, "wanted");
  for (const Arguments& placed : {Arguments{"--ranks", "2"}, Arguments{"--ranks", "2", "--expert-tp"}}) {
    if (!quantised && placed.size() > 2) continue;
    const Ran there = exported((dir.path() / "from").string(), dir.path() / "ranks", placed);
    ASSERT_EQ(there.code, 0) << there.err;
    const Ran back = exported((dir.path() / "ranks").string(), dir.path() / "logical", {"--to", "logical"});
    ASSERT_EQ(back.code, 0) << back.err;
    expect_same_tensors(dir.path() / "logical", dir.path() / "wanted");
    EXPECT_EQ(run_program({"verify", (dir.path() / "logical").string()}).code, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, LogicalOfDialect, testing::ValuesIn(dialects_and_kinds()), [](const auto& i) {
  std::string name = i.param.first + (i.param.second ? "_nvfp4" : "_bf16");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace kerf
