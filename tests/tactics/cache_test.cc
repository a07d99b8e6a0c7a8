// The tuner's cache: what was written comes back for the same setting; anything else is refused in words.
#include "kerf/tactics/cache.h"

#include <gtest/gtest.h>

#include "tests/support/test_env.h"
#include "tests/tactics/setting.h"

namespace kerf::tactics {
namespace {

CacheSetting made() { return {"cpu-x-1", "a machine, 2 cores", 64, 4, 2}; }

// One arithmetic at two widths, as where NVFP4 experts are padded and BF16 ones are not.
const std::vector<CacheEntry> entries = {{op::Arithmetic::w4a4, {16, 256, 128}, 1, {8, 2}},
                                         {op::Arithmetic::w4a4, {16, 256, 128}, 64, {32, 0}},
                                         {op::Arithmetic::w4a4, {16, 256, 192}, 64, {8, 0}},
                                         {op::Arithmetic::bf16, {16, 256, 64}, 8, {8, 1}}};

TEST(TunerCache, GivesBackWhatWasWritten) {
  const test::TempDir dir;
  const auto path = dir.path() / "cache";
  EXPECT_TRUE(read_cache(path, made()).entries.empty());
  EXPECT_FALSE(read_cache(path, made()).refused);  // no file yet is no fault
  write_cache(path, made(), entries);
  const CacheRead read = read_cache(path, made());
  EXPECT_FALSE(read.refused);
  EXPECT_EQ(read.entries, entries);
}

TEST(TunerCache, RefusesWhatWasMeasuredElsewhereAndSaysWhere) {
  const test::TempDir dir;
  const auto path = dir.path() / "cache";
  write_cache(path, made(), entries);
  const auto expect_foreign = [&](const std::function<void(CacheSetting&)>& edit,
                                  std::initializer_list<const char*> words) {
    CacheSetting here = made();
    edit(here);
    const CacheRead read = read_cache(path, here);
    ASSERT_TRUE(read.refused);
    EXPECT_TRUE(read.stays);
    EXPECT_TRUE(read.entries.empty());
    for (const char* word : words)
      EXPECT_NE(read.refused->text.find(word), std::string::npos) << word << " in " << read.refused->text;
  };
  expect_foreign([](CacheSetting& s) { s.package = "cpu-y-1"; }, {"kernel package 'cpu-x-1'", "'cpu-y-1'"});
  expect_foreign([](CacheSetting& s) { s.device = "a machine, 4 cores"; }, {"device", "2 cores", "4 cores"});
  expect_foreign([](CacheSetting& s) { s.num_experts = 16; }, {"64 experts", "16 experts"});
  expect_foreign([](CacheSetting& s) { s.top_k = 8; }, {"top 4", "top 8"});
  expect_foreign([](CacheSetting& s) { s.workers = 4; }, {"workers", "2, here: 4"});
}

TEST(TunerCache, EveryWayToCutItShortIsNoticed) {
  const test::TempDir dir;
  const auto path = dir.path() / "cache";
  write_cache(path, made(), entries);
  const std::string whole = text_in(path);
  const std::string head = "{\n \"format\": \"kerf-tuner-cache\"";
  ASSERT_EQ(whole.substr(0, head.size()), head);
  for (std::size_t bytes = 0; bytes + 2 < whole.size(); ++bytes) {  // but for "}\n", each byte counts
    put(path, whole.substr(0, bytes));
    const CacheRead read = read_cache(path, made());
    ASSERT_TRUE(read.refused) << bytes;
    ASSERT_TRUE(read.entries.empty()) << bytes;
    ASSERT_NE(read.refused->text.find(path.string()), std::string::npos);
    // Replaced only where it is empty, or enough is left to tell whose it was.
    ASSERT_EQ(read.stays, bytes > 0 && bytes < head.size()) << bytes;
    ASSERT_EQ(not_a_cache(path).has_value(), read.stays) << bytes;
  }
}

TEST(TunerCache, DamagedValuesAreNoticed) {
  const test::TempDir dir;
  const auto path = dir.path() / "cache";
  write_cache(path, made(), entries);
  const std::string whole = text_in(path);
  const auto with = [&](const std::string& from, const std::string& to, bool stays = false) {
    std::string text = whole;
    text.replace(text.find(from), from.size(), to);
    put(path, text);
    const CacheRead read = read_cache(path, made());
    EXPECT_TRUE(read.refused) << from << " -> " << to;
    EXPECT_EQ(read.stays, stays) << from << " -> " << to;
    EXPECT_TRUE(read.entries.empty());
    EXPECT_LT(read.refused->text.size(), 1000U);
  };
  with("\"w4a4\"", "\"w8a8\"");
  with("\"w4a4\"", "\"" + std::string(100'000, 'w') + "\"");
  with("\"tokens\": 64", "\"tokens\": 0");
  with("\"tokens\": 64", "\"tokens\": \"64\"");
  with("\"intermediate\": 128", "\"intermediate\": -128");
  with("\"workers\": 2", "\"workers\": 0");
  with("\"entries\"", "\"entry\"");
  with("\"top_k\": 4", "\"top_k\": 4.5");
  with("\"top_k\": 4", "\"top_k\": 4, \"top_k\": 4");
  with("\"version\": 1", "\"version\": 7", true);  // another program's
  with("\"a machine, 2 cores\"", "\"" + std::string(100'000, 'm') + "\"", true);
}

// Whatever is not a cache is refused, stays, and is not written over even by a caller who did not ask.
TEST(TunerCache, OtherFilesStay) {
  const test::TempDir dir;
  const auto path = dir.path() / "file";
  const std::vector<std::string> others = {
      "notes of mine",
      "{}",
      "[]",
      R"({"format": "kerf-tactics", "version": 1, "lists": []})",
      R"({"num_experts": 8, "hidden_size": 256})",
      std::string("{\"format\0\": \"kerf-tuner-cache\"}", 31),
      R"({"format": "kerf-tuner-cache-of-old"})",
      R"({"other": 1, "format": "kerf-tuner-cache", "other": 2})",
      std::string(2'000'000, '['),
      std::string((std::size_t{16} << 20) + 1, ' '),
  };
  for (const std::string& text : others) {
    put(path, text);
    const std::string begin = text.substr(0, 60);
    const Verdict why = not_a_cache(path);
    ASSERT_TRUE(why) << begin;
    EXPECT_EQ(why->kind, ErrorKind::usage);
    EXPECT_EQ(why->text.rfind(path.string(), 0), 0U) << why->text;
    EXPECT_LT(why->text.size(), 1000U);
    const CacheRead read = read_cache(path, made());
    EXPECT_TRUE(read.refused && read.stays) << begin;
    EXPECT_TRUE(attempt([&] { write_cache(path, made(), entries); })) << begin;
    EXPECT_EQ(text_in(path), text);
  }
  EXPECT_TRUE(not_a_cache(dir.path()));  // a directory
  EXPECT_NE(not_a_cache(dir.path())->text.find("not a regular file"), std::string::npos);
  // A cache whose keys another program has sorted is one.
  put(path, R"({"device": "d", "entries": [], "format": "kerf-tuner-cache", "version": 1})");
  EXPECT_FALSE(not_a_cache(path));
  put(path, "");
  EXPECT_FALSE(not_a_cache(path));
  EXPECT_FALSE(not_a_cache(dir.path() / "none"));
}

TEST(TunerCache, AFullDiskLeavesTheOldFile) {
  const test::TempDir dir;
  const auto path = dir.path() / "cache";
  write_cache(path, made(), entries);
  const std::string before = text_in(path);
  Verdict v;
  {
    const FullDisk full(8);
    v = attempt([&] { write_cache(path, made(), {}); });
  }
  ASSERT_TRUE(v);
  EXPECT_EQ(v->kind, ErrorKind::usage);
  EXPECT_NE(v->text.find(path.string()), std::string::npos) << v->text;
  EXPECT_EQ(text_in(path), before);
  EXPECT_TRUE(attempt([&] { write_cache(dir.path() / "none" / "cache", made(), {}); }));
}

TEST(TacticTexts, RanksUnderstandEachOther) {
  const std::vector<op::Tactic> list = {{8, -1}, {64, 2}, {16, 0}};
  EXPECT_EQ(tactics_from(text_of(list)), list);
  EXPECT_TRUE(tactics_from(text_of({})).empty());
  for (const char* other : {"8,0 x", "8,0 1", "8,0 1,", "8;0 16,2", " 8,0", "8,0 ", "8,"})
    EXPECT_THROW((void)tactics_from(other), Error) << other;
}

}  // namespace
}  // namespace kerf::tactics
