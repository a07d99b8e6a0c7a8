// Many experts on many workers: every byte is what converting them one by one gives, wherever work is cut.
#include <gtest/gtest.h>

#include <string>

#include "kerf/base/error.h"
#include "kerf/layout/convert.h"
#include "tests/layout/layout_oracle.h"

namespace kerf::layout {
namespace {

using namespace test_support;

struct Model {
  std::int64_t hidden, intermediate, width, experts;
  [[nodiscard]] std::string text() const {
    return std::to_string(experts) + " of " + std::to_string(hidden) + " x " + std::to_string(intermediate) +
           " at " + std::to_string(width);
  }
};

Bytes untouched(std::int64_t size) { return Bytes(static_cast<std::size_t>(size), std::byte{0xA5}); }

void append(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }

// From sizes of which an expert is one piece to sizes of which it is many, in uneven shares.
constexpr Model kNvfp4[] = {{128, 64, 64, 1},  {128, 64, 64, 7},    {1024, 704, 704, 1}, {640, 1088, 1088, 3},
                            {256, 96, 128, 5}, {1024, 720, 768, 2}, {2048, 512, 512, 1}};

TEST(ConvertAll, IsTheConversionOfEachNvfp4Expert) {
  for (const Model& m : kNvfp4) {
    std::vector<Nvfp4Expert> experts;
    std::vector<LogicalNvfp4<const std::byte>> views;
    for (std::int64_t e = 0; e < m.experts; ++e)
      experts.emplace_back(m.hidden, m.intermediate, static_cast<std::uint64_t>(100 + e));
    for (const Nvfp4Expert& x : experts) views.push_back(x.view());
    Nvfp4Converted wanted;
    for (const Nvfp4Expert& x : experts) {
      const Nvfp4Converted one = converted_by_definition(widened(x, m.hidden, m.width), m.hidden, m.width);
      append(wanted.w13, one.w13);
      append(wanted.w13_sf, one.w13_sf);
      append(wanted.w2, one.w2);
      append(wanted.w2_sf, one.w2_sf);
    }
    for (const int threads : {1, 2, 3, 8}) {
      SCOPED_TRACE(m.text() + ", " + std::to_string(threads) + " threads");
      const std::int64_t codes = m.experts * m.width * m.hidden / 2;
      Nvfp4Converted got{untouched(2 * codes), untouched(codes / 4), untouched(codes), untouched(codes / 8)};
      convert_all(views, m.hidden, m.intermediate, m.width, {got.w13, got.w13_sf, got.w2, got.w2_sf},
                  Workers(threads));
      EXPECT_TRUE(got.w13 == wanted.w13);
      EXPECT_TRUE(got.w13_sf == wanted.w13_sf);
      EXPECT_TRUE(got.w2 == wanted.w2);
      EXPECT_TRUE(got.w2_sf == wanted.w2_sf);
    }
  }
}

TEST(ConvertAll, IsTheConversionOfEachBf16Expert) {
  for (const Model& m :
       {Model{64, 64, 64, 6}, Model{192, 320, 320, 1}, Model{448, 100, 128, 3}, Model{64, 1088, 1088, 2}}) {
    std::vector<Bf16Expert> experts;
    std::vector<LogicalBf16<const std::byte>> views;
    for (std::int64_t e = 0; e < m.experts; ++e)
      experts.emplace_back(m.hidden, m.intermediate, static_cast<std::uint64_t>(200 + e));
    for (const Bf16Expert& x : experts) views.push_back({x.gate, x.up, x.down});
    Bf16Converted wanted;
    for (const Bf16Expert& x : experts) {
      const Bf16Converted one = converted_by_definition(widened(x, m.hidden, m.width), m.hidden, m.width);
      append(wanted.w13, one.w13);
      append(wanted.w2, one.w2);
    }
    for (const int threads : {1, 2, 3, 8}) {
      SCOPED_TRACE(m.text() + ", " + std::to_string(threads) + " threads");
      const std::int64_t matrix = m.experts * m.width * m.hidden * 2;
      Bf16Converted got{untouched(2 * matrix), untouched(matrix)};
      convert_all(views, m.hidden, m.intermediate, m.width, ConvertedBf16<std::byte>{got.w13, got.w2},
                  Workers(threads));
      EXPECT_TRUE(got == wanted);
    }
  }
}

// What is wrong with the last expert is found before the first is written.
TEST(ConvertAll, ChecksAllBeforeItWritesAny) {
  const std::int64_t hidden = 128, intermediate = 64;
  const Nvfp4Expert expert(hidden, intermediate, 1);
  std::vector<LogicalNvfp4<const std::byte>> views(3, expert.view());
  views.back().up_sf = views.back().up_sf.first(5);
  const std::int64_t codes = 3 * intermediate * hidden / 2;
  Nvfp4Converted got{untouched(2 * codes), untouched(codes / 4), untouched(codes), untouched(codes / 8)};
  const Nvfp4Converted before = got;
  const auto kind_of = [&](std::span<const LogicalNvfp4<const std::byte>> from) {
    try {
      convert_all(from, hidden, intermediate, intermediate, {got.w13, got.w13_sf, got.w2, got.w2_sf},
                  Workers(2));
    } catch (const Error& e) {
      return e.kind();
    }
    return ErrorKind::checkpoint;  // none
  };
  EXPECT_EQ(kind_of(views), ErrorKind::bug);
  EXPECT_EQ(kind_of(std::span(views).first(2)), ErrorKind::bug) << "room for three";
  EXPECT_EQ(kind_of({}), ErrorKind::bug) << "nothing to fill the target with";
  views.back() = expert.view();
  got.w2_sf.push_back(std::byte{});
  EXPECT_EQ(kind_of(views), ErrorKind::bug) << "a byte too many";
  got.w2_sf.pop_back();
  EXPECT_TRUE(got == before);
  convert_all(std::span<const LogicalNvfp4<const std::byte>>{}, hidden, intermediate, intermediate, {},
              Workers(2));
}

}  // namespace
}  // namespace kerf::layout
