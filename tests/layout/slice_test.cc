// The theorem on which expert tensor parallelism by moving bytes rests: cutting converted experts and
// converting cut ones gives equal bytes. Every slice of every tensor kind, over a grid and over random
// shapes.
#include "kerf/layout/slice.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <optional>
#include <string>

#include "kerf/layout/convert.h"
#include "kerf/layout/geometry.h"
#include "kerf/tensor/storage.h"
#include "tests/layout/layout_oracle.h"

namespace kerf::layout {
namespace {

using namespace test_support;

struct Layer {
  Layer(const ExpertsShape& shape, std::uint64_t seed) : converted(memory, shape, 0) {
    for (std::int64_t e = 0; e < shape.experts; ++e) {
      experts.emplace_back(shape.hidden, shape.intermediate, seed + 1000 * static_cast<std::uint64_t>(e));
      convert(experts.back().view(), shape.hidden, shape.intermediate,
              {of(converted.w13, e), of(converted.w13_sf, e), of(converted.w2, e), of(converted.w2_sf, e)});
    }
  }
  static std::span<std::byte> of(const tensor::Tensor& t, std::int64_t e) {
    const std::size_t size = t.bytes().size() / static_cast<std::size_t>(t.shape()[0]);
    return t.bytes().subspan(static_cast<std::size_t>(e) * size, size);
  }

  tensor::HostMemory memory;
  std::vector<Nvfp4Expert> experts;
  Nvfp4Experts converted;
};

// The first thing that is not as it should be over all slices; nothing where the theorem holds.
std::optional<std::string> fault(const ExpertsShape& shape, std::int64_t tp, std::uint64_t seed,
                                 bool uneven = false) {
  const Layer layer(shape, seed);
  std::int64_t first = 0;
  for (std::int64_t part = 0; part < tp; ++part) {
    const std::int64_t width = dealt(shape.intermediate, tp)[static_cast<std::size_t>(part)];
    // What it must be: every expert cut first, then converted by the definition, one after the other.
    std::array<Bytes, 4> wanted;
    for (const Nvfp4Expert& e : layer.experts) {
      const Nvfp4Converted c = converted_by_definition(cut(e, shape.hidden, shape.intermediate, first, width),
                                                       shape.hidden, width);
      const std::array<const Bytes*, 4> kinds = {&c.w13, &c.w13_sf, &c.w2, &c.w2_sf};
      for (std::size_t k = 0; k < 4; ++k)
        wanted[k].insert(wanted[k].end(), kinds[k]->begin(), kinds[k]->end());
    }
    first += width;
    const auto views = slice_views(layer.converted.view(), tp, part, uneven);
    for (std::size_t k = 0; k < 4; ++k) {
      const std::string where = std::string(nvfp4_kind_names[k]) + " of slice " + std::to_string(part) +
                                " of " + std::to_string(tp) + " of " + std::to_string(shape.hidden) + " x " +
                                std::to_string(shape.intermediate);
      if (views[k].packed_bytes() != std::ssize(wanted[k])) return where + ": size";
      Bytes got(wanted[k].size());
      tensor::pack(views[k], got.data());
      if (got != wanted[k]) return where + ": bytes";
    }
  }
  if (first != shape.intermediate) return "the slices together are not the whole";
  return std::nullopt;
}

TEST(Theorem, HoldsOnTheGrid) {
  int slices = 0;
  for (const std::int64_t experts : {1, 3})
    for (const std::int64_t hidden : {128, 256, 640})
      for (const std::int64_t intermediate : {64, 128, 192, 320, 512, 704, 1024})
        for (const std::int64_t tp : legal_tp(intermediate)) {
          EXPECT_EQ(fault({experts, hidden, intermediate}, tp, 1), std::nullopt);
          slices += static_cast<int>(tp);
        }
  EXPECT_EQ(slices, 2 * 3 * (1 + 3 + 4 + 6 + 15 + 12 + 31));
}

TEST(Theorem, HoldsForTheWidthsOfModels) {
  EXPECT_EQ(fault({1, 2688, 1856}, 1, 4), std::nullopt);
  EXPECT_EQ(fault({1, 2560, 640}, 2, 4), std::nullopt);
  EXPECT_EQ(fault({2, 2816, 704}, 11, 4), std::nullopt);
  EXPECT_EQ(fault({1, 7168, 2048}, 16, 4), std::nullopt);
  EXPECT_EQ(fault({1, 7168, 2048}, 32, 4), std::nullopt);
}

RC_GTEST_PROP(Theorem, HoldsWhereverTheGeometryAllows, ()) {
  const ExpertsShape shape{*rc::gen::inRange<std::int64_t>(1, 5), 128 * *rc::gen::inRange<std::int64_t>(1, 5),
                           64 * *rc::gen::inRange<std::int64_t>(1, 13)};
  const std::int64_t tp = *rc::gen::elementOf(legal_tp(shape.intermediate));
  RC_ASSERT(fault(shape, tp, *rc::gen::arbitrary<std::uint32_t>()) == std::nullopt);
}

// Slices that differ by a tile: every number of them up to the tiles there are.
TEST(Theorem, HoldsForUnevenCuts) {
  int slices = 0;
  for (const std::int64_t hidden : {128, 640})
    for (const std::int64_t intermediate : {64, 128, 192, 320, 448, 768})
      for (std::int64_t tp = 1; tp <= intermediate / 64; ++tp) {
        EXPECT_EQ(fault({2, hidden, intermediate}, tp, 7, true), std::nullopt);
        slices += static_cast<int>(tp);
      }
  EXPECT_EQ(slices, 2 * (1 + 3 + 6 + 15 + 28 + 78));
  EXPECT_EQ(fault({1, 2816, 704}, 8, 4, true), std::nullopt);  // 3 of two tiles, 5 of one
  EXPECT_EQ(fault({1, 2688, 1856}, 8, 4, true), std::nullopt);
}

RC_GTEST_PROP(Theorem, HoldsForEveryUnevenCut, ()) {
  const std::int64_t tiles = *rc::gen::inRange<std::int64_t>(1, 13);
  const ExpertsShape shape{*rc::gen::inRange<std::int64_t>(1, 4), 128 * *rc::gen::inRange<std::int64_t>(1, 4),
                           64 * tiles};
  const std::int64_t tp = *rc::gen::inRange<std::int64_t>(1, tiles + 1);
  RC_ASSERT(fault(shape, tp, *rc::gen::arbitrary<std::uint32_t>(), true) == std::nullopt);
}

// The geometry refuses no more than it must: a slice of a width that is not a multiple of 64 has no
// conversion that whole bytes of the stock tensors could be.
RC_GTEST_PROP(Theorem, ElsewhereTheRefusalSaysWhyAndWhatIsLegal, ()) {
  const ExpertsShape shape{1, 128 * *rc::gen::inRange<std::int64_t>(1, 4),
                           64 * *rc::gen::inRange<std::int64_t>(1, 9)};
  const std::int64_t tp = *rc::gen::inRange<std::int64_t>(2, 40);
  RC_PRE(shape.intermediate % tp != 0 || shape.intermediate / tp % 64 != 0);
  tensor::HostMemory memory;
  const Nvfp4Experts experts(memory, shape, 0);
  std::string legal;
  for (const std::int64_t t : legal_tp(shape.intermediate))
    legal += (legal.empty() ? "" : ", ") + std::to_string(t);
  try {
    static_cast<void>(slice_views(experts.view(), tp, 0));
    RC_FAIL("cut where it cannot be");
  } catch (const Error& e) {
    const std::string text = e.what();
    RC_ASSERT(e.kind() == ErrorKind::unsupported);
    RC_ASSERT(text.find("legal tp: " + legal) != std::string::npos);
    const std::string why = shape.intermediate % tp != 0 ? "does not split " + std::to_string(tp) + " ways"
                                                         : "slice " + std::to_string(shape.intermediate / tp);
    RC_ASSERT(text.find(why) != std::string::npos);
  }
}

ErrorKind kind_of(const Nvfp4View& view, std::int64_t tp, std::int64_t part) {
  try {
    static_cast<void>(slice_views(view, tp, part));
  } catch (const Error& e) {
    return e.kind();
  }
  return ErrorKind::bug;
}

TEST(SliceViews, RefuseWhatIsNotASlice) {
  tensor::HostMemory memory;
  const Nvfp4Experts experts(memory, {2, 256, 128}, 0);
  Nvfp4View view = experts.view();
  EXPECT_EQ(kind_of(view, 0, 0), ErrorKind::usage);
  EXPECT_EQ(kind_of(view, -1, 0), ErrorKind::usage);
  EXPECT_EQ(kind_of(view, 2, 2), ErrorKind::usage);
  EXPECT_EQ(kind_of(view, 2, -1), ErrorKind::usage);
  EXPECT_EQ(kind_of(view, 4, 0), ErrorKind::unsupported);
  EXPECT_EQ(kind_of(view, 3, 0), ErrorKind::unsupported);
  EXPECT_THROW(static_cast<void>(slice_views(view, 3, 0, true)), Error);  // two tiles for three
  view.w2.bytes = view.w2.bytes.subspan(1);
  EXPECT_EQ(kind_of(view, 2, 0), ErrorKind::unsupported);
}

TEST(SliceViews, CopyNothing) {
  tensor::HostMemory memory;
  const Nvfp4Experts experts(memory, {2, 256, 128}, 0);
  const std::int64_t before = memory.peak();
  const auto views = slice_views(experts.view(), 2, 1);
  EXPECT_EQ(memory.peak(), before);
  EXPECT_EQ(views[0].base, experts.w13.bytes().data() + 128 * 128);
  EXPECT_EQ(views[1].base, experts.w13_sf.bytes().data() + 128 * 16);
  EXPECT_EQ(views[2].base, experts.w2.bytes().data() + 32);
  EXPECT_EQ(views[3].base, experts.w2_sf.bytes().data() + 512);
}

}  // namespace
}  // namespace kerf::layout
