// The tuner's cache: what was written comes back for the same setting; anything else is refused in words.
#include "kerf/tactics/cache.h"

#include <gtest/gtest.h>

#include "tests/support/test_env.h"
#include "tests/tactics/setting.h"

namespace kerf::tactics {
namespace {

const std::vector<CacheEntry> entries = {{op::Arithmetic::w4a4, 1, {8, 2}},
                                         {op::Arithmetic::w4a4, 64, {32, 0}},
                                         {op::Arithmetic::bf16, 8, {8, 1}}};

TEST(TunerCache, GivesBackWhatWasWritten) {
  const test::TempDir dir;
  const auto path = dir.path() / "cache";
  EXPECT_TRUE(read_cache(path, made_up()).entries.empty());
  EXPECT_FALSE(read_cache(path, made_up()).refused);  // no file yet is no fault
  write_cache(path, made_up(), entries);
  const CacheRead read = read_cache(path, made_up());
  EXPECT_FALSE(read.refused);
  EXPECT_EQ(read.entries, entries);
}

TEST(TunerCache, RefusesWhatWasMeasuredElsewhereAndSaysWhere) {
  const test::TempDir dir;
  const auto path = dir.path() / "cache";
  write_cache(path, made_up(), entries);
  const auto expect_foreign = [&](const std::function<void(Setting&)>& edit,
                                  std::initializer_list<const char*> words) {
    Setting here = made_up();
    edit(here);
    const CacheRead read = read_cache(path, here);
    ASSERT_TRUE(read.refused);
    EXPECT_TRUE(read.foreign);
    EXPECT_TRUE(read.entries.empty());
    for (const char* word : words)
      EXPECT_NE(read.refused->text.find(word), std::string::npos) << word << " in " << read.refused->text;
  };
  expect_foreign([](Setting& s) { s.package = "cpu-y-1"; }, {"kernel package 'cpu-x-1'", "'cpu-y-1'"});
  expect_foreign([](Setting& s) { s.device = "a machine, 4 cores"; }, {"device", "2 cores", "4 cores"});
  expect_foreign([](Setting& s) { s.shape.experts = 8; }, {"shape", "experts 16 of 64", "experts 8 of 64"});
  expect_foreign([](Setting& s) { s.shape.hidden = 512; }, {"256 x 128", "512 x 128"});
  expect_foreign([](Setting& s) { s.shape.intermediate = 64; }, {"256 x 128", "256 x 64"});
  expect_foreign([](Setting& s) { s.num_experts = 16; }, {"16 of 64", "16 of 16"});
  expect_foreign([](Setting& s) { s.top_k = 8; }, {"top 4", "top 8"});
}

TEST(TunerCache, EveryWayToCutItShortIsNoticed) {
  const test::TempDir dir;
  const auto path = dir.path() / "cache";
  write_cache(path, made_up(), entries);
  const std::string whole = text_in(path);
  for (std::size_t bytes = 0; bytes + 2 < whole.size(); ++bytes) {  // but for "}\n", each byte counts
    put(path, whole.substr(0, bytes));
    const CacheRead read = read_cache(path, made_up());
    ASSERT_TRUE(read.refused) << bytes;
    ASSERT_FALSE(read.foreign) << bytes;
    ASSERT_TRUE(read.entries.empty()) << bytes;
    ASSERT_NE(read.refused->text.find(path.string()), std::string::npos);
  }
}

TEST(TunerCache, DamagedValuesAreNoticed) {
  const test::TempDir dir;
  const auto path = dir.path() / "cache";
  write_cache(path, made_up(), entries);
  const std::string whole = text_in(path);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    text.replace(text.find(from), from.size(), to);
    put(path, text);
    const CacheRead read = read_cache(path, made_up());
    EXPECT_TRUE(read.refused) << from << " -> " << to;
    EXPECT_FALSE(read.foreign);
    EXPECT_TRUE(read.entries.empty());
  };
  with("\"w4a4\"", "\"w8a8\"");
  with("\"tokens\": 64", "\"tokens\": 0");
  with("\"tokens\": 64", "\"tokens\": \"64\"");
  with("\"entries\"", "\"entry\"");
  with("\"version\": 1", "\"version\": 7");
  with("\"top_k\": 4", "\"top_k\": 4.5");
}

TEST(TunerCache, AFullDiskLeavesTheOldFile) {
  const test::TempDir dir;
  const auto path = dir.path() / "cache";
  write_cache(path, made_up(), entries);
  const std::string before = text_in(path);
  Verdict v;
  {
    const FullDisk full(8);
    v = attempt([&] { write_cache(path, made_up(), {}); });
  }
  ASSERT_TRUE(v);
  EXPECT_EQ(v->kind, ErrorKind::usage);
  EXPECT_NE(v->text.find(path.string()), std::string::npos) << v->text;
  EXPECT_EQ(text_in(path), before);
  EXPECT_TRUE(attempt([&] { write_cache(dir.path() / "none" / "cache", made_up(), {}); }));
}

TEST(TacticTexts, RanksUnderstandEachOther) {
  const std::vector<op::Tactic> list = {{8, -1}, {64, 2}, {16, 0}};
  EXPECT_EQ(tactics_from(text_of(list)), list);
  EXPECT_TRUE(tactics_from(text_of({})).empty());
  EXPECT_THROW((void)tactics_from("8,0 x"), Error);
}

}  // namespace
}  // namespace kerf::tactics
