// What tells one checkpoint from another without a look at its tensors' bytes: digests of what opening reads.
// Two sets of weights of one shape have the same.
#pragma once

#include <span>
#include <string>

#include "kerf/checkpoint/config.h"
#include "kerf/checkpoint/safetensors.h"

#pragma GCC visibility push(default)
namespace kerf::checkpoint {

// Digests that tell one checkpoint from another.
struct Fingerprint {
  std::string config;   // of the texts of config.json and hf_quant_config.json
  std::string tensors;  // of the files: name, size, and every tensor's name, dtype, shape and place

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

// `headers` one a file, as many as `files`. XXH3 (digest.h), as 32 hexadecimal digits; of no files the digest
// of nothing.
Fingerprint fingerprint_of(const ConfigTexts& texts, std::span<const std::string> files,
                           std::span<const Header> headers);

}  // namespace kerf::checkpoint
#pragma GCC visibility pop
