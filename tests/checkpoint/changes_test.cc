// Files that other programs cut short, write to or replace while a checkpoint is open: an Error, or the file
// that was opened; never a signal.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <optional>
#include <span>

#include "kerf/checkpoint/read_ahead.h"
#include "kerf/checkpoint/safetensors.h"
#include "kerf/tools/synth.h"
#include "kerf/tools/verify.h"
#include "tests/checkpoint/refusal.h"

namespace kerf::checkpoint {
namespace {

using test::Onehot;
using test::refusal;
using test::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kSecond = "model-00002-of-00002.safetensors";

// A checkpoint that was opened before `change` came over its second shard.
struct Opened {
  explicit Opened(const std::function<void(const std::filesystem::path& shard)>& change) {
    Onehot().write(dir.path());
    checkpoint = Checkpoint::open(dir.path());
    change(dir.path() / kSecond);
  }
  TempDir dir;
  std::optional<Checkpoint> checkpoint;
};

void rewrite(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put('\x11');
  file.close();
  // The clock that dates files may be coarse.
  const timespec times[2] = {{0, UTIME_OMIT}, {2'000'000'000, 1}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST(Changes, AFileThatBecomesShorterIsAnError) {
  // The header alone is left; then nothing at all.
  for (const std::uintmax_t bytes : {std::uintmax_t{8192}, std::uintmax_t{0}}) {
    const Opened o([&](const auto& shard) { std::filesystem::resize_file(shard, bytes); });
    const MoeLayer& layer = o.checkpoint->layer(0);
    const auto words = AllOf(HasSubstr(kSecond), HasSubstr("became shorter while it was read"));
    EXPECT_THAT(refusal([&] { (void)layer.expert(3); }), words);
    Faults faults;
    EXPECT_THAT(refusal([&] { layer.scan_block_scales(3, faults); }), words);
    EXPECT_EQ(layer.expert(0).gate.bytes.size(), 128U * 128U);  // the first shard is whole
    EXPECT_THAT(refusal([&] { tools::verify(*o.checkpoint, Workers(2)); }), words);
    EXPECT_THAT(refusal([&] { o.checkpoint->require_unchanged(); }),
                AllOf(HasSubstr(kSecond), HasSubstr("113576 bytes when it was opened"),
                      HasSubstr(std::to_string(bytes) + " now")));
  }
}

TEST(Changes, AFileThatIsWrittenToIsAnError) {
  const Opened o(rewrite);
  (void)o.checkpoint->layer(0).expert(3);  // what is there now
  EXPECT_THAT(refusal([&] { o.checkpoint->require_unchanged(); }),
              AllOf(HasSubstr(kSecond), HasSubstr("written to since it was opened")));
  EXPECT_THAT(refusal([&] { tools::verify(*o.checkpoint, Workers(1)); }), HasSubstr("written to since"));
}

// A download that is renamed into place, a deletion: what was opened stays readable, and is what it was.
TEST(Changes, AFileThatIsReplacedIsTheOneThatWasOpened) {
  const Opened o([](const auto& shard) {
    std::filesystem::rename(shard.parent_path() / "model-00001-of-00002.safetensors", shard);
  });
  EXPECT_NO_THROW(o.checkpoint->require_unchanged());
  Onehot wanted;
  const ExpertViews v = o.checkpoint->layer(0).expert(3);
  const auto& bytes = wanted.at(wanted.name(3, "up_proj.weight")).bytes;
  EXPECT_TRUE(std::ranges::equal(v.up.bytes, std::as_bytes(std::span(bytes))));
}

TEST(Changes, AnInputFileThatBecomesShorterIsAnError) {
  const TempDir dir;
  Onehot({.shards = 1}).write(dir.path());
  const auto file = SafetensorsFile::open(dir.path() / "model.safetensors");
  std::filesystem::resize_file(dir.path() / "model.safetensors", 9000);
  EXPECT_THAT(refusal([&] { (void)file.at("model.layers.0.mlp.experts.3.up_proj.weight"); }),
              HasSubstr("became shorter"));
  EXPECT_TRUE(file.changed());
}

// The Hugging Face cache: snapshots/ holds plain names that lead to ../../blobs/.
TEST(Changes, ShardsMayBeSymlinks) {
  const TempDir dir;
  Onehot().write(dir.path() / "snapshots" / "a");
  std::filesystem::create_directory(dir.path() / "blobs");
  const std::filesystem::path shard = dir.path() / "snapshots" / "a" / kSecond;
  std::filesystem::rename(shard, dir.path() / "blobs" / "b2");
  std::filesystem::create_symlink("../../blobs/b2", shard);
  Onehot wanted;
  const Checkpoint opened = Checkpoint::open(dir.path() / "snapshots" / "a");
  const auto& bytes = wanted.at(wanted.name(3, "up_proj.weight")).bytes;
  EXPECT_TRUE(std::ranges::equal(opened.layer(0).expert(3).up.bytes, std::as_bytes(std::span(bytes))));
  // A link to something that is no file is refused, and not waited for.
  for (const char* target : {"/dev/zero", "../../blobs", "nowhere"}) {
    std::filesystem::remove(shard);
    std::filesystem::create_symlink(target, shard);
    EXPECT_THAT(refusal([&] { Checkpoint::open(dir.path() / "snapshots" / "a"); }), HasSubstr(kSecond))
        << target;
  }
}

TEST(ReadAhead, FetchesWhatWasNotAskedForYet) {
  const TempDir dir;
  tools::SynthOptions o = tools::synth_defaults(tools::SynthModel::qwen3_moe);
  o.experts = 4;
  o.hidden = 2048;
  o.intermediate = 1024;
  o.layers = 2;
  o.top_k = 2;
  o.bf16_layers = {1};
  tools::synth(dir.path(), o, Workers(1));
  const Checkpoint opened = Checkpoint::open(dir.path());
  const std::vector<std::int64_t> layers = {0, 1};
  ReadAhead ahead(opened, layers, 1, 2);
  for (int i = 0; i < 100; ++i)
    ahead.advance(std::int64_t{1} << 30);  // past the end: nothing is left to ask for
  for (std::int64_t e = 1; e < 3; ++e)
    EXPECT_EQ(opened.layer(1).expert(e).gate.bytes.size(), 2048U * 1024U * 2);
}

}  // namespace
}  // namespace kerf::checkpoint
