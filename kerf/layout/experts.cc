#include "kerf/layout/experts.h"

#include <array>
#include <string>

#include "kerf/base/format.h"
#include "kerf/layout/geometry.h"

namespace kerf::layout {

namespace {

using tensor::Dtype;
using tensor::Shape;

// One tensor of a layer: its name, what is held, and what its dtype and shape must be.
struct Wanted {
  const char* name;
  const tensor::TensorView* got;
  Dtype dtype;
  Shape shape;
};

// The shapes of one layout, in one place: allocation and checks both read them from here.
struct Nvfp4Shapes {
  explicit Nvfp4Shapes(const ExpertsShape& s)
      : w13{s.experts, 2 * s.intermediate, s.hidden / 2},
        w13_sf{s.experts, 2 * s.intermediate, s.hidden / 16},
        w2{s.experts, s.hidden, s.intermediate / 2},
        w2_sf{s.experts, s.hidden, s.intermediate / 16},
        expert_scalar{s.experts},
        layer_scalar{1} {}
  Shape w13, w13_sf, w2, w2_sf, expert_scalar, layer_scalar;
};

struct Bf16Shapes {
  explicit Bf16Shapes(const ExpertsShape& s)
      : w13{s.experts, s.hidden / 64, 2 * s.intermediate, 64},
        w2{s.experts, s.intermediate / 64, s.hidden, 64} {}
  Shape w13, w2;
};

std::string text(Dtype dtype, const Shape& shape) {
  return fmt::format("{} {}", tensor::name(dtype), shape.text());
}

// What is wrong with one tensor; empty for nothing.
std::string fault(const Wanted& w) {
  if (w.got->dtype != w.dtype || w.got->shape != w.shape)
    return fmt::format("{}: got {}, expected {}", w.name, text(w.got->dtype, w.got->shape),
                       text(w.dtype, w.shape));
  const std::int64_t bytes = tensor::bytes_of(w.dtype, w.shape);
  if (static_cast<std::int64_t>(w.got->bytes.size()) != bytes)
    return fmt::format("{}: got {} bytes, expected {} for {}", w.name, w.got->bytes.size(), bytes,
                       text(w.dtype, w.shape));
  return {};
}

// All faults in one reason: somebody who adapts an engine's tensors wants the whole list at once.
template <std::size_t N>
Verdict faults(const std::array<Wanted, N>& wanted) {
  std::string all;
  for (const Wanted& w : wanted) {
    const std::string one = fault(w);
    if (!one.empty()) all += (all.empty() ? "" : "; ") + one;
  }
  if (all.empty()) return std::nullopt;
  return Reason{ErrorKind::unsupported, all};
}

// n, H and I are read from w13, so its dimensions must be usable before they are multiplied.
void check_w13(const tensor::TensorView& w13, int rank, const char* wanted) {
  if (w13.shape.rank() != rank)
    fail(ErrorKind::unsupported, "w13: got {}, expected {} dimensions: {}", text(w13.dtype, w13.shape), rank,
         wanted);
  if (w13.shape.elements() > std::int64_t{1} << 56)  // twice a dimension must not overflow
    fail(ErrorKind::unsupported, "w13: got {}, too large; expected {}", text(w13.dtype, w13.shape), wanted);
  if (w13.shape.elements() < 1)
    fail(ErrorKind::unsupported, "w13: got {}, which holds nothing; expected {} with at least one expert",
         text(w13.dtype, w13.shape), wanted);
}

constexpr std::int64_t kMany = std::int64_t{1} << 30;
constexpr const char* kNvfp4W13 = "U8 [n, 2I, H/2]";
constexpr const char* kBf16W13 = "BF16 [n, H/64, 2I, 64]";

Verdict bad_placement(const ExpertsShape& shape, std::int64_t first_expert) {
  if (shape.experts > kMany)
    return because(ErrorKind::unsupported, "{} experts, at most {} wanted", shape.experts, kMany);
  if (shape.experts < 1)
    return because(ErrorKind::unsupported, "{} experts, at least one wanted", shape.experts);
  if (first_expert < 0)
    return because(ErrorKind::unsupported, "first expert {}, at least 0 wanted", first_expert);
  return std::nullopt;
}

ExpertsShape checked_nvfp4(const ExpertsShape& shape, std::int64_t first_expert) {
  require(bad_placement(shape, first_expert));
  require(convertible(shape.hidden, shape.intermediate));
  return shape;
}

ExpertsShape checked_bf16(const ExpertsShape& shape, std::int64_t first_expert) {
  require(bad_placement(shape, first_expert));
  require(convertible_bf16(shape.hidden, shape.intermediate));
  return shape;
}

}  // namespace

ExpertsShape shape_of(const Nvfp4View& view) {
  check_w13(view.w13, 3, kNvfp4W13);
  const Shape& s = view.w13.shape;
  return {s[0], 2 * s[2], s[1] / 2};
}

ExpertsShape shape_of(const Bf16View& view) {
  check_w13(view.w13, 4, kBf16W13);
  const Shape& s = view.w13.shape;
  if (s[3] != 64) fail(ErrorKind::unsupported, "w13: got {}, expected {}", text(view.w13.dtype, s), kBf16W13);
  return {s[0], 64 * s[1], s[2] / 2};
}

namespace {

template <typename View>
Verdict implied_shape(const View& view, ExpertsShape* shape) {
  if (auto bad = attempt([&] { *shape = shape_of(view); })) return bad;
  return bad_placement(*shape, view.first_expert);
}

Verdict with_w13(Verdict bad, const tensor::TensorView& w13) {
  if (bad) bad->text += fmt::format(" (w13: got {})", text(w13.dtype, w13.shape));
  return bad;
}

}  // namespace

Verdict malformed(const Nvfp4View& view) {
  ExpertsShape s;
  if (auto bad = implied_shape(view, &s)) return bad;
  const Nvfp4Shapes want(s);
  const Wanted w13{"w13", &view.w13, Dtype::u8, want.w13};
  if (auto bad = faults(std::array{w13})) return bad;
  if (auto bad = with_w13(convertible(s.hidden, s.intermediate), view.w13)) return bad;
  return faults(std::array{
      Wanted{"w13_sf", &view.w13_sf, Dtype::f8_e4m3, want.w13_sf},
      Wanted{"w2", &view.w2, Dtype::u8, want.w2},
      Wanted{"w2_sf", &view.w2_sf, Dtype::f8_e4m3, want.w2_sf},
      Wanted{"g1_alphas", &view.g1_alphas, Dtype::f32, want.expert_scalar},
      Wanted{"g1_scale_c", &view.g1_scale_c, Dtype::f32, want.expert_scalar},
      Wanted{"g2_alphas", &view.g2_alphas, Dtype::f32, want.expert_scalar},
      Wanted{"a1_gscale", &view.a1_gscale, Dtype::f32, want.layer_scalar},
      Wanted{"a2_gscale", &view.a2_gscale, Dtype::f32, want.layer_scalar},
  });
}

Verdict malformed(const Bf16View& view) {
  ExpertsShape s;
  if (auto bad = implied_shape(view, &s)) return bad;
  const Bf16Shapes want(s);
  const Wanted w13{"w13", &view.w13, Dtype::bf16, want.w13};
  if (auto bad = faults(std::array{w13})) return bad;
  if (auto bad = with_w13(convertible_bf16(s.hidden, s.intermediate), view.w13)) return bad;
  return faults(std::array{Wanted{"w2", &view.w2, Dtype::bf16, want.w2}});
}

std::array<WeightTensor, 4> nvfp4_weights(const ExpertsShape& shape) {
  const Nvfp4Shapes s(shape);
  return {{{"w13", Dtype::u8, s.w13},
           {"w13_sf", Dtype::f8_e4m3, s.w13_sf},
           {"w2", Dtype::u8, s.w2},
           {"w2_sf", Dtype::f8_e4m3, s.w2_sf}}};
}

std::array<WeightTensor, 2> bf16_weights(const ExpertsShape& shape) {
  const Bf16Shapes s(shape);
  return {{{"w13", Dtype::bf16, s.w13}, {"w2", Dtype::bf16, s.w2}}};
}

Nvfp4Experts::Nvfp4Experts(tensor::Memory& weights, tensor::Memory& scalars, const ExpertsShape& wanted,
                           std::int64_t first)
    : shape(checked_nvfp4(wanted, first)), first_expert(first) {
  const Nvfp4Shapes s(shape);
  w13 = tensor::Tensor(weights, Dtype::u8, s.w13);
  w13_sf = tensor::Tensor(weights, Dtype::f8_e4m3, s.w13_sf);
  w2 = tensor::Tensor(weights, Dtype::u8, s.w2);
  w2_sf = tensor::Tensor(weights, Dtype::f8_e4m3, s.w2_sf);
  for (tensor::Tensor* t : {&g1_alphas, &g1_scale_c, &g2_alphas})
    *t = tensor::Tensor(scalars, Dtype::f32, s.expert_scalar);
  for (tensor::Tensor* t : {&a1_gscale, &a2_gscale}) *t = tensor::Tensor(scalars, Dtype::f32, s.layer_scalar);
}

Nvfp4View Nvfp4Experts::view() const {
  return {w13.view(),        w13_sf.view(),    w2.view(),        w2_sf.view(),     g1_alphas.view(),
          g1_scale_c.view(), g2_alphas.view(), a1_gscale.view(), a2_gscale.view(), first_expert};
}

std::int64_t Nvfp4Experts::bytes() const {
  std::size_t sum = 0;
  for (const tensor::Tensor* t :
       {&w13, &w13_sf, &w2, &w2_sf, &g1_alphas, &g1_scale_c, &g2_alphas, &a1_gscale, &a2_gscale})
    sum += t->bytes().size();
  return static_cast<std::int64_t>(sum);
}

Bf16Experts::Bf16Experts(tensor::Memory& memory, const ExpertsShape& wanted, std::int64_t first)
    : shape(checked_bf16(wanted, first)), first_expert(first) {
  const Bf16Shapes s(shape);
  w13 = tensor::Tensor(memory, Dtype::bf16, s.w13);
  w2 = tensor::Tensor(memory, Dtype::bf16, s.w2);
}

Bf16View Bf16Experts::view() const { return {w13.view(), w2.view(), first_expert}; }

std::int64_t Bf16Experts::bytes() const {
  return static_cast<std::int64_t>(w13.bytes().size() + w2.bytes().size());
}

}  // namespace kerf::layout
