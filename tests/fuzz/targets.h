// What is fed with anything at all: each target takes bytes that somebody else made, hands them to the
// readers as the files that they would be, and lets nothing out but what a caller may expect. libFuzzer's
// entry points call these (NAME_fuzz.cc), and so do the tests, with the committed seeds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kerf::fuzz {

using Bytes = std::span<const std::uint8_t>;

// The parts of an input are separated by this line. No file needs it, so any files can be written as one.
inline constexpr std::string_view separator = "\n%%kerf%%\n";

// safetensors. First part: anything that begins with '{' is a header, to which the length and 64 KiB of data
// are added; other bytes are the whole file. Second part, where there is one: the index of a directory whose
// first shard that file is, beside sound ones.
void header(Bytes input);

// config.json, and after a separator hf_quant_config.json, of a directory with sound weights.
void config(Bytes input);

// A list of preferred tactics or a tuner's cache.
void tables(Bytes input);

// One rank's file of an export. Anything that begins with '{' is what the file says of itself, and also a
// header, to which the length, 64 KiB of data and the digests that fit are added; other bytes are the whole
// file.
void exports(Bytes input);

struct Target {
  std::string_view name;
  void (*run)(Bytes input);
};
inline constexpr Target targets[] = {
    {"header", header}, {"config", config}, {"tables", tables}, {"exports", exports}};

}  // namespace kerf::fuzz
