#include "kerf/decode/run_layer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/base/text.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/router.h"
#include "kerf/decode/runtime.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"

namespace kerf::decode {

namespace {

using checkpoint::selection_bias_name;
constexpr std::array<std::string_view, 6> known = {
    "x", "a", "a_sf", "topk_ids", "topk_weights", "router_logits"};

template <typename T>
std::vector<T> copied(const tensor::TensorView& view) {
  std::vector<T> out(view.bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), view.bytes.data(), view.bytes.size());  // files do not align
  return out;
}

// Reads tensors of one file; the first of them says how many tokens there are.
class Reader {
 public:
  Reader(const checkpoint::SafetensorsFile& file, std::string name) : file_(file), name_(std::move(name)) {}

  [[nodiscard]] bool has(std::string_view tensor) const { return file_.find(tensor).has_value(); }
  [[nodiscard]] std::int64_t tokens() const { return tokens_.value_or(0); }

  // The tensor, of one of the dtypes and [T, width].
  tensor::TensorView read(std::string_view tensor, std::initializer_list<tensor::Dtype> dtypes,
                          std::int64_t width) {
    const auto view = file_.find(tensor);
    if (!view) fail(ErrorKind::usage, "{} lacks the tensor '{}'; it has: {}", name_, tensor, listed());
    std::vector<std::string_view> names;
    for (const tensor::Dtype d : dtypes) names.push_back(tensor::name(d));
    const bool dtype_fits = std::find(dtypes.begin(), dtypes.end(), view->dtype) != dtypes.end();
    const bool shape_fits =
        view->shape.rank() == 2 && view->shape[1] == width && (!tokens_ || view->shape[0] == *tokens_);
    if (!dtype_fits || !shape_fits)
      fail(ErrorKind::usage, "{}, tensor '{}': got {} {}, wanted {} [{}, {}]", name_, tensor,
           tensor::name(view->dtype), view->shape.text(), fmt::join(names, " or "),
           tokens_ ? std::to_string(*tokens_) : std::string("T"), width);
    tokens_ = view->shape[0];
    return *view;
  }

  // Exactly one of two tensors must be there.
  std::string choose(std::string_view a, std::string_view b) const {
    if (has(a) && has(b))
      fail(ErrorKind::usage, "{} has both '{}' and '{}', wanted one of them", name_, a, b);
    if (!has(a) && !has(b))
      fail(ErrorKind::usage, "{} has neither '{}' nor '{}'; it has: {}", name_, a, b, listed());
    return std::string(has(a) ? a : b);
  }

  [[nodiscard]] std::vector<std::string> others() const {
    std::vector<std::string> out;
    for (const auto& [tensor, entry] : file_.header().tensors)
      if (std::find(known.begin(), known.end(), tensor) == known.end()) out.emplace_back(shown(tensor));
    return out;
  }

 private:
  [[nodiscard]] std::string listed() const {
    std::vector<std::string> names;
    for (const auto& [tensor, entry] : file_.header().tensors) {
      if (names.size() == 8) {
        names.emplace_back("...");
        break;
      }
      names.push_back(shown(tensor));
    }
    return names.empty() ? std::string("no tensors") : fmt::format("{}", fmt::join(names, ", "));
  }

  const checkpoint::SafetensorsFile& file_;
  std::string name_;
  std::optional<std::int64_t> tokens_;
};

// The layer's selection bias [E], empty where it has none.
std::vector<float> read_bias(const checkpoint::MoeLayer& layer, const checkpoint::ModelConfig& config) {
  const auto view = layer.find(selection_bias_name);
  if (!view) {
    if (config.router.selection_bias)
      fail(ErrorKind::checkpoint, "layer {} lacks the tensor {}, which its router needs", layer.index(),
           layer.full_name(selection_bias_name));
    return {};
  }
  const tensor::Shape wanted{config.experts};
  if (view->shape == wanted && view->dtype == tensor::Dtype::f32) return copied<float>(*view);
  if (view->shape == wanted && view->dtype == tensor::Dtype::bf16) {
    std::vector<float> out;
    for (const std::uint16_t bits : copied<std::uint16_t>(*view)) out.push_back(numeric::bf16_to_f32(bits));
    return out;
  }
  fail(ErrorKind::checkpoint, "layer {}, {}: got {} {}, wanted F32 or BF16 {}", layer.index(),
       selection_bias_name, tensor::name(view->dtype), view->shape.text(), wanted.text());
}

// The rows as the layer takes them: its own quantisation, or bf16.
struct Rows {
  std::vector<std::uint16_t> x;
  std::vector<std::uint8_t> a, a_sf;
};

Rows rows_from_f32(const Layer& layer, const std::vector<float>& x) {
  Rows rows;
  if (layer.input == op::Input::nvfp4) {
    rows.a.resize(x.size() / 2);
    rows.a_sf.resize(x.size() / 16);
    numeric::quantise_rows(x, layer.bound().shape().hidden, layer.input_scale(), rows.a, rows.a_sf);
    return rows;
  }
  rows.x.resize(x.size());
  std::transform(x.begin(), x.end(), rows.x.begin(), numeric::f32_to_bf16);
  return rows;
}

// Every rank's part of equal size, ranks ascending.
template <typename T>
std::vector<std::vector<T>> parts_of_ranks(comm::Group& group, std::span<const T> mine) {
  const std::vector<T> all = comm::gathered(group, mine, "gathering unfinalised rows");
  std::vector<std::vector<T>> out;
  for (int r = 0; r < group.size(); ++r) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(r) * mine.size());
    out.emplace_back(first, first + static_cast<std::ptrdiff_t>(mine.size()));
  }
  return out;
}

std::vector<RankRows> gather(comm::Group& group, const op::Unfinalized& output) {
  auto rows = parts_of_ranks(group, output.rows);
  auto sums = parts_of_ranks(group, output.sums);
  auto map = parts_of_ranks(group, output.map);
  auto weights = parts_of_ranks(group, output.weights);
  std::vector<RankRows> out;
  for (std::size_t r = 0; r < rows.size(); ++r)
    out.push_back({std::move(rows[r]), std::move(sums[r]), std::move(map[r]), std::move(weights[r])});
  return out;
}

}  // namespace

LayerInputs read_layer_inputs(const checkpoint::SafetensorsFile& file, const std::string& file_name,
                              const InputShape& shape) {
  using tensor::Dtype;
  Reader reader(file, file_name);
  LayerInputs out;
  out.rows_name = reader.choose("x", "a");
  if (out.rows_name == "x") {
    const tensor::TensorView x = reader.read("x", {Dtype::bf16, Dtype::f32}, shape.hidden);
    if (x.dtype == Dtype::bf16)
      out.x = copied<std::uint16_t>(x);
    else
      out.x_f32 = copied<float>(x);
  } else {
    out.a = copied<std::uint8_t>(reader.read("a", {Dtype::u8}, shape.hidden / 2));
    out.a_sf = copied<std::uint8_t>(reader.read("a_sf", {Dtype::f8_e4m3}, shape.hidden / 16));
  }
  out.routes_name = reader.choose("topk_ids", "router_logits");
  if (out.routes_name == "topk_ids") {
    out.ids = copied<std::int32_t>(reader.read("topk_ids", {Dtype::i32}, shape.top_k));
    out.weights = copied<float>(reader.read("topk_weights", {Dtype::f32}, shape.top_k));
    if (const Verdict v = routing::check_ids(out.ids, shape.top_k, shape.experts))
      fail(v->kind, "{}, tensor 'topk_ids': {}", file_name, v->text);
  } else {
    out.logits = copied<float>(reader.read("router_logits", {Dtype::f32}, shape.experts));
  }
  out.tokens = reader.tokens();
  out.ignored = reader.others();
  return out;
}

LayerResult run_layer(const checkpoint::Checkpoint& from, const LayerOptions& options,
                      const LayerInputs& inputs, const Rank& rank) {
  const FpGuard guard;
  routing::Router router;
  std::vector<float> bias;
  const bool routes = inputs.routes_name == "router_logits";
  comm::agreed(rank.group, "checking the layer and its inputs", [&] {
    const checkpoint::MoeLayer& source = from.layer(options.layer);
    if (options.mode == Mode::tp && source.kind() == checkpoint::ExpertKind::bf16)
      fail(ErrorKind::unsupported, "layer {} has BF16 experts, which stay EP", options.layer);
    if (inputs.rows_name == "a" &&
        (source.kind() == checkpoint::ExpertKind::bf16 || options.input == op::Input::bf16))
      fail(ErrorKind::unsupported, "layer {} takes bf16 rows here: give 'x', not quantised 'a' and 'a_sf'",
           options.layer);
    // Rows that are scaled already have weights of 1 here: then the two ways are one.
    if (!routes && from.config().router.weights_on_input &&
        std::ranges::any_of(inputs.weights, [](float w) { return w != 1.0F; }))
      fail(ErrorKind::unsupported,
           "{} multiplies the experts' input by the routing weights, kerf their output: scale the rows and "
           "give "
           "topk_weights of 1",
           shown(from.config().architecture));
    if (routes) {
      checkpoint::ModelConfig config = from.config();
      bias = read_bias(source, config);
      config.router.selection_bias = !bias.empty();
      router = router_of(config);
      for (const std::string& taken : config.router.assumptions)
        rank.info(fmt::format("{}: {}", shown(config.architecture), taken));
    }
  });

  RuntimeOptions building;
  building.build = {{options.layer}, options.input, options.backend, {}, options.fit};
  building.expert_tp = options.mode == Mode::tp;
  building.max_tokens = std::max<std::int64_t>(inputs.tokens, 1);
  building.tail.kind = options.tail;
  const Runtime runtime = Runtime::build(from, building, rank);
  const Layer& layer = runtime.layers().front();

  Rows rows;
  StepInputs step{inputs.tokens,  inputs.x, inputs.a, inputs.a_sf, inputs.ids,
                  inputs.weights, nullptr,  {},       {}};
  comm::agreed(rank.group, "preparing the rows", [&] {
    if (!inputs.x_f32.empty()) {
      rows = rows_from_f32(layer, inputs.x_f32);
      step.x = rows.x;
      step.a = rows.a;
      step.a_sf = rows.a_sf;
    }
    if (routes) {
      step.router = &router;
      step.logits = inputs.logits;
      step.bias = bias;
    }
    require(refused(layer, runtime.plan(), step));
    std::ranges::fill(runtime.plan().rows.bytes(), std::byte{0});
    std::ranges::fill(runtime.plan().sums.bytes(), std::byte{0});
  });
  const op::Unfinalized output = run_experts(layer, options.mode, step, runtime.plan(), rank.workers);
  LayerResult result{output.tokens, output.hidden, output.top_k, {}, {}};
  if (options.unfinalized) result.ranks = gather(rank.group, output);
  const std::span<const std::uint16_t> y = run_tail(layer, options.mode, output, runtime.plan(), rank);
  result.y.assign(y.begin(), y.end());
  return result;
}

}  // namespace kerf::decode
