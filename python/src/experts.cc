#include "src/experts.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "src/bind.h"
#include "src/callers.h"

namespace kerf::python {

namespace {

using tensor::Dtype;

tensor::TensorView held(nb::handle experts, const char* name, Dtype dtype, bool device,
                        std::vector<Argument>& keep) {
  const nb::object attribute = attribute_of(experts, name);
  keep.emplace_back(attribute, Wanted{name, dtype, {}, {}, true, true, device});
  return keep.back().view();
}

std::int64_t first_expert_of(nb::handle experts) {
  // A placement that does not exist is told of where it is looked at: by rank, with what would be right.
  return whole_attribute(experts, "first_expert", -most_count, most_count);
}

int threads_of(nb::handle threads) {
  const std::int64_t count = whole("threads", threads, 0, most_threads);
  return count > 0 ? static_cast<int>(count) : available_cores();
}

// A global scale of a checkpoint, or what goes the other way: 1 / it has to be a number as well.
void check_scale(const char* name, float scale) {
  if (scale > 0 && std::isfinite(scale) && std::isfinite(1.0F / scale)) return;
  throw Error(
      ErrorKind::usage,
      fmt::format("{} is {}, wanted a positive finite number whose reciprocal is finite, too", name, scale));
}

template <typename Experts>
struct Kept {
  std::shared_ptr<ExpertsMemory> memory;
  Experts experts;
};

template <typename Experts>
nb::dict dict_of(std::shared_ptr<ExpertsMemory> memory, Experts experts,
                 std::initializer_list<std::pair<const char*, tensor::Tensor Experts::*>> members) {
  const auto kept = std::make_shared<Kept<Experts>>(Kept<Experts>{std::move(memory), std::move(experts)});
  nb::dict out;
  for (const auto& [name, member] : members) {
    const tensor::TensorView view = (kept->experts.*member).view();
    const bool on_device = kept->memory->device() != host_memory && cuda::on_device(view.bytes.data());
    out[name] = nb::cast(Array(view, kept, true, on_device ? kept->memory->device() : host_memory));
  }
  out["first_expert"] = kept->experts.first_expert;
  return out;
}

numeric::Quantiser recipe_named(const std::string& name) {
  if (name == "vllm") return numeric::Quantiser::vllm;
  if (name == "fast") return numeric::Quantiser::fast;
  if (name == "exact") return numeric::Quantiser::exact;
  throw Error(ErrorKind::usage, fmt::format("recipe is '{}', wanted vllm, fast or exact", name));
}

tensor::Shape with_last(const tensor::Shape& shape, std::int64_t last) {
  std::array<std::int64_t, tensor::Shape::max_rank> sizes{};
  std::copy(shape.dims().begin(), shape.dims().end(), sizes.begin());
  sizes[static_cast<std::size_t>(shape.rank() - 1)] = last;
  return tensor::Shape(std::span<const std::int64_t>(sizes.data(), static_cast<std::size_t>(shape.rank())));
}

float largest_of(const Argument& x) {
  float most = 0;
  const auto look = [&](float value) {
    if (std::isnan(value) || std::fabs(value) > most) most = std::fabs(value);
  };
  if (x.view().dtype == Dtype::f32)
    for (const float value : x.as<float>()) look(value);
  else
    for (const std::uint16_t bits : x.as<std::uint16_t>()) look(numeric::bf16_to_f32(bits));
  return most;
}

// The scale at which the largest value is 6 * 448, the largest that codes and block scales make.
float scale_for(float largest) {
  if (!std::isfinite(largest))
    throw Error(ErrorKind::usage,
                fmt::format("x has a value of {}: give a global_scale, or finite values", largest));
  return largest == 0 ? 1.0F : largest / 2688.0F;
}

nb::tuple quantize(nb::handle object, std::optional<float> global_scale, const std::string& recipe,
                   nb::handle out_codes, nb::handle out_scales) {
  const Argument x(object, {"x", Dtype::bf16, {}, Dtype::f32, true});
  const tensor::Shape& shape = x.view().shape;
  if (shape.rank() < 1 || shape[shape.rank() - 1] % numeric::nvfp4_block != 0)
    throw Error(ErrorKind::usage,
                fmt::format("x is {}, wanted a last size that is a multiple of 16", described(x.view())));
  const std::int64_t k = shape[shape.rank() - 1];
  const numeric::Quantiser how = recipe_named(recipe);
  const tensor::Shape codes_shape = with_last(shape, k / 2);
  const tensor::Shape scales_shape = with_last(shape, k / 16);
  if (global_scale) check_scale("global_scale", *global_scale);
  nb::object codes = out_or_like(out_codes, object, "uint8", codes_shape);
  nb::object scales = out_or_like(out_scales, object, "float8_e4m3fn", scales_shape);
  const Argument codes_to(codes, {"out[0]", Dtype::u8, {}, {}, true}, true);
  const Argument scales_to(scales, {"out[1]", Dtype::f8_e4m3, {}, {}, true}, true);
  if (codes_to.view().shape != codes_shape || scales_to.view().shape != scales_shape)
    throw Error(ErrorKind::usage,
                fmt::format("out is {} and {}, wanted U8 {} and F8_E4M3 {}", described(codes_to.view()),
                            described(scales_to.view()), codes_shape.text(), scales_shape.text()));
  float scale = 0;
  {
    const Unlocked released;
    scale = global_scale.value_or(0.0F);
    if (!global_scale) scale = scale_for(largest_of(x));
    if (!global_scale) check_scale("max|x| / 2688", scale);
    if (k > 0 && x.view().dtype == Dtype::f32)
      numeric::quantise_rows(x.as<float>(), k, 1.0F / scale, codes_to.writable<std::uint8_t>(),
                             scales_to.writable<std::uint8_t>(), how);
    else if (k > 0)
      numeric::quantise_rows(x.as<std::uint16_t>(), k, 1.0F / scale, codes_to.writable<std::uint8_t>(),
                             scales_to.writable<std::uint8_t>(), how);
  }
  return nb::make_tuple(codes, scales, scale);
}

nb::object dequantize(nb::handle codes_object, nb::handle scales_object, float global_scale, nb::handle out) {
  const Argument codes(codes_object, {"codes", Dtype::u8, {}, {}, true});
  const tensor::Shape& shape = codes.view().shape;
  if (shape.rank() < 1 || shape[shape.rank() - 1] % 8 != 0)
    throw Error(ErrorKind::usage, fmt::format("codes are {}, wanted a last size that is a multiple of 8",
                                              described(codes.view())));
  if (!std::isfinite(global_scale))
    throw Error(ErrorKind::usage, fmt::format("global_scale is {}, wanted a finite number", global_scale));
  const std::int64_t k = shape[shape.rank() - 1] * 2;
  const Argument scales(scales_object, {"scales", Dtype::f8_e4m3, {}, {}, true});
  if (scales.view().shape != with_last(shape, k / 16))
    throw Error(ErrorKind::usage,
                fmt::format("scales are {}, wanted {} for codes {}", described(scales.view()),
                            with_last(shape, k / 16).text(), shape.text()));
  nb::object values = out_or_like(out, codes_object, "float32", with_last(shape, k));
  const Argument to(values, {"out", Dtype::f32, {}, {}, true}, true);
  if (to.view().shape != with_last(shape, k))
    throw Error(ErrorKind::usage,
                fmt::format("out is {}, wanted F32 {}", described(to.view()), with_last(shape, k).text()));
  const Unlocked released;
  if (k > 0)
    numeric::dequantise_rows(codes.as<std::uint8_t>(), scales.as<std::uint8_t>(), k, global_scale,
                             to.writable<float>());
  return values;
}

// Matrix e of a stack [n, rows, columns].
std::span<const std::byte> matrix(const Argument& stack, std::int64_t e) {
  const auto bytes = stack.view().bytes.size() / static_cast<std::size_t>(stack.size(0));
  return stack.view().bytes.subspan(static_cast<std::size_t>(e) * bytes, bytes);
}

// I, or the width that the caller wants it padded to.
std::int64_t converted_to(std::int64_t intermediate, nb::handle width) {
  if (width.is_none()) return intermediate;
  const std::int64_t to = whole("width", width, intermediate, most_count);
  if (to % 64 != 0)
    throw Error(ErrorKind::usage,
                fmt::format("width is {}, wanted a multiple of 64, {} or more", to, intermediate));
  return to;
}

nb::dict convert_nvfp4(nb::handle gate_object, nb::handle up_object, nb::handle down_object,
                       nb::handle gate_sf_object, nb::handle up_sf_object, nb::handle down_sf_object,
                       nb::handle gate_scale, nb::handle up_scale, nb::handle down_scale,
                       std::optional<float> input_scale, std::optional<float> intermediate_scale,
                       nb::handle first_expert, const std::string& act, nb::handle width,
                       nb::handle threads) {
  const Argument gate(gate_object, {"gate", Dtype::u8, {any_size, any_size, any_size}});
  const std::int64_t n = gate.size(0);
  const std::int64_t i = gate.size(1);
  const std::int64_t h = gate.size(2) * 2;
  const Argument up(up_object, {"up", Dtype::u8, {n, i, h / 2}});
  const Argument down(down_object, {"down", Dtype::u8, {n, h, i / 2}});
  const Argument gate_sf(gate_sf_object, {"gate_sf", Dtype::f8_e4m3, {n, i, h / 16}});
  const Argument up_sf(up_sf_object, {"up_sf", Dtype::f8_e4m3, {n, i, h / 16}});
  const Argument down_sf(down_sf_object, {"down_sf", Dtype::f8_e4m3, {n, h, i / 16}});
  const op::Input input = input_named(act);
  const std::int64_t first = whole("first_expert", first_expert, 0, most_count);
  const std::int64_t to = converted_to(i, width);
  const int workers = threads_of(threads);
  if (input_scale) check_scale("input_scale", *input_scale);
  if (intermediate_scale) check_scale("intermediate_scale", *intermediate_scale);
  checkpoint::LayerScales scales;
  const auto values = [n](nb::handle object, const char* name) {
    const Argument given(object, {name, Dtype::f32, {n}});
    return std::vector<float>(given.as<float>().begin(), given.as<float>().end());
  };
  scales.ws2_gate = values(gate_scale, "gate_scale");
  scales.ws2_up = values(up_scale, "up_scale");
  scales.ws2_down = values(down_scale, "down_scale");
  if (input == op::Input::nvfp4 && (!input_scale || !intermediate_scale))
    throw Error(
        ErrorKind::usage,
        "experts that are given quantised rows want an input_scale and an intermediate_scale; act=\"bf16\" "
        "needs neither");
  scales.in13 = input_scale.value_or(std::numeric_limits<float>::quiet_NaN());
  scales.in2 = intermediate_scale.value_or(std::numeric_limits<float>::quiet_NaN());
  scales.weight_only = !input_scale;

  auto memory = std::make_shared<ExpertsMemory>(host_memory);
  std::optional<layout::Nvfp4Experts> experts;
  {
    const Unlocked released;
    require(layout::convertible(h, to));
    if (to != i) require(layout::paddable(i));
    experts.emplace(memory->weights(), layout::ExpertsShape{n, h, to}, 0);
    std::vector<layout::LogicalNvfp4<const std::byte>> from;
    for (std::int64_t e = 0; e < n; ++e)
      from.push_back({matrix(gate, e), matrix(gate_sf, e), matrix(up, e), matrix(up_sf, e), matrix(down, e),
                      matrix(down_sf, e)});
    layout::convert_all(
        from, h, i, to,
        {experts->w13.bytes(), experts->w13_sf.bytes(), experts->w2.bytes(), experts->w2_sf.bytes()},
        Workers(workers));
    decode::write_scalars(scales, input, *experts);
    experts->first_expert = first;
  }
  return as_dict(std::move(memory), std::move(*experts));
}

nb::dict convert_bf16(nb::handle gate_object, nb::handle up_object, nb::handle down_object,
                      nb::handle first_expert, nb::handle width, nb::handle threads) {
  const Argument gate(gate_object, {"gate", Dtype::bf16, {any_size, any_size, any_size}});
  const std::int64_t n = gate.size(0);
  const std::int64_t i = gate.size(1);
  const std::int64_t h = gate.size(2);
  const Argument up(up_object, {"up", Dtype::bf16, {n, i, h}});
  const Argument down(down_object, {"down", Dtype::bf16, {n, h, i}});
  const std::int64_t first = whole("first_expert", first_expert, 0, most_count);
  const std::int64_t to = converted_to(i, width);
  const int workers = threads_of(threads);
  auto memory = std::make_shared<ExpertsMemory>(host_memory);
  std::optional<layout::Bf16Experts> experts;
  {
    const Unlocked released;
    require(layout::convertible_bf16(h, to));
    experts.emplace(memory->weights(), layout::ExpertsShape{n, h, to}, first);
    std::vector<layout::LogicalBf16<const std::byte>> from;
    for (std::int64_t e = 0; e < n; ++e) from.push_back({matrix(gate, e), matrix(up, e), matrix(down, e)});
    layout::convert_all(from, h, i, to, {experts->w13.bytes(), experts->w2.bytes()}, Workers(workers));
  }
  return as_dict(std::move(memory), std::move(*experts));
}

}  // namespace

op::Input input_named(const std::string& act) {
  if (act == "nvfp4") return op::Input::nvfp4;
  if (act == "bf16") return op::Input::bf16;
  throw Error(ErrorKind::usage, fmt::format("act is '{}', wanted nvfp4 or bf16", act));
}

HeldNvfp4 held_nvfp4(nb::handle experts) {
  HeldNvfp4 out;
  const auto weights = [&](const char* name, Dtype dtype) {
    return held(experts, name, dtype, true, out.held);
  };
  const auto scalars = [&](const char* name) { return held(experts, name, Dtype::f32, false, out.held); };
  out.view = {.w13 = weights("w13", Dtype::u8),
              .w13_sf = weights("w13_sf", Dtype::f8_e4m3),
              .w2 = weights("w2", Dtype::u8),
              .w2_sf = weights("w2_sf", Dtype::f8_e4m3),
              .g1_alphas = scalars("g1_alphas"),
              .g1_scale_c = scalars("g1_scale_c"),
              .g2_alphas = scalars("g2_alphas"),
              .a1_gscale = scalars("a1_gscale"),
              .a2_gscale = scalars("a2_gscale"),
              .first_expert = first_expert_of(experts)};
  return out;
}

int device_of(const HeldNvfp4& experts) {
  const int first = experts.held.front().device();
  for (const Argument& tensor : std::span(experts.held).first(4))
    if (tensor.device() != first)
      throw Error(
          ErrorKind::usage,
          "the experts' w13, w13_sf, w2 and w2_sf lie in several memories, wanted all of them in one");
  if (first != host_memory && first != cuda::current_device())
    throw Error(ErrorKind::usage, fmt::format("the experts lie on CUDA device {}, the current one is {}",
                                              first, cuda::current_device()));
  return first;
}

HeldBf16 held_bf16(nb::handle experts) {
  HeldBf16 out;
  out.view = {.w13 = held(experts, "w13", Dtype::bf16, true, out.held),
              .w2 = held(experts, "w2", Dtype::bf16, true, out.held),
              .first_expert = first_expert_of(experts)};
  return out;
}

nb::dict as_dict(std::shared_ptr<ExpertsMemory> memory, layout::Nvfp4Experts experts) {
  using E = layout::Nvfp4Experts;
  return dict_of<E>(std::move(memory), std::move(experts),
                    {{"w13", &E::w13},
                     {"w13_sf", &E::w13_sf},
                     {"w2", &E::w2},
                     {"w2_sf", &E::w2_sf},
                     {"g1_alphas", &E::g1_alphas},
                     {"g1_scale_c", &E::g1_scale_c},
                     {"g2_alphas", &E::g2_alphas},
                     {"a1_gscale", &E::a1_gscale},
                     {"a2_gscale", &E::a2_gscale}});
}

nb::dict as_dict(std::shared_ptr<ExpertsMemory> memory, layout::Bf16Experts experts) {
  using E = layout::Bf16Experts;
  return dict_of<E>(std::move(memory), std::move(experts), {{"w13", &E::w13}, {"w2", &E::w2}});
}

// Arrays may be None for nanobind, so that what is said of them is kerf's, with the argument's name.
void bind_experts(nb::module_& m) {
  m.def("quantize", &quantize, nb::arg("x").none(), nb::arg("global_scale") = nb::none(),
        nb::arg("recipe") = "vllm", nb::arg("codes") = nb::none(), nb::arg("scales") = nb::none(),
        "See kerf.quantize_nvfp4.");
  m.def("dequantize", &dequantize, nb::arg("codes").none(), nb::arg("scales").none(), nb::arg("global_scale"),
        nb::arg("out") = nb::none(), "See kerf.dequantize_nvfp4.");
  m.def("convert_nvfp4", &convert_nvfp4, nb::arg("gate").none(), nb::arg("up").none(), nb::arg("down").none(),
        nb::arg("gate_sf").none(), nb::arg("up_sf").none(), nb::arg("down_sf").none(),
        nb::arg("gate_scale").none(), nb::arg("up_scale").none(), nb::arg("down_scale").none(),
        nb::arg("input_scale") = nb::none(), nb::arg("intermediate_scale") = nb::none(),
        nb::arg("first_expert") = 0, nb::arg("act") = "nvfp4", nb::arg("width") = nb::none(),
        nb::arg("threads") = 0, "See kerf.convert.");
  m.def("convert_bf16", &convert_bf16, nb::arg("gate").none(), nb::arg("up").none(), nb::arg("down").none(),
        nb::arg("first_expert") = 0, nb::arg("width") = nb::none(), nb::arg("threads") = 0,
        "See kerf.convert_bf16.");
}

}  // namespace kerf::python
