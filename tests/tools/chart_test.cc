// Charts: well-formed XML whatever the texts, with every curve, tick and point in it.
#include "kerf/tools/chart.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "kerf/base/error.h"
#include "tests/support/test_env.h"
#include "tests/support/xml.h"

namespace kerf::tools {
namespace {

Chart sample() {
  return {"A & B <\"c\">",
          "sub\x01title",
          {{"first",
            "tokens",
            "fraction",
            {{"ep", {{1, 0.5, 0.4, 0.6}, {8, 0.7, 0.6, 0.8}}}, {"t<p", {{1, 0.9, 0.9, 1.3}}}}},
           {"second", "width", "fraction", {{"ep", {{512, 0.25, 0.25, 0.25}}}}}}};
}

std::size_t count(const std::string& text, const std::string& words) {
  std::size_t n = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++n;
  return n;
}

TEST(Chart, IsWellFormedWithEveryCurveInIt) {
  const std::string text = svg(sample());
  EXPECT_EQ(test::xml_fault(text), "");
  EXPECT_EQ(count(text, "data-name=\"ep\""), 2U);
  EXPECT_EQ(count(text, "data-name=\"t&lt;p\""), 1U);
  EXPECT_EQ(count(text, "class=\"spread\""), 4U);  // a bar a point
  EXPECT_EQ(count(text, "class=\"unit\""), 2U);
  for (const char* words : {"A &amp; B &lt;&quot;c&quot;&gt;", "prefers-color-scheme: dark", ">512</text>",
                            ">8</text>", ">1.4</text>", ">tokens</text>", ">width</text>"})
    EXPECT_EQ(count(text, words) > 0, true) << words;
}

TEST(Chart, HigherValuesAreHigherUp) {
  const std::string text =
      svg({"t", "s", {{"p", "x", "y", {{"c", {{1, 0.2, 0.2, 0.2}, {4, 0.8, 0.8, 0.8}}}}}}});
  const std::size_t at = text.find("<polyline points=\"");
  ASSERT_NE(at, std::string::npos);
  double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
  ASSERT_EQ(std::sscanf(text.c_str() + at, "<polyline points=\"%lf,%lf %lf,%lf\"", &x0, &y0, &x1, &y1), 4);
  EXPECT_LT(x0, x1);
  EXPECT_GT(y0, y1);
}

// Without any point there are axes all the same.
TEST(Chart, ACurveWithoutPointsIsDrawnEmpty) {
  EXPECT_EQ(test::xml_fault(svg({"t", "s", {{"p", "x", "y", {{"c", {}}}}}})), "");
}

TEST(Chart, IsWrittenWholeOrNotAtAll) {
  const test::TempDir dir;
  const auto path = dir.path() / "chart.svg";
  write_svg(path, sample());
  std::ifstream in(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), svg(sample()));
  const Verdict v = attempt([&] { write_svg(dir.path() / "none" / "chart.svg", sample()); });
  ASSERT_TRUE(v);
  EXPECT_EQ(v->kind, ErrorKind::usage);
}

}  // namespace
}  // namespace kerf::tools
