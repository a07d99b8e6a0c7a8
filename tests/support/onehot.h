// Writes the one-hot checkpoint: a small MoE model that NVFP4 computes without error: expert e turns the row
// x of onehot_input() into onehot_output(e), to the last bit. Live blocks carry small block scales, all
// others are zero codes under decoy scales of 448: a misplaced scale cannot hide. A test edits the members
// below and calls write().
//
//   E 4, H 256, I 128, K 2. Per expert e:
//     gate row i: column 16 * ((i + 3e) mod 16) holds 6.0 under scale 1.0
//     up row i:   the same column holds U[(i + e) mod 8] under scale 1.0
//     down row h: column (5h + e) mod 128 holds 1.0 under scale 0.5
//   weight_scale_2 is 1; input_scale is 1 for gate and up, 216 for down.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/tensor/view.h"

namespace kerf::test {

struct OwnedTensor {
  tensor::Dtype dtype = tensor::Dtype::u8;
  tensor::Shape shape;
  std::vector<std::uint8_t> bytes;

  // A scalar, or a vector of F32.
  static OwnedTensor f32(const tensor::Shape& shape, const std::vector<float>& values);
  [[nodiscard]] std::vector<float> as_f32() const;
};

struct OnehotOptions {
  std::string prefix = "model.";
  std::vector<checkpoint::ExpertKind> layers = {checkpoint::ExpertKind::nvfp4};  // one entry a layer
  bool fused = false;                                                            // the stacked naming
  int shards = 2;  // 1: one model.safetensors; otherwise experts are spread evenly (fused: layers in turn)
};

class Onehot {
 public:
  static constexpr std::int64_t experts = 4;
  static constexpr std::int64_t hidden = 256;
  static constexpr std::int64_t intermediate = 128;
  static constexpr std::int64_t top_k = 2;

  struct Shard {
    std::string file;
    std::vector<std::pair<std::string, OwnedTensor>> tensors;  // in file order
  };

  explicit Onehot(const OnehotOptions& options = {});

  // The full name of a per-expert tensor: name(2, "up_proj.weight_scale").
  [[nodiscard]] std::string name(std::int64_t expert, std::string_view suffix, std::int64_t layer = 0) const;
  // The full name of a layer's tensor: layer_name("mlp.gate.weight").
  [[nodiscard]] std::string layer_name(std::string_view suffix, std::int64_t layer = 0) const;

  // The first tensor of that full name; std::out_of_range where there is none.
  OwnedTensor& at(std::string_view full_name);
  // Overwrites a scalar (or every element of a vector) with `value`.
  void set_f32(std::string_view full_name, float value);
  // Removes a tensor from its file and from the index / from the file alone.
  void remove(std::string_view full_name);
  void remove_from_file(std::string_view full_name);
  // Puts a tensor into a shard and, where the index does not know the name yet, into the index.
  void add(std::size_t shard, const std::string& full_name, OwnedTensor tensor);
  // Sets weight_scale_2 of each expert {gate, up, down} to the values of the case in which gate and up
  // differ: e0 (1, 1, 1), e1 (1, 0.25, 1), e2 (2, 0.5, 0.5), e3 (0.25, 1, 1). Per-expert naming only. Rows
  // are then onehot_output(e) times 1, 0.25, 0.5, 0.25.
  void differ_gate_up();

  // Writes all files into `directory`, which is made where it does not exist. Files of an earlier write that
  // this one does not overwrite stay.
  void write(const std::filesystem::path& directory) const;

  std::vector<Shard> shards;
  std::map<std::string, std::string> index;         // weight_map: tensor -> file
  bool with_index = true;                           // false: no model.safetensors.index.json
  std::map<std::string, std::string> config;        // config.json: key -> JSON text of its value
  std::map<std::string, std::string> quantization;  // hf_quant_config.json, the same; empty: no such file

 private:
  std::string prefix_;
};

// The input row x [H]: each block of 16 holds 6.0 and then 15 zeros.
std::vector<float> onehot_input();

// The exact output row [H] of expert e: 108 * V[(5h + 2e) mod 8], V = 6, .5, 1, 1.5, 2, 3, 4, 6.
std::vector<float> onehot_output(std::int64_t expert);

}  // namespace kerf::test
