// What is fed with anything at all: each target takes bytes that somebody else made, hands them to the
// readers as the files that they would be, and lets nothing out but what a caller may expect. They return
// whether the input was read to its end. libFuzzer's entry points call these, and so do the tests, with the
// committed seeds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kerf::fuzz {

using Bytes = std::span<const std::uint8_t>;

// The parts of an input are separated by this line. No file needs it, so any files can be written as one.
inline constexpr std::string_view separator = "\n%%kerf%%\n";

// safetensors. First part: anything that begins with '{' is a header, to which the length and 128 KiB of data
// are added; other bytes are the whole file. Second part, where there is one: the index of a directory whose
// first shard that file is, beside sound ones.
bool header(Bytes input);

// config.json, and after a separator hf_quant_config.json, of a directory with sound weights.
bool config(Bytes input);

// A list of preferred tactics or a tuner's cache.
bool tables(Bytes input);

// One rank's file of an export. Anything that begins with '{' is what the file says of itself, and also a
// header, to which the length, the data of its tensors (64 KiB at most) and the digests that fit are added;
// other bytes are the whole file.
bool exports(Bytes input);

struct Target {
  std::string_view name;
  bool (*run)(Bytes input);
};
inline constexpr Target targets[] = {
    {"header", header}, {"config", config}, {"tables", tables}, {"exports", exports}};

}  // namespace kerf::fuzz
