// kerf tune through the program, and kerf decode on what it wrote.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "kerf/tools/synth.h"
#include "tests/cli/program.h"

namespace kerf::test {
namespace {

using Json = nlohmann::json;

const std::string& model() {
  static const TempDir dir;
  static const std::string path = [] {
    tools::SynthOptions options = tools::synth_defaults(tools::SynthModel::tiny);  // 8 of 256 x 128, top 2
    tools::synth(dir.path(), options, Workers(1));
    return dir.path().string();
  }();
  return path;
}

Ran tune(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "tune");
  arguments.insert(arguments.end(), {"--seconds", "0.01", "--threads", "1"});
  return run_program(arguments);
}

Ran decode(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "decode");
  arguments.insert(arguments.end(), {"--seconds", "0"});
  return run_program(arguments);
}

std::vector<std::string> sizes() {
  return {"--experts", "8", "--hidden", "256", "--intermediate", "128", "--top-k", "2"};
}

template <typename... More>
std::vector<std::string> sizes_and(More... more) {
  std::vector<std::string> out = sizes();
  (out.emplace_back(more), ...);
  return out;
}

TEST(TuneCommand, MeasuresEveryTacticThatIsOfUse) {
  const Ran ran = tune(sizes_and("--tp", "2", "--ep", "2", "--tokens", "1,9,33", "--json"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json j = json_of(ran);
  EXPECT_EQ(j["threads"], 1);
  EXPECT_TRUE(j["out"].is_null());
  ASSERT_EQ(j["lists"].size(), 1U);
  EXPECT_EQ(j["lists"][0]["experts"], 4);  // 8 over 2 rows, each in 2 slices
  EXPECT_EQ(j["lists"][0]["intermediate"], 64);
  for (const Json& list : j["lists"]) {
    EXPECT_EQ(list["num_experts"], 8);
    EXPECT_EQ(list["arithmetic"], "w4a4");
    EXPECT_EQ(list["package"].get<std::string>().rfind("cpu-", 0), 0U);
    // Three configs at tile 8 for a token, at 8 and 16 for 9, at all four for 33.
    std::size_t count[3] = {0, 0, 0};
    for (const Json& t : list["times"]) {
      EXPECT_GT(t["us"].get<double>(), 0);
      ++count[t["tokens"] == 1 ? 0 : t["tokens"] == 9 ? 1 : 2];
    }
    EXPECT_EQ(count[0], 3U);
    EXPECT_EQ(count[1], 6U);
    EXPECT_EQ(count[2], 12U);
    // Only what always runs can be pinned.
    EXPECT_EQ(list["preferred"].size(), 3U);
    for (const Json& t : list["preferred"]) EXPECT_EQ(t[0], 8);
  }
}

TEST(TuneCommand, PrintsATable) {
  const Ran ran = tune({model(), "--tp", "2", "--tokens", "1,9"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  for (const char* words : {"package     cpu-", "device      ", "experts 8 of 8, 256 x 64, top 2; w4a4",
                            "preferred", "tile", "config", "1 token", "9 tokens"})
    EXPECT_TRUE(contains(ran.out, words));
  std::size_t rows = 0;
  for (std::size_t at = 0; (at = ran.out.find('\n', at)) != std::string::npos; ++at) ++rows;
  EXPECT_EQ(rows, 3U + 2U + 6U) << ran.out;  // what was measured; the table's head; tiles 8 and 16
}

// What tune writes, decode pins; three starts are alike, and so are the bits of the default.
TEST(TuneCommand, DecodePinsWhatItWrote) {
  const TempDir dir;
  const std::string file = (dir.path() / "lists.json").string();
  ASSERT_EQ(tune({model(), "--tp", "2", "--tokens", "1,8", "--out", file}).code, 0);
  const Json written = Json::parse(read_text(file));
  ASSERT_EQ(written["lists"].size(), 1U);
  const Json first_tactic = written["lists"][0]["tactics"][0];
  const std::vector<std::string> with = {model(), "--ranks", "2",         "--batch",
                                         "1,8",   "--json",  "--tactics", file};
  const Ran first = decode(with);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.err.find("warning"), std::string::npos) << first.err;
  const Json j = json_of(first);
  EXPECT_EQ(j["tactic"]["pinned"], true);
  EXPECT_EQ(j["tactic"]["preference"], 0);
  EXPECT_EQ(j["tactic"]["of"], 3);
  EXPECT_EQ(j["tactic"]["tile"], first_tactic[0]);
  EXPECT_EQ(j["tactic"]["config"], first_tactic[1]);
  const auto digests = [](const Json& report) {
    std::vector<std::string> out;
    for (const Json& step : report["steps"]) out.push_back(step["output_sha256"]);
    return out;
  };
  for (int again = 0; again < 2; ++again) {
    const Json next = json_of(decode(with));
    EXPECT_EQ(next["tactic"], j["tactic"]);
    EXPECT_EQ(digests(next), digests(j));
  }
  const Json plain = json_of(decode({model(), "--ranks", "2", "--batch", "1,8", "--json"}));
  EXPECT_EQ(digests(plain), digests(j));
  // On 4 experts a slice of another width: no list, one warning.
  const Ran other = decode({model(), "--ranks", "2", "--act", "bf16", "--json", "--tactics", file});
  EXPECT_EQ(other.code, 0);
  EXPECT_TRUE(contains(other.err, "no tactics were measured for experts 8 of 8, 256 x 64, top 2, w4a16"));
}

// --ep, --tp, --uneven and --pad mean what they mean to decode: what is written for a cut is pinned there.
TEST(TuneCommand, DecodePinsWhatItWroteForEveryCut) {
  const TempDir dir;
  const std::string wide = (dir.path() / "model").string();
  tools::SynthOptions options = tools::synth_defaults(tools::SynthModel::tiny);
  options.intermediate = 192;
  options.bf16_layers = {};
  tools::synth(wide, options, Workers(1));
  struct Cut {
    std::string model;
    std::vector<std::string> flags;
    std::string ranks;
    std::int64_t experts, width;
  };
  const std::vector<Cut> cuts = {
      {model(), {"--ep", "2", "--tp", "2"}, "4", 4, 64},
      {model(), {"--ep", "4", "--tp", "2"}, "8", 2, 64},
      {wide, {"--tp", "2", "--uneven"}, "2", 8, 128},  // 128 and 64
      {wide, {"--tp", "2", "--pad"}, "2", 8, 128},     // 256 / 2
      {wide, {"--tp", "2", "--ep", "2", "--uneven", "--pad"}, "4", 4, 128},
  };
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const Cut& cut = cuts[i];
    const std::string file = (dir.path() / ("lists" + std::to_string(i))).string();
    std::vector<std::string> tuning = {cut.model, "--tokens", "1,8", "--json", "--out", file};
    tuning.insert(tuning.end(), cut.flags.begin(), cut.flags.end());
    const Ran tuned = tune(tuning);
    ASSERT_EQ(tuned.code, 0) << tuned.err;
    const Json list = json_of(tuned)["lists"][0];
    EXPECT_EQ(list["experts"], cut.experts) << i;
    EXPECT_EQ(list["num_experts"], 8) << i;
    EXPECT_EQ(list["intermediate"], cut.width) << i;
    std::vector<std::string> decoding = {cut.model, "--ranks", cut.ranks,   "--batch",
                                         "1,8",     "--json",  "--tactics", file};
    decoding.insert(decoding.end(), cut.flags.begin(), cut.flags.end());
    const Ran ran = decode(decoding);
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(json_of(ran)["tactic"]["pinned"], true) << i << ran.err;
    EXPECT_EQ(json_of(ran)["tactic"]["tile"], list["preferred"][0][0]) << i;
    EXPECT_EQ(json_of(ran)["tactic"]["config"], list["preferred"][0][1]) << i;
  }
}

// decode looks up lists of slices alone, and tune says so.
TEST(TuneCommand, AListOfWholeExpertsIsForTheReport) {
  const TempDir dir;
  const std::string file = (dir.path() / "lists.json").string();
  const Ran whole = tune({model(), "--tokens", "1", "--out", file});
  EXPECT_EQ(whole.code, 0);
  EXPECT_TRUE(contains(whole.err, "warning: a list of whole experts"));
  const Ran slices = tune({model(), "--tokens", "1", "--tp", "2", "--out", file});
  EXPECT_EQ(slices.code, 0);
  EXPECT_EQ(slices.err.find("warning"), std::string::npos) << slices.err;
  EXPECT_EQ(json_of(decode({model(), "--json", "--tactics", file}))["tactic"]["tuned"], false);
}

TEST(TuneCommand, RefusesInWords) {
  const TempDir dir;
  expect_refusal(tune({"--experts", "8"}), 2, {"--hidden is needed"});
  expect_refusal(tune(sizes_and("--tp", "4")), 4, {"slice 32", "64"});
  expect_refusal(tune(sizes_and("--ep", "3")), 4, {"8"});
  expect_refusal(tune(sizes_and("--tokens", "0")), 2, {"0 tokens"});
  expect_refusal(tune(sizes_and("--backend", "abacus")), 2, {"abacus", "reference"});
  expect_refusal(tune(sizes_and("--out", (dir.path() / "none" / "x").string())), 2, {"no directory"});
  expect_refusal(tune(sizes_and("--out", "/dev/full")), 2, {"/dev/full", "device"});
  expect_refusal(tune(sizes_and("--out", dir.path().string())), 2, {"directory"});
  const std::string notes = (dir.path() / "notes").string();
  std::ofstream(notes) << "mine";
  expect_refusal(tune(sizes_and("--out", notes)), 2, {notes, "not valid JSON"});
  EXPECT_EQ(read_text(notes), "mine");
  expect_refusal(decode({model(), "--ranks", "2", "--tactics", notes}), 2, {notes, "not valid JSON"});
  expect_refusal(decode({model(), "--tactics", (dir.path() / "no").string()}), 2, {"No such file"});
  expect_refusal(decode({model(), "--tactics", dir.path().string()}), 2, {"not a regular file"});
  // Nor does a list go into the checkpoint that is measured.
  expect_refusal(tune({model(), "--out", model() + "/lists.json"}), 2, {"--out", "inside the checkpoint"});
  EXPECT_FALSE(std::filesystem::exists(model() + "/lists.json"));
}

TEST(DecodeCommand, TunesStockExpertsAndKeepsIt) {
  const TempDir dir;
  const std::string cache = (dir.path() / "cache.json").string();
  const std::vector<std::string> arguments = {model(), "--batch",        "1,8", "--json", "--tune-seconds",
                                              "0.01",  "--tactic-cache", cache};
  const Json one = json_of(decode(arguments));
  EXPECT_EQ(one["stock_tactics"]["timed"], 4);
  EXPECT_EQ(one["stock_tactics"]["cached"], 0);
  ASSERT_EQ(one["stock_tactics"]["tuned"].size(), 4U);
  const Json two = json_of(decode(arguments));
  EXPECT_EQ(two["stock_tactics"]["timed"], 0);
  EXPECT_EQ(two["stock_tactics"]["cached"], 4);
  EXPECT_EQ(two["stock_tactics"]["tuned"], one["stock_tactics"]["tuned"]);
  EXPECT_EQ(one["tactic"]["tuned"], true);
  EXPECT_EQ(one["tactic"]["pinned"], false);
  EXPECT_EQ(one["stock_tactics"]["tuned"][0]["arithmetic"], "w4a4");
  EXPECT_EQ(one["stock_tactics"]["tuned"][0]["intermediate"], 128);
  const Ran text = decode({model(), "--batch", "1,8", "--tactic-cache", cache});
  EXPECT_TRUE(contains(text.out, ": the tuner's\n"));
  EXPECT_TRUE(contains(decode({model()}).out, ": the op's default\n"));
  EXPECT_TRUE(contains(text.out, "tuner       stock experts: 0 of 4 buckets timed, 4 from the cache"));
  EXPECT_TRUE(json_of(decode({model(), "--json"}))["stock_tactics"].is_null());
}

// No file is replaced that is not a cache, and none in the checkpoint; all is said before anything is read.
TEST(DecodeCommand, ACacheTakesNoOtherFilesPlace) {
  const TempDir dir;
  const auto expect_stays = [&](const std::string& path, std::initializer_list<std::string_view> words) {
    const std::string before = read_text(path);
    expect_refusal(decode({model(), "--tune-seconds", "0.01", "--tactic-cache", path}), 2, words);
    EXPECT_EQ(read_text(path), before) << path;
  };
  for (const auto& entry : std::filesystem::directory_iterator(model()))
    expect_stays(entry.path().string(), {"--tactic-cache", "inside the checkpoint"});
  const std::string link = (dir.path() / "link").string();
  std::filesystem::create_symlink(model() + "/config.json", link);
  expect_stays(link, {"--tactic-cache", "inside the checkpoint"});
  const std::string fresh = model() + "/cache.json";
  expect_refusal(decode({model(), "--tune-seconds", "0.01", "--tactic-cache", fresh}), 2,
                 {"inside the checkpoint"});
  EXPECT_FALSE(std::filesystem::exists(fresh));

  const std::string notes = (dir.path() / "notes").string();
  std::ofstream(notes) << "mine";
  expect_stays(notes, {"--tactic-cache", notes, "not valid JSON", "no tuner's cache"});
  const std::string config = (dir.path() / "config.json").string();
  std::filesystem::copy_file(model() + "/config.json", config);
  expect_stays(config, {"no 'format'"});
  const std::string deep = (dir.path() / "deep").string();
  std::ofstream(deep) << std::string(2'000'000, '[');
  expect_stays(deep, {"nested deeper than 64"});
  expect_refusal(decode({model(), "--tactic-cache", dir.path().string()}), 2, {"not a regular file"});
  expect_refusal(decode({model(), "--tactic-cache", (dir.path() / "none" / "x").string()}), 2,
                 {"no directory"});

  // One that is cut short is told by its beginning: reported, not believed, replaced.
  const std::string cache = (dir.path() / "cache.json").string();
  std::ofstream(cache) << "";
  ASSERT_EQ(decode({model(), "--tune-seconds", "0.01", "--tactic-cache", cache}).code, 0);
  const std::string whole = read_text(cache);
  std::ofstream(cache, std::ios::trunc) << whole.substr(0, whole.size() / 2);
  const Ran again = decode({model(), "--json", "--tune-seconds", "0.01", "--tactic-cache", cache});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(contains(again.err, "will be replaced"));
  EXPECT_EQ(json_of(again)["stock_tactics"]["cached"], 0);
  EXPECT_EQ(json_of(decode({model(), "--json", "--tactic-cache", cache}))["stock_tactics"]["cached"], 4);
}

}  // namespace
}  // namespace kerf::test
