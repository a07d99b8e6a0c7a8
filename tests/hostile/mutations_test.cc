// One field of the one-hot checkpoint is corrupted at a time, every field in every way that we could think
// of: either the checkpoint is refused (exit code 3 or 4), or its rows are what they were. Nothing crashes,
// nothing hangs (the tests have a time limit), and nothing takes more memory than the files' size and 64 MiB.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "kerf/checkpoint/checkpoint.h"
#include "tests/decode/support.h"
#include "tests/hostile/memory.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

using nlohmann::json;

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
#if defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif
constexpr std::int64_t kRoom = std::int64_t{64} << 20;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What became of the corrupted checkpoints.
struct Tally {
  int same = 0;
  int refused = 0;
};

class Mutations : public testing::Test {
 protected:
  Mutations() {
    Onehot().write(dir_.path());
    for (const auto& item : std::filesystem::directory_iterator(dir_.path()))
      files_bytes_ += static_cast<std::int64_t>(item.file_size());
  }

  [[nodiscard]] const std::filesystem::path& path() const { return dir_.path(); }
  [[nodiscard]] std::string file(const std::string& name) const { return read_file(path() / name); }

  // Opens, loads and runs the checkpoint with `text` in the place of one of its files. Other rows than
  // `wanted`, or another error, is a failure of the test.
  void try_with(const std::string& name, const std::string& text, const std::string& what,
                const std::vector<float>& wanted = onehot_rows(tokens())) {
    const std::string sound = file(name);
    write(name, text);
    const std::int64_t before = heap.current();
    heap.reset_peak();
    std::int64_t owned = 0;  // in pages of its own
    const Verdict refused = attempt([&] {
      tensor::HostMemory memory;
      comm::run_local(1, {}, [&](comm::Group& group) {
        decode::Meter meter(memory);
        const auto from = checkpoint::Checkpoint::open(path());
        const auto result = decode::run_layer(from, {}, tokens(), {group, meter, Workers(1), {}});
        EXPECT_EQ(widened(result.y), wanted) << name << ": " << what;
      });
      owned = memory.peak();
    });
    const std::int64_t most = heap.peak() - before + owned;
    EXPECT_LE(most, files_bytes_ + std::ssize(text) + kRoom) << name << ": " << what;
    if (refused) {
      EXPECT_TRUE(refused->kind == ErrorKind::checkpoint || refused->kind == ErrorKind::unsupported)
          << static_cast<int>(refused->kind) << " " << refused->text << "\n  " << name << ": " << what;
      EXPECT_FALSE(refused->text.empty());
    }
    ++(refused ? tally.refused : tally.same);
    write(name, sound);
  }

  static const decode::LayerInputs& tokens() {
    static const decode::LayerInputs in = onehot_tokens({0, 1, 2, 3}, {0.5F, 0.5F, 0.25F, 1});
    return in;
  }

  Tally tally;

 private:
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path() / name, std::ios::binary | std::ios::trunc) << text;
  }

  TempDir dir_;
  std::int64_t files_bytes_ = 0;
};

// Values that no field wants, or that one may want somewhere else. NaN and infinity are no JSON: as text.
const std::vector<std::string> odd_values = {"null",
                                             "true",
                                             "false",
                                             "0",
                                             "-1",
                                             "1",
                                             "2",
                                             "3",
                                             "7",
                                             "64",
                                             "1.5",
                                             "-0.0",
                                             "1e300",
                                             "1e400",
                                             "1e-320",
                                             "4294967296",
                                             "9223372036854775807",
                                             "9223372036854775808",
                                             "18446744073709551615",
                                             "99999999999999999999999",
                                             "\"\"",
                                             "\"0\"",
                                             "\"NaN\"",
                                             "\"silu\"",
                                             "\"gelu\"",
                                             "\"NVFP4\"",
                                             "\"FP8\"",
                                             "[]",
                                             "[0]",
                                             "{}",
                                             "{\"a\":1}",
                                             "[[[[]]]]",
                                             "NaN",
                                             "Infinity",
                                             "-Infinity"};

// The text of an object in which one member has another value's text, or is gone, or is there twice.
std::string with_member(const json& object, const std::string& key, const std::string* value,
                        bool twice = false) {
  std::string out = "{";
  const auto add = [&](const std::string& name, const std::string& text) {
    out += (out.size() > 1 ? "," : "") + json(name).dump() + ":" + text;
  };
  for (const auto& item : object.items()) {
    if (item.key() != key) add(item.key(), item.value().dump());
    if (item.key() == key && value != nullptr) add(key, *value);
    if (item.key() == key && twice) add(key, item.value().dump());
  }
  if (!object.contains(key) && value != nullptr) add(key, *value);
  return out + "}";
}

// Keys that models have and this one does not: a value that is odd is refused, or changes nothing.
const std::vector<std::string> more_keys = {
    "moe_hidden_size", "intermediate_size",  "n_routed_experts",      "num_local_experts",
    "moe_topk",        "scoring_func",       "routed_scaling_factor", "n_group",
    "topk_group",      "topk_method",        "output_multiplier",     "post_norm_eps",
    "rms_norm_eps",    "num_shared_experts", "n_shared_experts",      "shared_expert_intermediate_size",
    "swiglu_limit",    "hidden_activation",  "text_config",           "quantization_config",
    "model_type"};

TEST_F(Mutations, EveryKeyOfTheConfiguration) {
  const json sound = json::parse(file("config.json"));
  std::set<std::string> keys(more_keys.begin(), more_keys.end());
  for (const auto& item : sound.items()) keys.insert(item.key());
  for (const std::string& key : keys) {
    // Another number of experts a token is another model, to which these routes do not fit.
    const bool top_k = key == "num_experts_per_tok" || key == "moe_topk";
    for (const std::string& value : odd_values)
      if (!top_k || (value != "1" && value != "3"))
        try_with("config.json", with_member(sound, key, &value), key + " = " + value);
    try_with("config.json", with_member(sound, key, nullptr), "no " + key);
    const std::string first = sound.contains(key) ? sound[key].dump() : "1";
    try_with("config.json", with_member(sound, key, &first, true), key + " twice");
  }
  EXPECT_GT(tally.refused, 300);
  EXPECT_GT(tally.same, 50);
}

TEST_F(Mutations, EveryKeyOfTheQuantisation) {
  const json top = json::parse(file("hf_quant_config.json"));
  for (const auto& item : top.at("quantization").items()) {
    for (const std::string& value : odd_values) {
      const std::string inner = with_member(top.at("quantization"), item.key(), &value);
      try_with("hf_quant_config.json", with_member(top, "quantization", &inner), item.key() + " = " + value);
    }
    const std::string without = with_member(top.at("quantization"), item.key(), nullptr);
    try_with("hf_quant_config.json", with_member(top, "quantization", &without), "no " + item.key());
  }
  for (const std::string& value : odd_values)
    try_with("hf_quant_config.json", with_member(top, "quantization", &value), "quantization = " + value);
  for (const std::string& value : odd_values) try_with("hf_quant_config.json", value, "all of it = " + value);
  for (const std::string& value : odd_values) try_with("config.json", value, "all of it = " + value);
  EXPECT_GT(tally.refused, 100);
}

// What an index may say instead of a shard's name. Only plain names of files of the directory are followed.
TEST_F(Mutations, EveryEntryOfTheIndex) {
  const json sound = json::parse(file(kIndex));
  std::filesystem::copy(path() / kFirst, path() / "other.safetensors");
  const std::vector<std::string> places = {"../" + path().filename().string() + "/" + kFirst,
                                           (path() / kFirst).string(),
                                           "./" + std::string(kFirst),
                                           "..",
                                           ".",
                                           "",
                                           "/dev/zero",
                                           "/etc/passwd",
                                           "a/../" + std::string(kFirst),
                                           "..\\x",
                                           std::string("a\0b", 3),
                                           "config.json",
                                           "hf_quant_config.json",
                                           kIndex,
                                           "absent.safetensors",
                                           "other.safetensors",
                                           kFirst,
                                           kSecond,
                                           std::string(5000, 'a'),
                                           "\xC0\xAF"};
  for (const auto& item : sound.at("weight_map").items()) {
    json changed = sound;
    for (const std::string& place : places) {
      changed["weight_map"][item.key()] = place;
      try_with(kIndex, changed.dump(-1, ' ', false, json::error_handler_t::ignore),
               item.key() + " in " + place);
    }
    for (const char* value : {"null", "1", "[]", "{}", "true"}) {
      const std::string text = value;
      const std::string map = with_member(sound.at("weight_map"), item.key(), &text);
      try_with(kIndex, with_member(sound, "weight_map", &map), item.key() + " = " + value);
    }
    changed = sound;
    changed["weight_map"].erase(item.key());
    try_with(kIndex, changed.dump(), "without " + item.key());
  }
  for (const std::string& value : odd_values) {
    try_with(kIndex, with_member(sound, "weight_map", &value), "weight_map = " + value);
    try_with(kIndex, with_member(sound, "metadata", &value), "metadata = " + value);
    try_with(kIndex, value, "all of it = " + value);
  }
  EXPECT_GT(tally.refused, 900);
}

// A shard with another header, its length made to fit.
std::string with_header(const std::string& shard, const std::string& header) {
  std::uint64_t old = 0;
  std::memcpy(&old, shard.data(), sizeof(old));
  const std::uint64_t length = header.size();
  std::string out(sizeof(length), '\0');
  std::memcpy(out.data(), &length, sizeof(length));
  return out + header + shard.substr(sizeof(old) + old);
}
std::string header_of(const std::string& shard) {
  std::uint64_t length = 0;
  std::memcpy(&length, shard.data(), sizeof(length));
  return shard.substr(sizeof(length), length);
}

TEST_F(Mutations, EveryFieldOfAHeader) {
  const std::string shard = file(kSecond);
  const json sound = json::parse(header_of(shard));
  const std::vector<std::string> dtypes = {"BOOL", "U8",  "I8", "I16",     "U16",     "I32",  "U32",
                                           "I64",  "U64", "F4", "F8_E4M3", "F8_E5M2", "BF16", "F16",
                                           "F32",  "F64", "",   "f32",     "F4_E2M1"};
  for (const auto& item : sound.items()) {
    if (item.key() == "__metadata__") continue;
    const auto with = [&](const char* field, const std::string& value) {
      const std::string entry = with_member(item.value(), field, &value);
      try_with(kSecond, with_header(shard, with_member(sound, item.key(), &entry)),
               item.key() + " " + field + " = " + value);
    };
    for (const std::string& dtype : dtypes) with("dtype", json(dtype).dump());
    json shape = item.value().at("shape");
    const auto begin = item.value().at("data_offsets").at(0).get<std::int64_t>();
    const auto end = item.value().at("data_offsets").at(1).get<std::int64_t>();
    std::vector<json> shapes = {json::array(),           {0}, {1}, {end - begin}, {1, end - begin}, {-1, 4},
                                {4294967296, 4294967296}};
    if (shape.size() == 2)
      shapes.push_back({shape[1], shape[0]}), shapes.push_back({shape[0], shape[1], 1}),
          shapes.push_back({1, shape[0], shape[1]});
    for (const json& s : shapes) with("shape", s.dump());
    for (const auto& [a, b] : {std::pair{begin + 1, end},
                               {begin, end - 1},
                               {begin, end + 1},
                               {begin + 1, end + 1},
                               {begin - 1, end - 1},
                               {end, begin},
                               {-1 - end + begin, -1L},
                               {begin + (1L << 40), end + (1L << 40)},
                               {0L, end - begin},
                               {0L, 0L}})
      with("data_offsets", json::array({a, b}).dump());
    for (const std::string& value : odd_values)
      for (const char* field : {"dtype", "shape", "data_offsets"}) with(field, value);
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      const std::string entry = with_member(item.value(), field, nullptr);
      try_with(kSecond, with_header(shard, with_member(sound, item.key(), &entry)),
               item.key() + " without " + field);
    }
    try_with(kSecond, with_header(shard, with_member(sound, item.key(), nullptr)), "without " + item.key());
  }
  EXPECT_GT(tally.refused, 2000);
  for (const std::uint64_t length :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 20, std::uint64_t{100'000'000},
        std::uint64_t{100'000'001}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    std::string changed = shard;
    std::memcpy(changed.data(), &length, sizeof(length));
    try_with(kSecond, changed, "header length " + std::to_string(length));
  }
}

// One byte at a time of all that is not weights: headers, index, configurations. What a file says may change
// so (its name for something that nobody asks for), the rows may not.
TEST_F(Mutations, EveryByteOfWhatDescribes) {
  int turn = 0;
  for (const std::string& name : {std::string("config.json"), std::string("hf_quant_config.json"),
                                  std::string(kIndex), std::string(kFirst), std::string(kSecond)}) {
    const std::string sound = file(name);
    const std::size_t end = name.ends_with(".json") ? sound.size() : 8 + header_of(sound).size();
    // A sanitizer's build takes every seventh.
    const std::size_t step = sanitized ? 7 : 1;
    for (std::size_t at = 0; at < end; at += step) {
      constexpr std::string_view others = "0{\"}:,[]19-.ex \x80";
      std::string changed = sound;
      changed[at] = turn % 3 == 0 ? static_cast<char>(changed[at] ^ (1 << (turn / 3 % 8)))
                                  : others[static_cast<std::size_t>(turn) % others.size()];
      ++turn;
      // Numbers of experts a token that these routes do not fit.
      if (name == "config.json" &&
          sound.substr(std::max<std::size_t>(at, 4) - 4, 8).find("\": 2") != std::string::npos)
        continue;
      try_with(name, changed, "byte " + std::to_string(at));
    }
  }
}

// Cut off anywhere, or with something behind.
TEST_F(Mutations, EveryFileCutOrGrown) {
  for (const std::string& name : {std::string("config.json"), std::string("hf_quant_config.json"),
                                  std::string(kIndex), std::string(kFirst), std::string(kSecond)}) {
    const std::string sound = file(name);
    for (std::size_t i = 0; i < 64; ++i) try_with(name, sound.substr(0, sound.size() * i / 64), "cut");
    try_with(name, sound.substr(0, sound.size() - 1), "cut by a byte");
    try_with(name, sound + " ", "a blank behind");
    try_with(name, sound + std::string(1, '\0'), "a zero behind");
    try_with(name, sound + sound, "twice");
  }
}

}  // namespace
}  // namespace kerf::test
