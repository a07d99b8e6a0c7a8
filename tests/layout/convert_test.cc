// The fast conversion against the layout's definition, its inverse, and the spans it refuses.
#include "kerf/layout/convert.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "kerf/base/error.h"
#include "tests/layout/layout_oracle.h"

namespace kerf::layout {
namespace {

using namespace test_support;

// Widths that leave every kind of remainder: half lines a row (I = 64), k-tiles not in fours, many tiles.
const std::vector<std::pair<std::int64_t, std::int64_t>> kNvfp4Widths = {
    {128, 64}, {128, 128}, {256, 192}, {384, 64}, {384, 320}, {640, 256}, {1024, 704}, {256, 1088}};

TEST(ConvertNvfp4, IsTheDefinitionAndRestoreUndoesIt) {
  for (const auto& [hidden, intermediate] : kNvfp4Widths) {
    SCOPED_TRACE(std::to_string(hidden) + " x " + std::to_string(intermediate));
    EXPECT_TRUE(goes_and_comes_back(hidden, intermediate, 11));
  }
}

TEST(ConvertNvfp4, AnyAlignmentOfEitherSide) {
  const std::int64_t hidden = 256, intermediate = 192;
  const Nvfp4Expert expert(hidden, intermediate, 5);
  const Nvfp4Converted right = converted_by_definition(expert, hidden, intermediate);
  for (const std::size_t shift : {1U, 7U, 8U, 16U, 33U, 63U}) {
    // Everything inside larger blocks, `shift` bytes in, with guards before and behind.
    const auto shifted = [&](const Bytes& b) {
      Bytes out(b.size() + shift + 64, std::byte{0x5C});
      std::copy(b.begin(), b.end(), out.begin() + static_cast<std::ptrdiff_t>(shift));
      return out;
    };
    const auto inside = [&](auto& b, std::size_t size) { return std::span(b).subspan(shift, size); };
    const Bytes gate = shifted(expert.gate), gate_sf = shifted(expert.gate_sf), up = shifted(expert.up),
                up_sf = shifted(expert.up_sf), down = shifted(expert.down), down_sf = shifted(expert.down_sf);
    const std::size_t n = expert.gate.size(), s = expert.gate_sf.size();
    Bytes w13 = shifted(Bytes(2 * n)), w13_sf = shifted(Bytes(2 * s)), w2 = shifted(Bytes(n)),
          w2_sf = shifted(Bytes(s));
    convert({inside(gate, n), inside(gate_sf, s), inside(up, n), inside(up_sf, s), inside(down, n),
             inside(down_sf, s)},
            hidden, intermediate,
            {inside(w13, 2 * n), inside(w13_sf, 2 * s), inside(w2, n), inside(w2_sf, s)});
    EXPECT_EQ(w13, shifted(right.w13)) << shift;
    EXPECT_EQ(w13_sf, shifted(right.w13_sf)) << shift;
    EXPECT_EQ(w2, shifted(right.w2)) << shift;
    EXPECT_EQ(w2_sf, shifted(right.w2_sf)) << shift;
    Bytes b_gate = shifted(Bytes(n)), b_gate_sf = shifted(Bytes(s)), b_up = b_gate, b_up_sf = b_gate_sf,
          b_down = b_gate, b_down_sf = b_gate_sf;
    restore({inside(std::as_const(w13), 2 * n), inside(std::as_const(w13_sf), 2 * s),
             inside(std::as_const(w2), n), inside(std::as_const(w2_sf), s)},
            hidden, intermediate,
            {inside(b_gate, n), inside(b_gate_sf, s), inside(b_up, n), inside(b_up_sf, s), inside(b_down, n),
             inside(b_down_sf, s)});
    EXPECT_EQ(b_gate, gate) << shift;
    EXPECT_EQ(b_gate_sf, gate_sf) << shift;
    EXPECT_EQ(b_up, up) << shift;
    EXPECT_EQ(b_up_sf, up_sf) << shift;
    EXPECT_EQ(b_down, down) << shift;
    EXPECT_EQ(b_down_sf, down_sf) << shift;
  }
}

TEST(ConvertBf16, IsTheDefinitionAndRestoreUndoesIt) {
  for (const auto& [hidden, intermediate] :
       {std::pair<std::int64_t, std::int64_t>{64, 64}, {192, 64}, {64, 192}, {256, 320}}) {
    SCOPED_TRACE(std::to_string(hidden) + " x " + std::to_string(intermediate));
    const Bf16Expert expert(hidden, intermediate, 3);
    Bf16Converted fast{Bytes(2 * expert.up.size()), Bytes(expert.up.size())};
    convert(LogicalBf16<const std::byte>{expert.gate, expert.up, expert.down}, hidden, intermediate,
            ConvertedBf16<std::byte>{fast.w13, fast.w2});
    EXPECT_TRUE(fast == converted_by_definition(expert, hidden, intermediate));
    Bf16Expert back(hidden, intermediate);
    restore(ConvertedBf16<const std::byte>{fast.w13, fast.w2}, hidden, intermediate,
            LogicalBf16<std::byte>{back.gate, back.up, back.down});
    EXPECT_TRUE(back == expert);
  }
}

// Runs `f`, which must fail with `kind` and a text that has `part`.
template <typename F>
void expect_error(const F& f, ErrorKind kind, const std::string& part) {
  try {
    f();
    ADD_FAILURE() << "no error, wanted: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what() << "\nlacks: " << part;
  }
}

TEST(ConvertNvfp4, SpansOfAWrongSizeAreNamedBeforeAnythingIsWritten) {
  const std::int64_t hidden = 128, intermediate = 64;
  const Nvfp4Expert expert(hidden, intermediate, 1);
  Nvfp4Converted c = converted(expert, hidden, intermediate);
  const Nvfp4Converted before = c;
  using Source = LogicalNvfp4<const std::byte>;
  using Target = ConvertedNvfp4<std::byte>;
  const std::pair<const char*, std::span<const std::byte> Source::*> sources[] = {
      {"gate has", &Source::gate},   {"gate_sf has", &Source::gate_sf}, {"up has", &Source::up},
      {"up_sf has", &Source::up_sf}, {"down has", &Source::down},       {"down_sf has", &Source::down_sf}};
  const std::pair<const char*, std::span<std::byte> Target::*> targets[] = {{"w13 has", &Target::w13},
                                                                            {"w13_sf has", &Target::w13_sf},
                                                                            {"w2 has", &Target::w2},
                                                                            {"w2_sf has", &Target::w2_sf}};
  const Nvfp4Expert other(hidden, intermediate, 2);
  for (const auto& [name, member] : sources) {
    Source from = other.view();
    (from.*member) = (from.*member).first((from.*member).size() - 1);
    expect_error(
        [&] {
          convert(from, hidden, intermediate, {c.w13, c.w13_sf, c.w2, c.w2_sf});
        },
        ErrorKind::bug, name);
  }
  for (const auto& [name, member] : targets) {
    Target to{c.w13, c.w13_sf, c.w2, c.w2_sf};
    (to.*member) = (to.*member).subspan(1);
    expect_error([&] { convert(other.view(), hidden, intermediate, to); }, ErrorKind::bug, name);
  }
  EXPECT_TRUE(c == before);
  // The way back checks the same spans.
  Nvfp4Expert back(hidden, intermediate);
  auto target = back.target();
  target.up_sf = target.up_sf.subspan(1);
  expect_error(
      [&] {
        restore({c.w13, c.w13_sf, c.w2, c.w2_sf}, hidden, intermediate, target);
      },
      ErrorKind::bug, "up_sf has");
}

TEST(ConvertNvfp4, WidthsThatDoNotFitAreRefused) {
  expect_error([] { convert(LogicalNvfp4<const std::byte>{}, 192, 64, {}); }, ErrorKind::unsupported,
               "hidden 192 is not a multiple of 128");
  expect_error([] { convert(LogicalNvfp4<const std::byte>{}, 128, 96, {}); }, ErrorKind::unsupported,
               "intermediate 96 is not a multiple of 64");
  expect_error([] { convert(LogicalNvfp4<const std::byte>{}, 0, 0, {}); }, ErrorKind::unsupported,
               "not positive");
}

TEST(ConvertBf16, WrongSpansAndWidthsAreRefused) {
  Bytes matrix(64 * 64 * 2), both(2 * matrix.size()), few(10);
  const LogicalBf16<const std::byte> from{matrix, matrix, matrix};
  const auto run = [&](const LogicalBf16<const std::byte>& source, std::span<std::byte> w13,
                       std::span<std::byte> w2, std::int64_t hidden) {
    return [=] { convert(source, hidden, 64, ConvertedBf16<std::byte>{w13, w2}); };
  };
  expect_error(run({few, matrix, matrix}, both, matrix, 64), ErrorKind::bug,
               "gate has 10 bytes, 8192 wanted");
  expect_error(run({matrix, few, matrix}, both, matrix, 64), ErrorKind::bug, "up has 10 bytes");
  expect_error(run({matrix, matrix, few}, both, matrix, 64), ErrorKind::bug, "down has 10 bytes");
  expect_error(run(from, few, matrix, 64), ErrorKind::bug, "w13 has 10 bytes, 16384 wanted");
  expect_error(run(from, both, few, 64), ErrorKind::bug, "w2 has 10 bytes");
  expect_error(run(from, both, matrix, 96), ErrorKind::unsupported, "hidden 96 is not a multiple of 64");
}

TEST(Interleave, WrongSizesAreRefused) {
  Bytes from(40), to(1024);
  expect_error([&] { interleave_128x4(from, 8, 6, to); }, ErrorKind::bug, "40 bytes from, 48 wanted");
  expect_error([&] { interleave_128x4(from, 8, 5, std::span(to).first(512)); }, ErrorKind::bug,
               "1024 wanted");
  expect_error([&] { interleave_8x4(from, 8, 5, to); }, ErrorKind::bug, "64 wanted");
  expect_error([&] { interleave_8x4(from, -8, -5, to); }, ErrorKind::bug, "-8 rows");
  EXPECT_NO_THROW(interleave_128x4(from, 8, 5, to));
  EXPECT_NO_THROW(interleave_128x4({}, 0, 5, {}));
}

}  // namespace
}  // namespace kerf::layout
