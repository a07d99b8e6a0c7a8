#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "kerf/checkpoint/checkpoint.h"
#include "tests/checkpoint/refusal.h"

namespace kerf::checkpoint {
namespace {

using test::Onehot;
using test::refusal;
using test::refused_open;
using test::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string refused(const TempDir& dir) {
  return refusal([&] { Checkpoint::open(dir.path()); });
}

// Every byte of every expert, in order.
std::string contents(const std::filesystem::path& directory) {
  const Checkpoint opened = Checkpoint::open(directory);
  std::string out;
  for (std::int64_t e = 0; e < opened.config().experts; ++e) {
    const ExpertViews v = opened.layer(0).expert(e);
    for (const auto* view : {&v.gate, &v.gate_sf, &v.up, &v.up_sf, &v.down, &v.down_sf})
      out.append(reinterpret_cast<const char*>(view->bytes.data()), view->bytes.size());
  }
  return out;
}

std::string sound_contents() {
  const TempDir dir;
  Onehot().write(dir.path());
  return contents(dir.path());
}

TEST(Shards, AsWritten) {
  const TempDir dir;
  Onehot().write(dir.path());
  const Checkpoint opened = Checkpoint::open(dir.path());
  EXPECT_THAT(opened.notes(), IsEmpty());
  EXPECT_THAT(opened.moe_layers(), ElementsAre(0));
  EXPECT_EQ(opened.directory(), dir.path());
  ASSERT_EQ(opened.shards().size(), 2U);
  EXPECT_EQ(opened.shards()[0].name, kFirst);
  EXPECT_EQ(opened.shards()[0].bytes, 115'736);
  EXPECT_EQ(opened.shards()[0].tensors, 25);
  EXPECT_EQ(opened.shards()[1].bytes, 113'576);
  EXPECT_EQ(opened.shards()[1].tensors, 24);
  // One of its files stands for the directory.
  EXPECT_EQ(Checkpoint::open(dir.path() / "config.json").moe_layers().size(), 1U);
  EXPECT_EQ(sound_contents().size(), 4U * (3 * 16384 + 3 * 2048));
}

TEST(Shards, TruncatedGivesBothSizes) {
  const TempDir dir;
  Onehot().write(dir.path());
  std::filesystem::resize_file(dir.path() / kSecond, 113'576 - 4'096);
  EXPECT_THAT(refused(dir), AllOf(HasSubstr(kSecond), HasSubstr("109480"), HasSubstr("113576")));
}

// A link to nowhere is a damaged download, as caches of downloads have them, not an absent file.
TEST(Shards, LinksToNowhereAreNamed) {
  const auto link_to_nowhere = [](const TempDir& dir, const std::string& file) {
    std::filesystem::remove(dir.path() / file);
    std::filesystem::create_symlink(dir.path() / "nowhere", dir.path() / file);
  };
  for (const char* file : {"config.json", "model.safetensors.index.json", "hf_quant_config.json"}) {
    const TempDir dir;
    Onehot().write(dir.path());
    link_to_nowhere(dir, file);
    EXPECT_THAT(refused(dir), AllOf(HasSubstr(file), HasSubstr("a link to"), HasSubstr("nowhere, which is"),
                                    HasSubstr("incomplete download?")));
  }
  for (const bool with_index : {true, false}) {
    const TempDir dir;
    Onehot().write(dir.path());
    if (!with_index) std::filesystem::remove(dir.path() / kIndex);
    link_to_nowhere(dir, kSecond);
    EXPECT_THAT(refused(dir), AllOf(HasSubstr("1 of 2 shards missing, incomplete download?"),
                                    HasSubstr(kSecond), Not(HasSubstr(kFirst))));
  }
}

TEST(Shards, MissingAreListed) {
  const TempDir dir;
  Onehot().write(dir.path());
  std::filesystem::remove(dir.path() / kSecond);
  EXPECT_THAT(refused(dir),
              AllOf(HasSubstr(kSecond), HasSubstr("incomplete download?"), HasSubstr("1 of 2")));
  std::filesystem::remove(dir.path() / kIndex);  // the surviving shard's name still tells
  EXPECT_THAT(refused(dir),
              AllOf(HasSubstr(kSecond), HasSubstr("incomplete download?"), HasSubstr("1 of 2")));
}

TEST(Shards, IndexNamesATensorThatTheFileLacks) {
  Onehot onehot;
  const std::string name = onehot.name(3, "up_proj.weight_scale");
  onehot.remove_from_file(name);
  EXPECT_THAT(refused_open(onehot), AllOf(HasSubstr(name), HasSubstr(kSecond), HasSubstr(kIndex),
                                          HasSubstr("layer 0"), HasSubstr("expert 3")));
  Onehot other;
  other.index["lm_head.weight"] = kFirst;
  EXPECT_THAT(refused_open(other), AllOf(HasSubstr("lm_head.weight"), HasSubstr(kFirst)));
}

TEST(Shards, TheIndexDecidesBetweenTwoOfAName) {
  Onehot onehot;
  const std::string name = onehot.name(3, "down_proj.weight");
  test::OwnedTensor other = onehot.at(name);
  other.bytes.assign(other.bytes.size(), 0x22);
  onehot.add(0, name, other);
  ASSERT_EQ(onehot.index.at(name), kSecond);
  const TempDir dir;
  onehot.write(dir.path());
  EXPECT_EQ(contents(dir.path()), sound_contents());
  EXPECT_THAT(Checkpoint::open(dir.path()).notes(),
              ElementsAre(AllOf(HasSubstr(name), HasSubstr(kFirst), HasSubstr(kSecond))));
  std::filesystem::remove(dir.path() / kIndex);
  EXPECT_THAT(refused(dir),
              AllOf(HasSubstr("ambiguous"), HasSubstr(name), HasSubstr(kFirst), HasSubstr(kSecond)));
}

TEST(Shards, ConsolidatedBesideShardsIsIgnored) {
  Onehot zeros({.shards = 1});
  zeros.shards[0].file = "consolidated.safetensors";
  for (auto& entry : zeros.shards[0].tensors) entry.second.bytes.assign(entry.second.bytes.size(), 0);
  const TempDir dir;
  zeros.write(dir.path());
  Onehot().write(dir.path());
  EXPECT_EQ(contents(dir.path()), sound_contents());
  EXPECT_THAT(Checkpoint::open(dir.path()).notes(), IsEmpty());
  std::filesystem::remove(dir.path() / kIndex);
  EXPECT_EQ(contents(dir.path()), sound_contents());
}

TEST(Shards, HeaderLengthOfTwoTo63) {
  const TempDir dir;
  Onehot().write(dir.path());
  std::fstream file(dir.path() / kFirst, std::ios::in | std::ios::out | std::ios::binary);
  file.write("\0\0\0\0\0\0\0\x80", 8);
  file.close();
  EXPECT_THAT(refused(dir), AllOf(HasSubstr(kFirst), HasSubstr("9223372036854775808")));
}

TEST(Shards, OneFileWithoutIndex) {
  const TempDir dir;
  Onehot({.shards = 1}).write(dir.path());
  EXPECT_FALSE(std::filesystem::exists(dir.path() / kIndex));
  EXPECT_EQ(contents(dir.path()), sound_contents());
  EXPECT_THAT(Checkpoint::open(dir.path()).notes(), IsEmpty());
}

TEST(Shards, ShardsWithoutIndex) {
  for (const int shards : {2, 4}) {
    Onehot onehot({.shards = shards});
    onehot.with_index = false;
    const TempDir dir;
    onehot.write(dir.path());
    EXPECT_EQ(contents(dir.path()), sound_contents());
  }
}

TEST(Shards, StrayBytesAreANote) {
  const TempDir dir;
  Onehot().write(dir.path());
  std::ofstream(dir.path() / kFirst, std::ios::binary | std::ios::app) << "7 bytes";
  EXPECT_EQ(contents(dir.path()), sound_contents());
  EXPECT_THAT(Checkpoint::open(dir.path()).notes(),
              ElementsAre(AllOf(HasSubstr(kFirst), HasSubstr("7 bytes"))));
}

TEST(Shards, TensorsThatTheIndexLacksAreANote) {
  Onehot onehot;
  onehot.index.erase(onehot.layer_name("mlp.gate.weight"));
  const TempDir dir;
  onehot.write(dir.path());
  EXPECT_THAT(Checkpoint::open(dir.path()).notes(), ElementsAre(HasSubstr("mlp.gate.weight")));
}

TEST(Shards, AmbiguousSets) {
  const TempDir dir;
  Onehot two;
  two.with_index = false;
  two.write(dir.path());
  Onehot({.shards = 1}).write(dir.path());
  EXPECT_THAT(refused(dir), AllOf(HasSubstr("ambiguous"), HasSubstr("model.safetensors"), HasSubstr(kFirst)));
  std::filesystem::remove(dir.path() / "model.safetensors");
  write_text(dir.path() / "model-00001-of-00003.safetensors", "");
  EXPECT_THAT(refused(dir), AllOf(HasSubstr("ambiguous"), HasSubstr("model-00001-of-00003.safetensors"),
                                  HasSubstr(kFirst)));
}

TEST(Shards, NothingThere) {
  const TempDir dir;
  EXPECT_THAT(refused(dir), HasSubstr("config.json"));
  Onehot().write(dir.path());
  for (const char* file : {kIndex, kFirst, kSecond}) std::filesystem::remove(dir.path() / file);
  EXPECT_THAT(refused(dir), HasSubstr("no weights"));
  EXPECT_THAT(refusal([&] { Checkpoint::open(dir.path() / "absent"); }), HasSubstr("no such directory"));
}

TEST(Shards, DamagedIndex) {
  const TempDir dir;
  Onehot().write(dir.path());
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not valid JSON"},
      {"{", "not valid JSON"},
      {"[]", "wanted an object"},
      {"{}", "no weight_map"},
      {R"({"weight_map": []})", "weight_map is an array"},
      {R"({"weight_map": {}})", "weight_map is empty"},
      {R"({"weight_map": {"a.b": 7}})", "'a.b' is 7 (number)"},
      {R"({"weight_map": {"a.b": "../x.safetensors"}})", "'a.b' is '../x.safetensors'"},
      {R"({"weight_map": {"a.b": "sub/x.safetensors"}})", "'a.b' is 'sub/x.safetensors'"},
      {R"({"weight_map": {"a.b": "sub\\x.safetensors"}})", "'a.b' is 'sub\\x.safetensors'"},
      {R"({"weight_map": {"a.b": "/etc/passwd"}})", "'/etc/passwd'"},
      {R"({"weight_map": {"a.b": ".."}})", "'a.b' is '..'"},
      {R"({"weight_map": {"a.b": "x\u0000y"}})", "'a.b' is 'x\\x00y'"},
      {R"({"weight_map": {"a.b": ""}})", "'a.b' is ''"},
      {R"({"weight_map": {"a.b": "x\u000A\u001B[2Jy"}})", "'a.b' is 'x\\x0A\\x1B[2Jy'"},
      {R"({"weight_map": {"a.b": ")" + std::string(5000, 'm') + R"("}})", "mmm... (5000 bytes)'"},
      {R"({"weight_map": {"a.b": "m", "a.b": "m"}})", "'a.b' comes twice"},
      {R"({"weight_map": {"a.b": "config.json"}})", "config.json"},
      {R"({"a":)" + std::string(100'000, '['), "nested deeper than 64"},
      {R"({"a": 1e999})", "out of range"},
  };
  for (const auto& [text, says] : cases) {
    write_text(dir.path() / kIndex, text);
    EXPECT_THAT(refused(dir), HasSubstr(says)) << text.substr(0, 100);
  }
}

}  // namespace
}  // namespace kerf::checkpoint
