// Models to export, and what tests of exports ask of the program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kerf/tools/synth.h"
#include "tests/cli/program.h"

namespace kerf::test {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

inline void write_model(const fs::path& path, tools::SynthModel model, std::int64_t intermediate,
                        std::uint64_t seed = 1) {
  tools::SynthOptions o = tools::synth_defaults(model);
  o.experts = 8;
  o.hidden = 256;
  o.intermediate = intermediate;
  o.layers = 3;
  o.top_k = 2;
  o.bf16_layers = {1};
  o.seed = seed;
  tools::synth(path, o, Workers(1));
}

// Fused names; NVFP4, BF16, NVFP4 layers whose halves are nodes of the sum over K.
inline const std::string& model() {
  static const TempDir dir;
  static const std::string path = [] {
    write_model(dir.path(), tools::SynthModel::muse_spark, 1024);
    return dir.path().string();
  }();
  return path;
}

// Names an expert, of a width that has to be padded.
inline const std::string& narrow() {
  static const TempDir dir;
  static const std::string path = [] {
    write_model(dir.path(), tools::SynthModel::tiny, 160);
    return dir.path().string();
  }();
  return path;
}

inline Ran exported(const std::string& from, const fs::path& to, Arguments more) {
  Arguments a = {"export", from, to.string()};
  a.insert(a.end(), more.begin(), more.end());
  return run_program(a);
}

inline Ran decoded(const std::string& from, Arguments more) {
  Arguments a = {"decode", from, "--seconds", "0", "--json"};
  a.insert(a.end(), more.begin(), more.end());
  return run_program(a);
}

// Digests by mode, batch and tail.
inline std::map<std::string, std::string> outputs(const std::string& from, const Arguments& more) {
  const Ran ran = decoded(from, more);
  EXPECT_EQ(ran.code, 0) << ran.err;
  std::map<std::string, std::string> out;
  if (ran.code != 0) return out;
  const auto json = json_of(ran);
  for (const auto& step : json["steps"])
    out[step["mode"].get<std::string>() + "/" + step["batch"].dump() + "/" +
        step["tail"].get<std::string>()] = step["output_sha256"];
  return out;
}

}  // namespace kerf::test
