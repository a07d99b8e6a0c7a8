// What configuration files say about quantisation, in the three forms that are in use: ModelOpt's own file
// (hf_quant_config.json), ModelOpt's part of config.json, and compressed-tensors' config_groups.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/checkpoint/config.h"
#include "kerf/checkpoint/internal/keys.h"

namespace kerf::checkpoint::internal {

// "NVFP4" and "W4A16_NVFP4" for all that is not excluded, MIXED_PRECISION where `modules` says which module
// has what; empty where nothing is quantised.
struct Quantisation {
  std::string algo;
  std::int64_t group_size = 16;
  std::string excluded_by;  // the key that the next are of
  std::vector<std::string> excluded;
  std::vector<QuantisedModules> modules;
  std::string said_in;  // file and key, for messages
  std::string tool;     // whose form it is: modelopt_tool, compressed_tensors_tool
};

inline constexpr std::string_view modelopt_tool = "ModelOpt";
inline constexpr std::string_view compressed_tensors_tool = "compressed-tensors";

inline constexpr std::string_view mixed_precision = "MIXED_PRECISION";

// Error{unsupported} with file, key and value for a key that is none of these: null is no value, and false or
// nothing in it is none of a whole. In a description of values (`described`) it may well be one.
void refuse_other_keys(const Keys& keys, std::span<const std::string_view> known, bool described = false);
// "NVFP4" and "W4A16_NVFP4".
bool is_nvfp4(std::string_view algo);
// hf_quant_config.json's object `quantization`.
Quantisation read_modelopt(const Keys& keys);
// config.json's quantization_config, of either tool. Nothing quantised where there is none.
Quantisation read_quantisation_config(const Keys& config);
// The same of compressed-tensors.
Quantisation read_compressed_tensors(const Keys& keys);

}  // namespace kerf::checkpoint::internal
