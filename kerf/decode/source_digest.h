// By what an export knows its source again: a digest of a model directory that costs little, so that it can
// be made at every start, and the digests of all of its bytes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kerf/base/threads.h"
#include "kerf/checkpoint/export_facts.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// SHA-256 in hexadecimal over these files, in the order of names, each with its name and size: config.json,
// hf_quant_config.json and model.safetensors.index.json (those that are there) whole, and of every
// *.safetensors file its header and 17 blocks of 4 KiB of its tensors' bytes: 16 spread evenly, from the
// first bytes on, and the last. So it costs 68 KiB and a header a file. It tells another model, another
// quantisation of it, another set of shards; it does not tell a change of a few weights between those blocks.
// Error{checkpoint} where the directory or a file cannot be read.
std::string source_digest(const std::filesystem::path& directory);

// Every *.safetensors file, in the order of names, with its size, its time and the digest of all of its
// bytes: everything is read once. Error{checkpoint} where the directory or a file cannot be read, or a file
// changes meanwhile.
std::vector<checkpoint::SourceFile> source_files(const std::filesystem::path& directory,
                                                 const Workers& workers);

// How closely files are compared with what was recorded of them.
enum class Look : std::uint8_t {
  times,     // a file whose size and time are the recorded ones is taken to be the same; another is read
  contents,  // all are read
};
// Nothing where the directory's *.safetensors files have the recorded names, sizes and contents; otherwise a
// reason of kind checkpoint, with the file's name, got and wanted. Times alone are no difference. Errors of
// source_files().
Verdict differs(const std::filesystem::path& directory, const std::vector<checkpoint::SourceFile>& recorded,
                Look look, const Workers& workers);

}  // namespace kerf::decode
#pragma GCC visibility pop
