// Charts: well-formed XML whatever the texts, with every curve, tick and point in it.
#include "kerf/tools/chart.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
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

TEST(Chart, ALogarithmicAxisHasPowersOfTenAndNoLineAtOne) {
  const std::string text = svg({"t",
                                "s",
                                {{"p",
                                  "layer",
                                  "scale",
                                  {{"c", {{0, 0.02, 0.002, 0.02}, {1, 0.2, 0.02, 0.2}, {2, 2, 0.2, 2}}}},
                                  Axis::linear,
                                  Axis::logarithmic}}});
  EXPECT_EQ(test::xml_fault(text), "");
  EXPECT_EQ(count(text, "class=\"unit\""), 0U);
  for (const char* words :
       {">1e-03</text>", ">1e-02</text>", ">1e-01</text>", ">1e+00</text>", ">1e+01</text>"})
    EXPECT_EQ(count(text, words), 1U) << words;
  // Equal ratios are equal distances, and so are equal differences along x.
  const std::size_t at = text.find("<polyline points=\"");
  ASSERT_NE(at, std::string::npos);
  std::array<double, 6> p{};
  ASSERT_EQ(std::sscanf(text.c_str() + at, "<polyline points=\"%lf,%lf %lf,%lf %lf,%lf\"", &p[0], &p[1],
                        &p[2], &p[3], &p[4], &p[5]),
            6);
  EXPECT_NEAR(p[2] - p[0], p[4] - p[2], 0.21);  // printed to a tenth
  EXPECT_NEAR(p[1] - p[3], p[3] - p[5], 0.21);
  EXPECT_GT(p[1], p[3]);
}

TEST(Chart, AMapHasACellForEachValueAndColoursByItsLogarithm) {
  HeatMap map{"cells", "expert", "layer", {}, {3, 7}, 4};
  for (std::int64_t e = 0; e < 4; ++e) map.cells.push_back({e, 0, std::pow(10.0, e), "a<b"});
  map.cells.push_back({1, 1, 1000.0, "last"});
  const std::string text = svg({"t", "s", {}, {map}});
  EXPECT_EQ(test::xml_fault(text), "");
  EXPECT_EQ(count(text, "<title>a&lt;b</title>"), 4U);
  EXPECT_EQ(count(text, "<title>last</title>"), 1U);
  // Thousandfold over eight colours: a tenfold step is 8/3 of them.
  for (const char* cell : {"class=\"h0\"><title>a", "class=\"h2\"><title>a", "class=\"h5\"><title>a",
                           "class=\"h7\"><title>a", "class=\"h7\"><title>last"})
    EXPECT_EQ(count(text, cell), 1U) << cell;
  EXPECT_EQ(count(text, ">7</text>"), 1U);  // the second row's name
  EXPECT_EQ(test::xml_fault(svg({"t", "s", {}, {{"none", "x", "y", {}, {}, 0}}})), "");
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
