// Whose a directory is: nobody else's file is taken, and no other run's.
#include "kerf/tools/internal/claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "kerf/base/error.h"
#include "tests/support/test_env.h"

namespace kerf::tools::internal {
namespace {

namespace fs = std::filesystem;
using test::TempDir;
using testing::HasSubstr;

OwnFiles own() {
  return {.writer = "the test",
          .is_own = [](const std::string& name) { return is_checkpoint_file(name, ".mark"); },
          .marker = ".mark",
          .key = "config.json"};
}

std::string refusal(const fs::path& directory) {
  const Verdict v = attempt([&] { const Claim claim(directory, own()); });
  if (v) {
    EXPECT_EQ(v->kind, ErrorKind::usage) << v->text;
  }
  return v ? v->text : "accepted";
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(directory)) out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

void touch(const fs::path& path) { std::ofstream(path) << "text"; }

TEST(Claim, OneRunAtATime) {
  const TempDir dir;
  {
    const Claim mine(dir.path() / "new", own());
    EXPECT_THAT(refusal(dir.path() / "new"), HasSubstr("another the test writes to it at the moment"));
    EXPECT_EQ(refusal(dir.path() / "other"), "accepted");
  }
  EXPECT_EQ(refusal(dir.path() / "new"), "accepted");
}

TEST(Claim, WhatWasThereStaysUntilItIsCleared) {
  const TempDir dir;
  {
    Claim first(dir.path(), own());
    first.mark({"config.json", "model-00001-of-00001.safetensors"});
    first.clear({"config.json", "model-00001-of-00001.safetensors"});
    touch(dir.path() / "model-00001-of-00001.safetensors");
    touch(dir.path() / "config.json");
  }
  touch(dir.path() / "model-00001-of-00001.safetensors.tmp-7-0");
  const std::vector<std::string> later = {"config.json", "model-00001-of-00002.safetensors"};
  {
    const Claim stopped(dir.path(), own());
    stopped.mark(later);
  }
  EXPECT_EQ(names_in(dir.path()),
            (std::vector<std::string>{".mark", "config.json", "model-00001-of-00001.safetensors"}));
  touch(dir.path() / "model-00001-of-00002.safetensors.tmp-7-0");
  Claim second(dir.path(), own());
  second.mark(later);
  second.clear(later);
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{".mark"});
}

TEST(Claim, FilesThatTheMarkDoesNotListAreSomebodyElses) {
  const TempDir dir;
  {
    Claim claim(dir.path(), own());
    claim.mark({"config.json"});
    touch(dir.path() / "config.json");
  }
  touch(dir.path() / "model-00002-of-00002.safetensors");  // such a name, but not that run's
  EXPECT_THAT(refusal(dir.path()),
              HasSubstr("holds model-00002-of-00002.safetensors, which the test did not write"));
  fs::remove(dir.path() / "model-00002-of-00002.safetensors");
  EXPECT_EQ(refusal(dir.path()), "accepted");
  // A mark of earlier versions lists none: names of such a kind are taken for theirs.
  std::ofstream(dir.path() / ".mark") << "This directory was written by the test, which may replace it.\n";
  touch(dir.path() / "model-00002-of-00002.safetensors");
  EXPECT_EQ(refusal(dir.path()), "accepted");
  touch(dir.path() / "notes.txt");
  EXPECT_THAT(refusal(dir.path()), HasSubstr("holds notes.txt"));
  const TempDir unmarked;
  touch(unmarked.path() / "config.json");
  EXPECT_THAT(refusal(unmarked.path()), HasSubstr("holds config.json"));
}

}  // namespace
}  // namespace kerf::tools::internal
