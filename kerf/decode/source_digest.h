// By what an export knows its source again: a digest of a model directory that costs little, so that it can
// be made at every start.
#pragma once

#include <filesystem>
#include <string>

namespace kerf::decode {

// SHA-256 in hexadecimal over: the texts of config.json, hf_quant_config.json and
// model.safetensors.index.json (those that are there), and of every *.safetensors file, in the order of
// names, its name, its size, its header and 16 blocks of 4 KiB that are spread over its tensors' bytes, the
// first and the last among them. So it costs 64 KiB and a header a file. It tells another model, another
// quantisation of it, another set of shards; it does not tell a change of a few weights between those blocks.
// Error{checkpoint} where a file cannot be read.
std::string source_digest(const std::filesystem::path& directory);

}  // namespace kerf::decode
