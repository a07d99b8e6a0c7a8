#include "tests/support/onehot.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <span>
#include <stdexcept>

#include "kerf/checkpoint/safetensors.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/e2m1.h"
#include "kerf/numeric/e4m3.h"

namespace kerf::test {

using checkpoint::ExpertKind;
using tensor::Dtype;

namespace {

constexpr std::int64_t kE = Onehot::experts;
constexpr std::int64_t kH = Onehot::hidden;
constexpr std::int64_t kI = Onehot::intermediate;
constexpr std::uint8_t kDecoy = 0x7E;  // 448
constexpr std::array<std::string_view, 3> kProjections = {"gate_proj", "up_proj", "down_proj"};
constexpr std::array<std::uint8_t, 8> kUpCodes = {7, 1, 2, 3, 4, 5, 6, 7};
constexpr std::array<float, 8> kOutput = {6.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};

// One projection of one expert: NVFP4 weights [rows, columns / 2] with their block scales [rows, columns /
// 16].
struct Matrix {
  Matrix(std::int64_t row_count, std::int64_t column_count)
      : rows(row_count),
        columns(column_count),
        codes(static_cast<std::size_t>(rows * columns / 2)),
        scales(static_cast<std::size_t>(rows * columns / 16), kDecoy) {}

  void put(std::int64_t row, std::int64_t column, unsigned code, std::uint8_t scale) {
    const std::int64_t at = row * columns + column;
    std::uint8_t& byte = codes[static_cast<std::size_t>(at / 2)];
    byte = static_cast<std::uint8_t>(byte | (at % 2 == 0 ? code : code << 4U));
    scales[static_cast<std::size_t>(at / 16)] = scale;
  }

  // The same values as BF16, exactly.
  [[nodiscard]] std::vector<std::uint8_t> bf16() const {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(rows * columns * 2));
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const unsigned byte = codes[static_cast<std::size_t>(i / 2)];
      const auto code = static_cast<std::uint8_t>(i % 2 == 0 ? byte & 15U : byte >> 4U);
      const float value =
          numeric::e2m1_to_f32(code) * numeric::e4m3_to_f32(scales[static_cast<std::size_t>(i / 16)]);
      const std::uint16_t bits = numeric::f32_to_bf16(value);
      std::memcpy(out.data() + 2 * i, &bits, sizeof(bits));
    }
    return out;
  }

  std::int64_t rows;
  std::int64_t columns;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
};

// gate, up, down of expert e.
std::array<Matrix, 3> expert_matrices(std::int64_t e) {
  std::array<Matrix, 3> out = {Matrix(kI, kH), Matrix(kI, kH), Matrix(kH, kI)};
  for (std::int64_t i = 0; i < kI; ++i) {
    const std::int64_t column = (i + 3 * e) % (kH / 16) * 16;
    out[0].put(i, column, 7, 0x38);
    out[1].put(i, column, kUpCodes[static_cast<std::size_t>((i + e) % 8)], 0x38);
  }
  for (std::int64_t h = 0; h < kH; ++h) out[2].put(h, (5 * h + e) % kI, 2, 0x30);
  return out;
}

float input_scale(std::size_t projection) { return projection == 2 ? 216.0F : 1.0F; }

void append(std::vector<std::uint8_t>& to, const std::vector<std::uint8_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

using Tensors = std::vector<std::pair<std::string, OwnedTensor>>;

void per_expert_tensors(const std::string& layer, std::int64_t e, ExpertKind kind, Tensors& out) {
  const std::array<Matrix, 3> matrices = expert_matrices(e);
  for (std::size_t p = 0; p < 3; ++p) {
    const Matrix& m = matrices[p];
    const std::string name =
        layer + "mlp.experts." + std::to_string(e) + "." + std::string(kProjections[p]) + ".";
    if (kind == ExpertKind::bf16) {
      out.emplace_back(name + "weight", OwnedTensor{Dtype::bf16, {m.rows, m.columns}, m.bf16()});
      continue;
    }
    out.emplace_back(name + "weight", OwnedTensor{Dtype::u8, {m.rows, m.columns / 2}, m.codes});
    out.emplace_back(name + "weight_scale", OwnedTensor{Dtype::f8_e4m3, {m.rows, m.columns / 16}, m.scales});
    out.emplace_back(name + "weight_scale_2", OwnedTensor::f32({}, {1.0F}));
    out.emplace_back(name + "input_scale", OwnedTensor::f32({}, {input_scale(p)}));
  }
}

void fused_tensors(const std::string& layer, ExpertKind kind, Tensors& out) {
  for (const bool down : {false, true}) {
    OwnedTensor weight{Dtype::u8, {}, {}};
    OwnedTensor scale{Dtype::f8_e4m3, {}, {}};
    for (std::int64_t e = 0; e < kE; ++e) {
      const std::array<Matrix, 3> matrices = expert_matrices(e);
      for (std::size_t p = down ? 2 : 0; p < (down ? 3U : 2U); ++p) {
        append(weight.bytes, kind == ExpertKind::bf16 ? matrices[p].bf16() : matrices[p].codes);
        append(scale.bytes, matrices[p].scales);
      }
    }
    const std::int64_t rows = down ? kH : 2 * kI;
    const std::int64_t columns = down ? kI : kH;
    const std::string name = layer + "mlp.experts." + (down ? "down_proj" : "gate_up_proj");
    if (kind == ExpertKind::bf16) {
      weight.dtype = Dtype::bf16;
      weight.shape = {kE, rows, columns};
      out.emplace_back(name, std::move(weight));
      continue;
    }
    weight.shape = {kE, rows, columns / 2};
    scale.shape = {kE, rows, columns / 16};
    const tensor::Shape scalars = down ? tensor::Shape{kE} : tensor::Shape{kE, 2};
    const auto count = static_cast<std::size_t>(scalars.elements());
    out.emplace_back(name, std::move(weight));
    out.emplace_back(name + "_weight_scale", std::move(scale));
    out.emplace_back(name + "_weight_scale_2", OwnedTensor::f32(scalars, std::vector<float>(count, 1.0F)));
    out.emplace_back(name + "_input_scale",
                     OwnedTensor::f32(scalars, std::vector<float>(count, input_scale(down ? 2 : 0))));
  }
}

std::string shard_file(int shard, int shards) {
  if (shards == 1) return "model.safetensors";
  const auto five = [](int n) {
    const std::string digits = std::to_string(n);
    return std::string(5 - std::min<std::size_t>(5, digits.size()), '0') + digits;
  };
  return "model-" + five(shard + 1) + "-of-" + five(shards) + ".safetensors";
}

std::string quoted(const std::string& text) { return '"' + text + '"'; }

std::string object(const std::map<std::string, std::string>& members) {
  std::string text = "{";
  for (const auto& [key, value] : members) text += (text.size() > 1 ? ", " : "") + quoted(key) + ": " + value;
  return text + "}";
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace

OwnedTensor OwnedTensor::f32(const tensor::Shape& shape, const std::vector<float>& values) {
  OwnedTensor out{Dtype::f32, shape, std::vector<std::uint8_t>(values.size() * sizeof(float))};
  std::memcpy(out.bytes.data(), values.data(), out.bytes.size());
  return out;
}

std::vector<float> OwnedTensor::as_f32() const {
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(float));
  return out;
}

Onehot::Onehot(const OnehotOptions& options) : with_index(options.shards > 1), prefix_(options.prefix) {
  for (int s = 0; s < options.shards; ++s) shards.push_back({shard_file(s, options.shards), {}});
  for (std::size_t l = 0; l < options.layers.size(); ++l) {
    const std::string layer = layer_name("", static_cast<std::int64_t>(l));
    if (options.fused) {
      fused_tensors(layer, options.layers[l], shards[l % shards.size()].tensors);
    } else {
      for (std::int64_t e = 0; e < kE; ++e)
        per_expert_tensors(layer, e, options.layers[l],
                           shards[static_cast<std::size_t>(e * options.shards / kE)].tensors);
    }
    // Not a routed expert's.
    shards[0].tensors.emplace_back(
        layer + "mlp.gate.weight",
        OwnedTensor{Dtype::bf16, {kE, kH}, std::vector<std::uint8_t>(static_cast<std::size_t>(2 * kE * kH))});
  }
  for (const Shard& shard : shards)
    for (const auto& entry : shard.tensors) index[entry.first] = shard.file;
  config = {{"architectures", R"(["OneHotMoE"])"},
            {"hidden_size", std::to_string(hidden)},
            {"moe_intermediate_size", std::to_string(intermediate)},
            {"num_experts", std::to_string(experts)},
            {"num_experts_per_tok", std::to_string(top_k)},
            {"num_hidden_layers", std::to_string(options.layers.size())},
            {"hidden_act", R"("silu")"},
            {"norm_topk_prob", "true"}};
  quantization = {{"quant_algo", R"("NVFP4")"},
                  {"kv_cache_quant_algo", "null"},
                  {"group_size", "16"},
                  {"exclude_modules", R"(["lm_head", "model.layers.0.mlp.gate"])"}};
}

std::string Onehot::name(std::int64_t expert, std::string_view suffix, std::int64_t layer) const {
  return layer_name("mlp.experts." + std::to_string(expert) + "." + std::string(suffix), layer);
}

std::string Onehot::layer_name(std::string_view suffix, std::int64_t layer) const {
  return prefix_ + "layers." + std::to_string(layer) + "." + std::string(suffix);
}

OwnedTensor& Onehot::at(std::string_view full_name) {
  for (Shard& shard : shards)
    for (auto& [tensor_name, tensor] : shard.tensors)
      if (tensor_name == full_name) return tensor;
  throw std::out_of_range("no tensor " + std::string(full_name));
}

void Onehot::set_f32(std::string_view full_name, float value) {
  OwnedTensor& tensor = at(full_name);
  tensor = OwnedTensor::f32(tensor.shape,
                            std::vector<float>(static_cast<std::size_t>(tensor.shape.elements()), value));
}

void Onehot::remove(std::string_view full_name) {
  remove_from_file(full_name);
  index.erase(std::string(full_name));
}

void Onehot::remove_from_file(std::string_view full_name) {
  at(full_name);
  for (Shard& shard : shards)
    std::erase_if(shard.tensors, [&](const auto& entry) { return entry.first == full_name; });
}

void Onehot::add(std::size_t shard, const std::string& full_name, OwnedTensor tensor) {
  shards.at(shard).tensors.emplace_back(full_name, std::move(tensor));
  index.try_emplace(full_name, shards[shard].file);
}

void Onehot::differ_gate_up() {
  constexpr std::array<std::array<float, 3>, 4> scales = {
      {{1, 1, 1}, {1, 0.25F, 1}, {2, 0.5F, 0.5F}, {0.25F, 1, 1}}};
  for (std::int64_t e = 0; e < experts; ++e)
    for (std::size_t p = 0; p < 3; ++p)
      set_f32(name(e, std::string(kProjections[p]) + ".weight_scale_2"),
              scales[static_cast<std::size_t>(e)][p]);
}

void Onehot::write(const std::filesystem::path& directory) const {
  std::filesystem::create_directories(directory);
  std::size_t total = 0;
  for (const Shard& shard : shards) {
    std::vector<std::pair<std::string, tensor::TensorView>> views;
    for (const auto& [tensor_name, tensor] : shard.tensors) {
      views.emplace_back(tensor_name, tensor::TensorView{tensor.dtype, tensor.shape,
                                                         std::as_bytes(std::span(tensor.bytes))});
      total += tensor.bytes.size();
    }
    checkpoint::write_safetensors(directory / shard.file, views);
  }
  write_text(directory / "config.json", object(config));
  if (!quantization.empty())
    write_text(directory / "hf_quant_config.json",
               object({{"producer", R"({"name": "modelopt", "version": "0.0.0"})"},
                       {"quantization", object(quantization)}}));
  if (!with_index) return;
  std::map<std::string, std::string> files;
  for (const auto& [tensor_name, file] : index) files[tensor_name] = quoted(file);
  write_text(
      directory / "model.safetensors.index.json",
      object({{"metadata", object({{"total_size", std::to_string(total)}})}, {"weight_map", object(files)}}));
}

std::vector<float> onehot_input() {
  std::vector<float> x(static_cast<std::size_t>(kH));
  for (std::size_t h = 0; h < x.size(); h += 16) x[h] = 6.0F;
  return x;
}

std::vector<float> onehot_output(std::int64_t expert) {
  std::vector<float> y(static_cast<std::size_t>(kH));
  for (std::int64_t h = 0; h < kH; ++h)
    y[static_cast<std::size_t>(h)] = 108.0F * kOutput[static_cast<std::size_t>((5 * h + 2 * expert) % 8)];
  return y;
}

}  // namespace kerf::test
