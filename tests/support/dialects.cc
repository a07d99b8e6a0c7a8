#include "tests/support/dialects.h"

#include <cstring>
#include <stdexcept>

namespace kerf::test {

namespace {

using tensor::Dtype;

constexpr std::int64_t kE = Onehot::experts;
constexpr std::int64_t kH = Onehot::hidden;
constexpr std::int64_t kI = Onehot::intermediate;
const std::vector<std::string> kPlain = {"gate_proj", "up_proj", "down_proj"};

std::string root_of(const std::string& dialect) {
  if (dialect.ends_with("w1-w3-w2")) return "block_sparse_moe.experts.";
  return dialect == "llama4" ? "feed_forward.experts." : "mlp.experts.";
}

void rename_per_expert(const Onehot& plain, const std::string& dialect, Onehot& to) {
  const bool numbered = dialect.ends_with("w1-w3-w2");
  const bool packed = dialect.starts_with("compressed-tensors");
  const std::vector<std::string> projections = numbered ? std::vector<std::string>{"w1", "w3", "w2"} : kPlain;
  for (std::int64_t e = 0; e < kE; ++e) {
    for (std::size_t p = 0; p < 3; ++p) {
      const auto name = [&](const std::string& part) {
        return to.layer_name(root_of(dialect) + std::to_string(e) + "." + projections[p] + "." + part);
      };
      const auto from = [&](const std::string& part) {
        return const_cast<Onehot&>(plain).at(plain.name(e, kPlain[p] + "." + part));
      };
      const bool bf16 = from("weight").dtype == Dtype::bf16;
      OwnedTensor weight = from("weight");
      if (dialect == "f4") weight = {Dtype::f4, {weight.shape[0], 2 * weight.shape[1]}, weight.bytes};
      to.add(0, name(packed && !bf16 ? "weight_packed" : "weight"), weight);
      if (bf16) continue;
      to.add(0, name("weight_scale"), from("weight_scale"));
      const float scale = from("weight_scale_2").as_f32()[0];
      const float input = from("input_scale").as_f32()[0];
      if (packed) {
        to.add(0, name("weight_global_scale"), OwnedTensor::f32({1}, {1 / scale}));
        to.add(0, name("input_global_scale"), OwnedTensor::f32({1}, {1 / input}));
      } else {
        to.add(0, name("weight_scale_2"), OwnedTensor::f32({}, {scale}));
        to.add(0, name("input_scale"), OwnedTensor::f32({}, {input}));
      }
    }
  }
}

// What lies at [e, out, in] of the stack of gate and up (or of down): an element of `size` bytes.
struct Stack {
  Onehot& plain;
  bool down;
  std::string part;
  std::size_t size;
  bool alternating;

  void copy(std::int64_t e, std::int64_t out, std::int64_t in, std::uint8_t* to) const {
    std::string projection = "down_proj";
    std::int64_t row = out;
    if (!down) {
      const bool up = alternating ? out % 2 == 1 : out >= kI;
      projection = up ? "up_proj" : "gate_proj";
      row = alternating ? out / 2 : out % kI;
    }
    const OwnedTensor& t = plain.at(plain.name(e, projection + "." + part));
    std::memcpy(to, t.bytes.data() + static_cast<std::size_t>(row * t.shape[1] + in) * size, size);
  }
};

void stack(Onehot& plain, const std::string& dialect, Onehot& to) {
  const bool turned = dialect == "llama4" || dialect == "gpt-oss";
  const std::string dot = dialect == "fused-dotted" || dialect == "fused-bare" ? "." : "_";
  for (const bool down : {false, true}) {
    const std::string base = to.layer_name(root_of(dialect) + (down ? "down_proj" : "gate_up_proj"));
    const OwnedTensor& first = plain.at(plain.name(0, down ? "down_proj.weight" : "gate_proj.weight"));
    const bool bf16 = first.dtype == Dtype::bf16;
    const std::int64_t out = down ? kH : 2 * kI;
    for (const std::string part : {"weight", "weight_scale"}) {
      if (bf16 && part == "weight_scale") continue;
      const OwnedTensor& one = plain.at(plain.name(0, (down ? "down_proj." : "gate_proj.") + part));
      const std::int64_t in = one.shape[1];
      const std::size_t size = bf16 ? 2 : 1;
      const Stack source{plain, down, part, size, dialect == "gpt-oss"};
      OwnedTensor made{one.dtype, turned ? tensor::Shape{kE, in, out} : tensor::Shape{kE, out, in}, {}};
      made.bytes.resize(static_cast<std::size_t>(kE * in * out) * size);
      for (std::int64_t e = 0; e < kE; ++e)
        for (std::int64_t o = 0; o < out; ++o)
          for (std::int64_t i = 0; i < in; ++i) {
            const std::int64_t at = turned ? (e * in + i) * out + o : (e * out + o) * in + i;
            source.copy(e, o, i, made.bytes.data() + static_cast<std::size_t>(at) * size);
          }
      const std::string weight = dialect == "fused-dotted" ? base + ".weight" : base;
      to.add(0, part == "weight" ? weight : base + dot + part, std::move(made));
    }
    if (bf16) continue;
    for (const std::string part : {"weight_scale_2", "input_scale"}) {
      std::vector<float> values;
      for (std::int64_t e = 0; e < kE; ++e)
        for (const char* projection : {"gate_proj.", "up_proj."}) {
          values.push_back(plain.at(plain.name(e, (down ? "down_proj." : projection) + part)).as_f32()[0]);
          if (down) break;
        }
      to.add(0, base + dot + part, OwnedTensor::f32(down ? tensor::Shape{kE} : tensor::Shape{kE, 2}, values));
    }
  }
}

}  // namespace

const std::vector<std::string>& restated_names() {
  static const std::vector<std::string> names = {
      "per-expert", "w1-w3-w2", "compressed-tensors", "compressed-tensors-w1-w3-w2",
      "f4",         "fused",    "fused-dotted",       "fused-bare",
      "llama4",     "gpt-oss"};
  return names;
}

Onehot restated(const Onehot& plain, const std::string& dialect) {
  Onehot to({.shards = 1});
  for (auto& shard : to.shards)
    std::erase_if(shard.tensors, [](const auto& t) { return t.first.find("experts") != std::string::npos; });
  to.config = plain.config;
  to.quantization = plain.quantization;
  Onehot from = plain;
  const bool per_expert = dialect == "per-expert" || dialect == "f4" ||
                          dialect.find("w1-w3-w2") != std::string::npos ||
                          dialect.starts_with("compressed-tensors");
  if (per_expert)
    rename_per_expert(from, dialect, to);
  else
    stack(from, dialect, to);
  if (dialect.starts_with("compressed-tensors")) {
    to.quantization.clear();
    to.config["quantization_config"] =
        R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"group_0":
            {"targets": ["Linear"],
             "weights": {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"},
             "input_activations": {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group",
                                   "dynamic": "local"}}},
            "ignore": ["lm_head", "re:.*gate$"]})";
  }
  if (dialect == "gpt-oss") to.config["model_type"] = R"("gpt_oss")";
  return to;
}

}  // namespace kerf::test
