// kerf check through the program: exit codes, the JSON, what people read, and the example of
// docs/deploying.md.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/gpu.h"

namespace kerf::test {
namespace {

std::string written(const TempDir& dir, const std::string& text) {
  const std::filesystem::path path = dir.path() / "deployment.json";
  std::ofstream(path) << text;
  return path.string();
}

constexpr const char* sound = R"({
  "engine": {"tensor_parallel": 8, "flashinfer_all_reduce": true},
  "model": {"experts": 48, "hidden": 256, "intermediate": 3072, "top_k": 8},
  "run": {"ranks": 8}})";

constexpr const char* faulty = R"({
  "engine": {"attention_backend": "TRITON", "tensor_parallel": 8, "all_reduce_backend": "trtllm"},
  "model": {"experts": 48, "hidden": 256, "intermediate": 3072, "top_k": 8},
  "run": {"ranks": 8, "device": "cuda", "memory_gib_per_rank": 0.001}})";

TEST(CheckCommand, ASoundDeploymentExitsWith0) {
  const TempDir dir;
  const Ran ran = run_program({"check", written(dir, sound), "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  const auto json = json_of(ran);
  EXPECT_EQ(json["supported"], true);
  EXPECT_TRUE(json["reasons"].empty());
  ASSERT_EQ(json["checks"].size(), 9U);
  for (const auto& check : json["checks"]) EXPECT_EQ(check["ok"], true) << check;
  EXPECT_EQ(json["checks"][0]["name"], "engine");
  EXPECT_EQ(json["checks"][0]["asked"], true);
  EXPECT_EQ(json["checks"][1]["asked"], false);
  const Ran text = run_program({"check", written(dir, sound)});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(text.out.ends_with("\nsupported\n")) << text.out;
}

TEST(CheckCommand, EveryReasonAndExit4) {
  if (why_no_gpu().empty()) GTEST_SKIP() << "there is a GPU";
  const TempDir dir;
  const Ran ran = run_program({"check", written(dir, faulty), "--json"});
  EXPECT_EQ(ran.code, 4);
  EXPECT_TRUE(contains(ran.err, "not supported: 5 reasons"));
  const auto json = json_of(ran);
  EXPECT_EQ(json["supported"], false);
  const auto reasons = json["reasons"].get<std::vector<std::string>>();
  const std::vector<std::string> wanted = {"engine: attention_backend is 'TRITON'",
                                           "engine: flashinfer_all_reduce is off",
                                           "engine: all_reduce_backend is 'trtllm' at TP 8",
                                           "parts: device cuda: " + why_no_gpu(), "memory: a rank needs"};
  ASSERT_EQ(reasons.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_TRUE(reasons[i].starts_with(wanted[i])) << reasons[i];
  std::vector<std::string> in_checks;
  for (const auto& check : json["checks"]) {
    EXPECT_EQ(check["ok"].get<bool>(), check["reasons"].empty()) << check;
    for (const auto& reason : check["reasons"])
      in_checks.push_back(check["name"].get<std::string>() + ": " + reason.get<std::string>());
  }
  EXPECT_EQ(in_checks, reasons);

  const Ran text = run_program({"check", written(dir, faulty)});
  EXPECT_EQ(text.code, 4);
  for (const char* line :
       {"NO  engine", "      NO: attention_backend is 'TRITON', wanted 'FLASHINFER'\n", "-   rope",
        "(not asked)", "ok  placement", "NO  memory", "not supported: 3 of 9 checks say no"})
    EXPECT_TRUE(contains(text.out, line));
}

TEST(CheckCommand, WhatIsNoDeploymentIsAUsageError) {
  const TempDir dir;
  expect_refusal(run_program({"check", written(dir, R"({"engin": {}})"), "--json"}), 2,
                 {"unknown key 'engin', wanted one of engine, layers, model, requirements, run"});
  expect_refusal(run_program({"check", written(dir, "{")}), 2, {"deployment.json", "not valid JSON"});
  expect_refusal(run_program({"check", (dir.path() / "none.json").string()}), 2, {"none.json"});
  expect_refusal(run_program({"check", dir.path().string()}), 2, {"not a regular file"});
  expect_refusal(run_program({"check"}), 2, {"CONFIG"});
  // Standard input; here it is empty.
  expect_refusal(run_program({"check", "-"}), 2, {"standard input: not valid JSON"});
}

// The model's config may stand beside the deployment; `kerf synth` writes one that kerf serves.
TEST(CheckCommand, ReadsTheModelOfACheckpoint) {
  const TempDir dir;
  ASSERT_EQ(run_program({"synth", (dir.path() / "tiny").string(), "--model", "tiny"}).code, 0);
  const Ran ran =
      run_program({"check", written(dir, R"({"model": {"config": "tiny"}, "run": {"ranks": 2}})"), "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err << ran.out;
  EXPECT_EQ(json_of(ran)["checks"][6]["notes"].back(),
            "2 NVFP4 and 0 BF16 layers of 8 experts, 256 x 128, top 2");
}

// The document's example is a deployment that holds, and names every key but those of other kinds of config.
TEST(CheckCommand, TheDocumentsExampleHolds) {
  const std::string doc = read_text(std::filesystem::path(source_folder) / "docs" / "deploying.md");
  const std::string fence = "```json\n";
  const std::size_t begin = doc.find(fence);
  ASSERT_NE(begin, std::string::npos);
  const std::string example =
      doc.substr(begin + fence.size(), doc.find("```", begin + 3) - begin - fence.size());
  const TempDir dir;
  const Ran ran = run_program({"check", written(dir, example), "--json"});
  EXPECT_EQ(ran.code, 0) << ran.err << ran.out;
  const auto json = json_of(ran);
  for (const auto& check : json["checks"]) EXPECT_EQ(check["asked"], true) << check["name"];
  // Every key that an unknown one is answered with has its place in the document.
  for (const char* text : {R"({"x": 0})", R"({"requirements": {"x": 0}, "engine": {"x": 0}})",
                           R"({"layers": [{"x": 0, "decode_metadata": {"x": 0}, "kv_cache": {"x": 0}}]})",
                           R"({"model": {"x": 0}, "run": {"x": 0}})"}) {
    const Ran refused = run_program({"check", written(dir, text)});
    ASSERT_EQ(refused.code, 2);
    const std::string mark = "wanted one of ";
    for (std::size_t at = refused.err.find(mark); at != std::string::npos;
         at = refused.err.find(mark, at + 1)) {
      std::string keys = refused.err.substr(at + mark.size());
      keys.resize(std::min(keys.find_first_of(";\n"), keys.size()));
      for (std::size_t from = 0; from < keys.size();) {
        const std::size_t to = std::min(keys.find(", ", from), keys.size());
        const std::string key = keys.substr(from, to - from);
        EXPECT_TRUE(contains(doc, std::string("`").append(key).append("`")));
        from = to + 2;
      }
    }
  }
}

}  // namespace
}  // namespace kerf::test
