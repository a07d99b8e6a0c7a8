// Lists of preferred tactics: found by all of a setting or not at all, kept when others are written, refused
// where the file is something else.
#include "kerf/tactics/preferred.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/test_env.h"
#include "tests/tactics/setting.h"

namespace kerf::tactics {
namespace {

PreferredList list_of(const Setting& setting, std::vector<op::Tactic> tactics,
                      op::Arithmetic arithmetic = op::Arithmetic::w4a4) {
  PreferredList list{setting, arithmetic, std::move(tactics), {}};
  list.measured = {{1, std::vector<double>(list.tactics.size(), 12.5)}};
  return list;
}

TEST(PreferredLists, AreFoundByPackageDeviceAndSizes) {
  const Setting here = made_up();
  const std::vector<PreferredList> lists = {list_of(here, {{16, 1}}),
                                            list_of(here, {{8, 2}}, op::Arithmetic::w4a16)};
  ASSERT_NE(find_list(lists, here, op::Arithmetic::w4a4), nullptr);
  EXPECT_EQ(find_list(lists, here, op::Arithmetic::w4a4)->tactics, (std::vector<op::Tactic>{{16, 1}}));
  EXPECT_EQ(find_list(lists, here, op::Arithmetic::w4a16)->tactics, (std::vector<op::Tactic>{{8, 2}}));

  const auto missing = [&](const std::function<void(Setting&)>& edit, op::Arithmetic arithmetic) {
    Setting other = here;
    edit(other);
    std::string why;
    EXPECT_EQ(find_list(lists, other, arithmetic, &why), nullptr);
    return why;
  };
  using op::Arithmetic;
  EXPECT_EQ(missing([](Setting& s) { s.package = "cpu-x-2"; }, Arithmetic::w4a4),
            "for kernel package 'cpu-x-2'");
  EXPECT_EQ(missing([](Setting& s) { s.device = "another"; }, Arithmetic::w4a4), "on device 'another'");
  EXPECT_EQ(missing([](Setting& s) { s.shape.hidden = 512; }, Arithmetic::w4a4),
            "for experts 16 of 64, 512 x 128, top 4, w4a4");
  EXPECT_NE(missing([](Setting& s) { s.shape.intermediate = 64; }, Arithmetic::w4a4), "");
  EXPECT_NE(missing([](Setting& s) { s.shape.experts = 8; }, Arithmetic::w4a4), "");
  EXPECT_NE(missing([](Setting& s) { s.num_experts = 32; }, Arithmetic::w4a4), "");
  EXPECT_NE(missing([](Setting& s) { s.top_k = 2; }, Arithmetic::w4a4), "");
  EXPECT_NE(missing([](Setting&) {}, Arithmetic::bf16), "");
}

TEST(PreferredLists, AFileGivesBackWhatWasWritten) {
  const test::TempDir dir;
  const auto path = dir.path() / "lists.json";
  const std::vector<PreferredList> lists = {list_of(made_up(), {{16, 1}, {8, -1}, {64, 0}})};
  write_lists(path, lists);
  EXPECT_EQ(read_lists(path), lists);
}

TEST(PreferredLists, WritingReplacesOneSettingAndKeepsTheOthers) {
  const test::TempDir dir;
  const auto path = dir.path() / "lists.json";
  Setting other = made_up();
  other.top_k = 2;
  write_lists(path, {list_of(made_up(), {{8, 0}}), list_of(other, {{8, 1}})});
  write_lists(path, {list_of(made_up(), {{32, 2}})});
  const std::vector<PreferredList> now = read_lists(path);
  ASSERT_EQ(now.size(), 2U);
  EXPECT_EQ(find_list(now, made_up(), op::Arithmetic::w4a4)->tactics, (std::vector<op::Tactic>{{32, 2}}));
  EXPECT_EQ(find_list(now, other, op::Arithmetic::w4a4)->tactics, (std::vector<op::Tactic>{{8, 1}}));
}

TEST(PreferredLists, TheBuiltInOnesCanBeRun) {
  for (const PreferredList& list : measured_lists()) {
    ASSERT_FALSE(list.tactics.empty());
    EXPECT_FALSE(list.setting.device.empty());
    for (const MeasuredAt& at : list.measured) EXPECT_EQ(at.us.size(), list.tactics.size());
    // They are of packages of this program, and of tactics that those have.
    if (!list.setting.package.starts_with("cpu-")) continue;
    const std::vector<op::Tactic> known = op::backend("cpu").tactics(-1);
    for (const op::Tactic t : list.tactics)
      EXPECT_NE(std::find(known.begin(), known.end(), t), known.end()) << t.tile << ", " << t.config;
  }
}

std::string refused(const std::function<void()>& step) {
  const Verdict v = attempt(step);
  if (!v) return "accepted";
  EXPECT_EQ(v->kind, ErrorKind::usage) << v->text;
  return v->text;
}

TEST(PreferredLists, OtherFilesAreRefusedByName) {
  const test::TempDir dir;
  const auto path = dir.path() / "lists.json";
  const std::string head = R"({"format": "kerf-tactics", "version": 1, "lists": )";
  const std::string setting =
      R"("package": "p", "device": "d", "experts": 1, "hidden": 128, "intermediate": 64, "num_experts": 1, )"
      R"("top_k": 1, "arithmetic": "w4a4", "measured": [])";
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "not valid JSON"},
      {head + "[", "not valid JSON"},
      {R"({"format": "kerf-tuner-cache", "version": 1})", "wanted \"kerf-tactics\""},
      {R"({"format": "kerf-tactics", "version": 2, "lists": []})", "version 2"},
      {R"({"version": 1})", "no 'format'"},
      {"[]", "no 'format'"},
      {head + "{}}", "'lists' is {} (object)"},
      {head + "[{}]}", "list 0: no 'package'"},
      {head + "[{" + setting + R"(, "tactics": []}]})", "a list without tactics"},
      {head + "[{" + setting + R"(, "tactics": [[8]]}]})", "[8] (array) is no tactic"},
      {head + "[{" + setting + R"(, "tactics": [[0, 0]]}]})", "[0,0] (array) is no tactic"},
      {head + "[{" + setting + R"(, "tactics": [["8", 0]]}]})", "is no tactic"},
      {head + "[{" + setting + R"(, "tactics": [[8, 99999999999]]}]})", "is no tactic"},
      {head + "[{" + setting + R"(, "tactics": [[8, 18446744073709551615]]}]})", "is no tactic"},
      {head + "[{" + setting + R"(, "tactics": [[8, 0]]}], "lists": []})", "'lists' comes twice"},
      {head + "[]}" + std::string(1, '\0'), "a zero byte"},
      {std::string(2'000'000, '['), "nested deeper than 64"},
      {head + std::string(2'000'000, '['), "nested deeper than 64"},
      {R"({"format": ")" + std::string(1'000'000, 'x') + R"("})", "(1000002 bytes)"},
  };
  for (const auto& [text, words] : bad) {
    put(path, text);
    const std::string why = refused([&] { (void)read_lists(path); });
    EXPECT_NE(why.find(words), std::string::npos) << why << "\nof " << text;
    EXPECT_EQ(why.rfind(path.string(), 0), 0U) << why;
    EXPECT_LT(why.size(), 1000U);
    // Nor is such a file written over.
    EXPECT_NE(refused([&] { write_lists(path, {list_of(made_up(), {{8, 0}})}); }), "accepted") << text;
    EXPECT_EQ(text_in(path), text);
  }
  put(path, head + "[{" + setting + R"(, "tactics": [[8, 0]]}]})");
  EXPECT_EQ(read_lists(path).size(), 1U);
  // Each kind of place in its own words.
  EXPECT_NE(refused([&] { (void)read_lists(dir.path() / "none"); }).find("No such file"), std::string::npos);
  EXPECT_NE(refused([&] { (void)read_lists(dir.path()); }).find("not a regular file"), std::string::npos);
  const auto pipe = dir.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(refused([&] { (void)read_lists(pipe); }).find("not a regular file"), std::string::npos);
  EXPECT_NE(refused([&] { (void)read_lists("/dev/null"); }).find("not a regular file"), std::string::npos);
}

TEST(PreferredLists, AFullDiskLeavesTheOldFile) {
  const test::TempDir dir;
  const auto path = dir.path() / "lists.json";
  write_lists(path, {list_of(made_up(), {{8, 0}})});
  const std::string before = text_in(path);
  std::string why;
  {
    const FullDisk full(16);
    why = refused([&] { write_lists(path, {list_of(made_up(), {{16, 0}})}); });
  }
  EXPECT_NE(why.find("cannot write it"), std::string::npos) << why;
  EXPECT_EQ(text_in(path), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);  // no temporary stays
}

TEST(PreferredLists, APlaceThatCannotBeWrittenIsFoundBefore) {
  const test::TempDir dir;
  EXPECT_NE(refused([&] { check_lists_writable(dir.path() / "none" / "lists.json"); }).find("no directory"),
            std::string::npos);
  EXPECT_NE(refused([&] { check_lists_writable(dir.path()); }).find("directory"), std::string::npos);
  put(dir.path() / "notes.txt", "not lists");
  EXPECT_NE(refused([&] { check_lists_writable(dir.path() / "notes.txt"); }), "accepted");
  check_lists_writable(dir.path() / "new.json");
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "new.json"));
}

}  // namespace
}  // namespace kerf::tactics
