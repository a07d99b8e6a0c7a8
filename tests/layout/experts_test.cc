// Owned experts have the shapes they promise; a view that has not is named, tensor by tensor.
#include "kerf/layout/experts.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace kerf::layout {
namespace {

using tensor::Dtype;
using tensor::Shape;
using tensor::TensorView;

constexpr ExpertsShape kShape{3, 256, 192};

struct Member {
  const char* name;
  TensorView Nvfp4View::*view;
  const char* expected;
};
constexpr std::array<Member, 9> kMembers = {{
    {"w13", &Nvfp4View::w13, "U8 [3, 384, 128]"},
    {"w13_sf", &Nvfp4View::w13_sf, "F8_E4M3 [3, 384, 16]"},
    {"w2", &Nvfp4View::w2, "U8 [3, 256, 96]"},
    {"w2_sf", &Nvfp4View::w2_sf, "F8_E4M3 [3, 256, 12]"},
    {"g1_alphas", &Nvfp4View::g1_alphas, "F32 [3]"},
    {"g1_scale_c", &Nvfp4View::g1_scale_c, "F32 [3]"},
    {"g2_alphas", &Nvfp4View::g2_alphas, "F32 [3]"},
    {"a1_gscale", &Nvfp4View::a1_gscale, "F32 [1]"},
    {"a2_gscale", &Nvfp4View::a2_gscale, "F32 [1]"},
}};

std::string shown(const TensorView& t) { return std::string(tensor::name(t.dtype)) + " " + t.shape.text(); }

void expect_refused(const Verdict& verdict, const std::string& a, const std::string& b,
                    const std::string& c) {
  ASSERT_TRUE(verdict) << a;
  EXPECT_EQ(verdict->kind, ErrorKind::unsupported);
  for (const std::string& part : {a, b, c})
    EXPECT_NE(verdict->text.find(part), std::string::npos) << verdict->text;
}

class Nvfp4 : public testing::TestWithParam<Member> {
 protected:
  tensor::HostMemory memory_;
  Nvfp4Experts experts_{memory_, kShape, 6};
};

TEST_P(Nvfp4, HasThePromisedShape) {
  const TensorView t = experts_.view().*GetParam().view;
  EXPECT_EQ(shown(t), GetParam().expected);
  EXPECT_EQ(static_cast<std::int64_t>(t.bytes.size()), tensor::bytes_of(t.dtype, t.shape));
}

TEST_P(Nvfp4, AWrongDtypeIsNamed) {
  Nvfp4View view = experts_.view();
  TensorView& t = view.*GetParam().view;
  t.dtype = t.dtype == Dtype::f32 ? Dtype::i32 : Dtype::i8;  // of the same size
  expect_refused(malformed(view), std::string(GetParam().name) + ": got", shown(t),
                 std::string("expected ") + GetParam().expected);
}

TEST_P(Nvfp4, AWrongShapeIsNamed) {
  Nvfp4View view = experts_.view();
  TensorView& t = view.*GetParam().view;
  t.shape = t.shape.rank() == 1 ? Shape{t.shape[0] + 1} : Shape{t.shape[0], t.shape[1] + 1, t.shape[2]};
  expect_refused(malformed(view), std::string(GetParam().name) + ": got", shown(t),
                 std::string("expected ") + GetParam().expected);
}

TEST_P(Nvfp4, AWrongNumberOfDimensionsIsNamed) {
  Nvfp4View view = experts_.view();
  TensorView& t = view.*GetParam().view;
  t.shape = Shape{t.shape.elements(), 1};
  expect_refused(malformed(view), std::string(GetParam().name) + ": got", shown(t), "expected");
}

TEST_P(Nvfp4, AWrongSizeIsNamed) {
  Nvfp4View view = experts_.view();
  TensorView& t = view.*GetParam().view;
  const std::size_t right = t.bytes.size();
  t.bytes = t.bytes.first(right - 1);
  expect_refused(malformed(view),
                 std::string(GetParam().name) + ": got " + std::to_string(right - 1) + " bytes",
                 "expected " + std::to_string(right), GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(Tensors, Nvfp4, testing::ValuesIn(kMembers),
                         [](const auto& p) { return std::string(p.param.name); });

TEST(Nvfp4Experts, ViewSizesAndPlacement) {
  tensor::HostMemory memory;
  {
    const Nvfp4Experts experts(memory, kShape, 6);
    EXPECT_EQ(malformed(experts.view()), std::nullopt);
    EXPECT_EQ(shape_of(experts.view()), kShape);
    EXPECT_EQ(experts.view().first_expert, 6);
    const std::int64_t codes = 3 * 256 * 192 / 2;
    EXPECT_EQ(experts.bytes(), 3 * (3 * codes / 3 + 3 * codes / 3 / 8) + 4 * (3 * 3 + 2));
    EXPECT_EQ(memory.current(), experts.bytes());
    EXPECT_EQ(experts.view().w13.bytes.data(), experts.w13.bytes().data());
  }
  EXPECT_EQ(memory.current(), 0);
}

TEST(Nvfp4Experts, EveryFaultIsInOneReason) {
  tensor::HostMemory memory;
  const Nvfp4Experts experts(memory, kShape, 0);
  Nvfp4View view = experts.view();
  view.w2_sf.dtype = Dtype::u8;
  view.a2_gscale = TensorView{};
  const Verdict verdict = malformed(view);
  ASSERT_TRUE(verdict);
  EXPECT_NE(verdict->text.find("w2_sf"), std::string::npos);
  EXPECT_NE(verdict->text.find("a2_gscale"), std::string::npos);
  EXPECT_EQ(verdict->text.find("g1_alphas"), std::string::npos);
}

TEST(Nvfp4Experts, WidthsThatDoNotFitAreRefused) {
  tensor::HostMemory memory;
  for (const ExpertsShape& s : {ExpertsShape{3, 192, 64},
                                {3, 128, 96},
                                {0, 128, 64},
                                {-1, 128, 64},
                                {3, 0, 64},
                                {3, std::int64_t{1} << 62, 64}})
    EXPECT_THROW(Nvfp4Experts(memory, s, 0), Error) << s.experts << " " << s.hidden << " " << s.intermediate;
  EXPECT_THROW(Nvfp4Experts(memory, kShape, -1), Error);
  EXPECT_EQ(memory.peak(), 0);
  // The same from a view whose w13 implies such a width.
  const std::array<std::byte, 2 * 64 * 96> bytes{};
  Nvfp4View view;
  view.w13 = {Dtype::u8, {1, 128, 96}, bytes};
  expect_refused(malformed(view), "hidden 192 is not a multiple of 128", "w13: got U8 [1, 128, 96]", "");
}

TEST(Nvfp4Experts, ShapesThatCannotBeReadAreRefused) {
  for (const Shape& shape : {Shape{}, Shape{4}, Shape{4, 4}, Shape{1, 2, 3, 4}, Shape{0, 128, 64},
                             Shape{-1, 128, 64}, Shape{1, std::int64_t{1} << 61, 2}}) {
    Nvfp4View view;
    view.w13 = {Dtype::u8, shape, {}};
    EXPECT_THROW(static_cast<void>(shape_of(view)), Error) << shape.text();
    const Verdict verdict = malformed(view);
    ASSERT_TRUE(verdict) << shape.text();
    EXPECT_EQ(verdict->kind, ErrorKind::unsupported);
  }
}

TEST(Bf16Experts, ViewSizesAndPlacement) {
  tensor::HostMemory memory;
  const Bf16Experts experts(memory, {2, 192, 64}, 4);
  EXPECT_EQ(shown(experts.view().w13), "BF16 [2, 3, 128, 64]");
  EXPECT_EQ(shown(experts.view().w2), "BF16 [2, 1, 192, 64]");
  EXPECT_EQ(malformed(experts.view()), std::nullopt);
  EXPECT_EQ(shape_of(experts.view()), (ExpertsShape{2, 192, 64}));
  EXPECT_EQ(experts.view().first_expert, 4);
  EXPECT_EQ(experts.bytes(), 2 * 3 * 192 * 64 * 2);
  EXPECT_THROW(Bf16Experts(memory, {2, 96, 64}, 0), Error);
  EXPECT_THROW(Bf16Experts(memory, {2, 64, 32}, 0), Error);
}

TEST(Bf16Experts, EachFaultIsNamed) {
  tensor::HostMemory memory;
  const Bf16Experts experts(memory, {2, 192, 64}, 4);
  struct {
    const char* name;
    TensorView Bf16View::*view;
    const char* expected;
  } const members[] = {{"w13", &Bf16View::w13, "BF16 [2, 3, 128, 64]"},
                       {"w2", &Bf16View::w2, "BF16 [2, 1, 192, 64]"}};
  for (const auto& m : members) {
    const std::string got = std::string(m.name) + ": got ";
    Bf16View view = experts.view();
    (view.*m.view).dtype = Dtype::f16;
    expect_refused(malformed(view), got + "F16", "expected ", m.expected);
    view = experts.view();
    TensorView& t = view.*m.view;
    t.shape = Shape{t.shape[0], t.shape[1], t.shape[2] + 1, t.shape[3]};
    expect_refused(malformed(view), got + shown(t), "expected ", m.expected);
    view = experts.view();
    (view.*m.view).bytes = (view.*m.view).bytes.subspan(2);
    expect_refused(malformed(view), got, "bytes", m.expected);
  }
  Bf16View view = experts.view();
  view.w13.shape = {2, 6, 128, 32};
  expect_refused(malformed(view), "w13: got BF16 [2, 6, 128, 32]", "expected", "[n, H/64, 2I, 64]");
}

}  // namespace
}  // namespace kerf::layout
