// Which shapes can be held and cut: the rules, and what a refusal says.
#include "kerf/layout/geometry.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

namespace kerf::layout {
namespace {

struct Row {
  std::int64_t hidden, intermediate, tp;
  ErrorKind kind;                      // of the refusal
  std::vector<const char*> mentioned;  // none: it can be cut
};

class Cut : public testing::TestWithParam<Row> {};

TEST_P(Cut, IsJudgedWithAReason) {
  const Row& row = GetParam();
  const Verdict verdict = cuttable(row.hidden, row.intermediate, row.tp);
  ASSERT_EQ(verdict.has_value(), !row.mentioned.empty()) << (verdict ? verdict->text : "no reason");
  if (!verdict) return;
  EXPECT_EQ(verdict->kind, row.kind);
  for (const char* part : row.mentioned)
    EXPECT_NE(verdict->text.find(part), std::string::npos) << verdict->text;
}

constexpr auto kUnsupported = ErrorKind::unsupported;
INSTANTIATE_TEST_SUITE_P(
    Shapes, Cut,
    testing::Values(
        Row{256, 128, 1, kUnsupported, {}}, Row{256, 128, 2, kUnsupported, {}},
        Row{256, 128, 4, kUnsupported, {"slice 32 is not a multiple of 64", "legal tp: 1, 2"}},
        Row{256, 192, 2, kUnsupported, {"slice 96 is not a multiple of 64", "legal tp: 1, 3"}},
        Row{256, 192, 3, kUnsupported, {}},
        Row{2816, 704, 4, kUnsupported, {"slice 176 is not a multiple of 64", "legal tp: 1, 11"}},
        Row{2816, 704, 11, kUnsupported, {}}, Row{2560, 640, 2, kUnsupported, {}},
        Row{2560, 640, 4, kUnsupported, {"slice 160 is not a multiple of 64", "legal tp: 1, 2, 5, 10"}},
        Row{2560, 640, 8, kUnsupported, {"slice 80 is not a multiple of 64", "legal tp: 1, 2, 5, 10"}},
        Row{2688, 1856, 1, kUnsupported, {}},
        Row{2688, 1856, 8, kUnsupported, {"slice 232 splits a 16-value group", "legal tp: 1, 29"}},
        Row{2880,
            2880,
            2,
            kUnsupported,
            {"hidden 2880 is not a multiple of 128", "slice 1440 is not a multiple of 64", "legal tp: none"}},
        Row{2880, 2880, 1, kUnsupported, {"hidden 2880 is not a multiple of 128", "legal tp: none"}},
        Row{7168, 2048, 8, kUnsupported, {}}, Row{7168, 2048, 16, kUnsupported, {}},
        Row{7168, 2048, 32, kUnsupported, {}},
        Row{7168, 2048, 64, kUnsupported, {"slice 32 is not", "legal tp: 1, 2, 4, 8, 16, 32"}},
        Row{256, 128, 0, ErrorKind::usage, {"tp 0", "legal tp: 1, 2"}},
        Row{256, 128, -1, ErrorKind::usage, {"tp -1", "legal tp: 1, 2"}},
        Row{256, 128, 3, kUnsupported, {"intermediate 128 does not split 3 ways", "legal tp: 1, 2"}},
        Row{256, 128, 256, kUnsupported, {"does not split 256 ways"}},
        Row{256, 96, 1, kUnsupported, {"slice 96 is not a multiple of 64", "legal tp: none"}},
        Row{256, 0, 1, kUnsupported, {"intermediate 0 is not positive"}},
        Row{-128, 128, 1, kUnsupported, {"hidden -128 is not positive"}}),
    [](const auto& p) {
      std::string name;
      for (const std::int64_t v : {p.param.hidden, p.param.intermediate, p.param.tp}) {
        if (!name.empty()) name += "_";
        if (v < 0) name += "minus";
        name += std::to_string(v < 0 ? -v : v);
      }
      return name;
    });

TEST(Cut, WidthsThatWouldOverflowAreRefused) {
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_TRUE(convertible(huge, 64).has_value());
  EXPECT_TRUE(convertible(128, huge).has_value());
  EXPECT_TRUE(cuttable(128, huge, 1).has_value());
}

TEST(Convertible, NamesWhatDoesNotFit) {
  EXPECT_EQ(convertible(128, 64), std::nullopt);
  EXPECT_EQ(convertible(2688, 1856), std::nullopt);
  const Verdict h = convertible(192, 64);
  ASSERT_TRUE(h);
  EXPECT_NE(h->text.find("hidden 192 is not a multiple of 128"), std::string::npos) << h->text;
  EXPECT_EQ(h->text.find("intermediate 64 is not"), std::string::npos) << h->text;
  const Verdict i = convertible(256, 96);
  ASSERT_TRUE(i);
  EXPECT_NE(i->text.find("intermediate 96 is not a multiple of 64"), std::string::npos) << i->text;
  EXPECT_EQ(convertible_bf16(192, 64), std::nullopt);
  EXPECT_TRUE(convertible_bf16(96, 64).has_value());
  EXPECT_TRUE(convertible_bf16(64, 32).has_value());
  EXPECT_TRUE(convertible_bf16(0, 64).has_value());
}

// What is allowed decides; what is not is named where it would help.
TEST(Fitting, UnevenCutsWantATileEach) {
  const Fit uneven{true, false};
  EXPECT_EQ(cuttable(256, 320, 4, uneven), std::nullopt);
  EXPECT_EQ(cuttable(256, 320, 5, uneven), std::nullopt);
  EXPECT_EQ(cuttable(256, 768, 8, uneven), std::nullopt);
  EXPECT_EQ(
      cuttable(256, 320, 6, uneven)->text,
      "experts of hidden 256 x intermediate 320 cannot be cut 6 ways: intermediate 320 has 5 tiles of 64, "
      "fewer than slices; legal tp: 1 to 5");
  EXPECT_EQ(
      cuttable(256, 768, 8)->text,
      "experts of hidden 256 x intermediate 768 cannot be cut 8 ways: slice 96 is not a multiple of 64; "
      "legal tp: 1, 2, 3, 4, 6, 12; --uneven would cut slices of 128 and 64");
  EXPECT_EQ(
      cuttable(256, 192, 2)->text,
      "experts of hidden 256 x intermediate 192 cannot be cut 2 ways: slice 96 is not a multiple of 64; "
      "legal tp: 1, 3; --uneven would cut slices of 128 and 64; --pad would add zeros up to 256");
  const std::string wide = cuttable(256, 96, 1, uneven)->text;
  EXPECT_NE(wide.find("intermediate 96 is not a multiple of 64; legal tp: none; --pad"), std::string::npos)
      << wide;
  // More ranks than tiles, some of which would get zeros alone, or an H that nothing helps: no advice.
  EXPECT_EQ(cuttable(256, 128, 4)->text.find("--"), std::string::npos);
  EXPECT_EQ(cuttable(192, 128, 4)->text.find("--"), std::string::npos);
  EXPECT_EQ(cuttable(256, 128, 0, uneven)->kind, ErrorKind::usage);
}

TEST(Fitting, PaddingEndsAtTheNextWidthThatFits) {
  const Fit pad{false, true};
  const Fit both{true, true};
  EXPECT_EQ(converted_width(96, 1, {}), 96);
  EXPECT_EQ(converted_width(96, 1, pad), 128);
  EXPECT_EQ(converted_width(128, 1, pad), 128);
  EXPECT_EQ(converted_width(192, 2, pad), 256);
  EXPECT_EQ(converted_width(208, 3, pad), 384);
  EXPECT_EQ(converted_width(208, 3, both), 256);
  for (const std::int64_t intermediate : {16, 80, 96, 208, 320, 704})
    for (const std::int64_t tp : {1, 2, 3, 8}) EXPECT_EQ(cuttable(128, intermediate, tp, pad), std::nullopt);
  EXPECT_EQ(cuttable(256, 208, 4, both), std::nullopt);
  EXPECT_TRUE(cuttable(256, 208, 5, both));  // 4 tiles
  const Verdict odd = cuttable(256, 100, 2, pad);
  ASSERT_TRUE(odd);
  EXPECT_NE(odd->text.find("intermediate 100 is not a multiple of 16, which padding needs"),
            std::string::npos)
      << odd->text;
  EXPECT_EQ(cuttable(256, 100, 2)->text.find("--pad"), std::string::npos);
  EXPECT_TRUE(cuttable(192, 96, 2, pad));  // H is never padded
  EXPECT_TRUE(cuttable(256, 96, std::int64_t{1} << 40, pad));
  EXPECT_FALSE(paddable(16));
  EXPECT_TRUE(paddable(8));
  EXPECT_TRUE(paddable(0));
}

TEST(Fitting, SlicesAreDealtTileByTile) {
  EXPECT_EQ(slice_of(768, 8, 3), (Slice{384, 128}));
  EXPECT_EQ(slice_of(768, 8, 4), (Slice{512, 64}));
  EXPECT_EQ(slice_of(320, 2, 0), (Slice{0, 192}));
  EXPECT_EQ(slice_of(320, 2, 1), (Slice{192, 128}));
  EXPECT_EQ(slice_of(512, 4, 3), (Slice{384, 128}));
  EXPECT_EQ(slice_of(1856, 1, 0), (Slice{0, 1856}));
}

TEST(LegalTp, IsAscendingAndComplete) {
  EXPECT_EQ(legal_tp(704), (std::vector<std::int64_t>{1, 11}));
  EXPECT_EQ(legal_tp(2048), (std::vector<std::int64_t>{1, 2, 4, 8, 16, 32}));
  EXPECT_EQ(legal_tp(64), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(legal_tp(96), std::vector<std::int64_t>{});
  EXPECT_EQ(legal_tp(0), std::vector<std::int64_t>{});
  EXPECT_EQ(legal_tp(-64), std::vector<std::int64_t>{});
}

RC_GTEST_PROP(LegalTp, IsWhatCuttableAccepts, ()) {
  const auto intermediate = *rc::gen::inRange<std::int64_t>(1, 4096);
  std::vector<std::int64_t> accepted;
  for (std::int64_t tp = 1; tp <= intermediate; ++tp)
    if (!cuttable(128, intermediate, tp)) accepted.push_back(tp);
  RC_ASSERT(legal_tp(intermediate) == accepted);
}

TEST(Placeable, WholeExpertsOnEveryRank) {
  EXPECT_EQ(placeable(160, 8), std::nullopt);
  EXPECT_EQ(placeable(4, 4), std::nullopt);
  for (const auto& [experts, ep, text] :
       {std::tuple{60, 8, "60 experts over 8 ranks"}, std::tuple{128, 6, "128 experts over 6 ranks"},
        std::tuple{4, 8, "4 experts over 8 ranks"}}) {
    const Verdict v = placeable(experts, ep);
    ASSERT_TRUE(v) << text;
    EXPECT_EQ(v->kind, ErrorKind::unsupported);
    EXPECT_NE(v->text.find(text), std::string::npos) << v->text;
  }
  EXPECT_NE(placeable(60, 8)->text.find("legal ep: 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60"),
            std::string::npos);
  for (const std::int64_t ep : {0, -1}) {
    const Verdict v = placeable(4, ep);
    ASSERT_TRUE(v);
    EXPECT_EQ(v->kind, ErrorKind::usage);
  }
  EXPECT_TRUE(placeable(0, 1).has_value());
  EXPECT_TRUE(placeable(std::int64_t{1} << 62, 1).has_value());
}

TEST(Placeable, LegalEpAreTheDivisors) {
  EXPECT_EQ(legal_ep(12), (std::vector<std::int64_t>{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(legal_ep(16), (std::vector<std::int64_t>{1, 2, 4, 8, 16}));
  EXPECT_EQ(legal_ep(1), (std::vector<std::int64_t>{1}));
  EXPECT_TRUE(legal_ep(0).empty());
  for (const std::int64_t ep : legal_ep(60)) EXPECT_FALSE(placeable(60, ep)) << ep;
}

}  // namespace
}  // namespace kerf::layout
