#include "kerf/checkpoint/faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kerf::checkpoint {
namespace {

using ::testing::ElementsAre;

Faults numbered(const std::string& kind, int from, int to) {
  Faults out;
  for (int i = from; i < to; ++i) out.add(kind, "place " + std::to_string(i));
  return out;
}

TEST(Faults, EmptyIsNoVerdict) {
  const Faults none;
  EXPECT_TRUE(none.empty());
  EXPECT_FALSE(none.verdict());
  EXPECT_EQ(none.text(), "");
}

TEST(Faults, KeepsTheFirstFiveAndCountsAll) {
  Faults faults = numbered("NaN", 0, 7);
  faults.add("zero", "elsewhere");
  EXPECT_EQ(faults.total(), 8);
  ASSERT_EQ(faults.groups().size(), 2U);
  EXPECT_THAT(faults.groups()[0].first, ElementsAre("place 0", "place 1", "place 2", "place 3", "place 4"));
  EXPECT_EQ(
      faults.text(),
      "NaN, count 7, the first 5: place 0; place 1; place 2; place 3; place 4 | zero, count 1: elsewhere");
  ASSERT_TRUE(faults.verdict());
  EXPECT_EQ(faults.verdict()->kind, ErrorKind::checkpoint);
  EXPECT_EQ(faults.verdict()->text, faults.text());
}

TEST(Faults, MergedAsIfSeenInTurn) {
  for (int cut = 0; cut <= 8; ++cut) {
    Faults merged = numbered("NaN", 0, cut);
    merged.merge(numbered("NaN", cut, 8));
    EXPECT_EQ(merged.text(), numbered("NaN", 0, 8).text()) << cut;
  }
}

TEST(Faults, TravelAsJson) {
  Faults faults = numbered("NaN", 0, 9);
  faults.add("a \"kind\"", "a\nplace \xFF");
  const Faults back = Faults::from_json(faults.to_json());
  EXPECT_EQ(back.total(), 10);
  ASSERT_EQ(back.groups().size(), 2U);
  EXPECT_EQ(back.groups()[0].first, faults.groups()[0].first);
  EXPECT_EQ(back.groups()[1].kind, "a \"kind\"");
  EXPECT_EQ(back.groups()[1].first[0], "a\nplace \xEF\xBF\xBD");  // not UTF-8: replaced
  EXPECT_TRUE(Faults::from_json(Faults().to_json()).empty());
  for (const char* bad : {"", "{", "[1]", "[{}]", R"([{"kind":1,"total":1,"first":[]}])"})
    EXPECT_THROW(Faults::from_json(bad), Error) << bad;
}

}  // namespace
}  // namespace kerf::checkpoint
