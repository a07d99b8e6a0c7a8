// What holds for the program as a whole: exit codes, streams, help, the environment.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "kerf/base/build_info.h"
#include "kerf/base/env.h"
#include "kerf/checkpoint/export_facts.h"
#include "kerf/comm/mpi.h"
#include "kerf/comm/nccl.h"
#include "kerf/cuda/library.h"
#include "kerf/op/op.h"
#include "tests/cli/program.h"
#include "tests/support/gpu.h"
#include "tests/support/onehot.h"

namespace kerf::test {
namespace {

const std::vector<std::string> commands = {"inspect", "verify", "plan",  "decode", "run",
                                           "bench",   "tune",   "synth", "env"};

// Whether a process has the file open.
bool has_open(const std::filesystem::path& process, const std::string& file) {
  std::error_code error;
  for (std::filesystem::directory_iterator item(process / "fd", error), end; !error && item != end;
       item.increment(error)) {
    std::error_code gone;
    if (std::filesystem::read_symlink(item->path(), gone) == file) return true;
  }
  return false;
}

// Stops a program that has the file open, cuts the file and lets the program go on; false where there is
// none.
bool truncate_while_open(const std::string& file) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (!has_open(entry.path(), file)) continue;
    const pid_t pid = std::stoi(name);
    kill(pid, SIGSTOP);
    std::filesystem::resize_file(file, 4096);
    kill(pid, SIGCONT);
    return true;
  }
  return false;
}

TEST(Program, HelpNamesEveryCommand) {
  const Ran ran = run_program({"--help"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  for (const std::string& c : commands) EXPECT_TRUE(contains(ran.out, "\n  " + c));
  EXPECT_TRUE(contains(ran.out, "Exit codes"));
}

TEST(Program, EveryCommandHasHelp) {
  for (const std::string& c : commands)
    for (const char* flag : {"-h", "--help"}) {
      const Ran ran = run_program({c, flag});
      EXPECT_EQ(ran.code, 0) << c;
      EXPECT_EQ(ran.err, "") << c;
      for (const char* option : {"--json", "--quiet", "--verbose"})
        EXPECT_TRUE(contains(ran.out, option)) << c;
    }
}

TEST(Program, Version) {
  const Ran ran = run_program({"--version"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, "kerf " + std::string(version()) + "\n");
}

TEST(Program, UsageErrorsAreCodeTwo) {
  expect_refusal(run_program({}), 2, {"kerf --help"});
  expect_refusal(run_program({"carve"}), 2, {"carve"});
  expect_refusal(run_program({"env", "--colour"}), 2, {"--colour"});
  expect_refusal(run_program({"inspect"}), 2, {"CKPT"});
  expect_refusal(run_program({"env", "extra"}), 2, {"extra"});
  expect_refusal(run_program({"plan", "--ranks", "four"}), 2, {"--ranks", "four"});
  expect_refusal(run_program({"plan", "--ranks", "4x"}), 2, {"4x"});
  expect_refusal(run_program({"plan", "--ranks"}), 2, {"--ranks"});
  expect_refusal(run_program({"plan", "--ranks", "99999999999999999999"}), 2, {"--ranks"});
}

TEST(Program, BadPathsAreCodeThree) {
  const TempDir dir;
  std::filesystem::create_directory(dir.path() / "empty");
  std::filesystem::create_directory(dir.path() / "broken");
  std::ofstream(dir.path() / "broken" / "config.json") << "{\"hidden_size\": ";
  for (const char* c : {"inspect", "verify", "plan"}) {
    expect_refusal(run_program({c, (dir.path() / "nowhere").string()}), 3, {"nowhere"});
    expect_refusal(run_program({c, (dir.path() / "empty").string()}), 3, {"config.json"});
    expect_refusal(run_program({c, (dir.path() / "broken").string()}), 3, {"broken", "config.json"});
  }
}

TEST(Program, AFullDiskIsAnError) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"env"}, {"--version"}, {"--help"}, {"decode", "--help"}}) {
    const Ran ran = run_program(arguments, {}, full);
    EXPECT_EQ(ran.code, 1) << arguments[0];
    EXPECT_TRUE(contains(ran.err, "cannot write to standard output"));
  }
  close(full);
}

TEST(Program, AReaderThatLeftIsAnErrorAndNoSignal) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  close(ends[0]);
  const Ran ran = run_program({"env"}, {}, ends[1]);
  close(ends[1]);
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_EQ(ran.err, "");
}

TEST(Program, EnvListsEverythingThereIs) {
  const Ran ran = run_program({"env", "--json"}, {"KERF_THREADS=3"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  const auto json = json_of(ran);
  for (const char* key : {"version", "compiler", "build_type", "cores", "backends", "package", "device",
                          "groups", "absent", "variables", "options"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["version"], std::string(version()));
  EXPECT_EQ(json["layout"], std::string(checkpoint::export_layout));
  EXPECT_EQ(json["backends"].get<std::vector<std::string>>(), op::backend_names());
  const Verdict nccl = comm::nccl_absent("");
  EXPECT_EQ(json["absent"].contains("nccl") ? json["absent"]["nccl"].get<std::string>() : "",
            nccl ? nccl->text : "");
  EXPECT_EQ(json["nccl"].get<std::string>().empty(), nccl.has_value());
  if (!cuda::built()) {
    EXPECT_TRUE(contains(nccl->text, "not built: configure with -DKERF_CUDA=ON"));
  }
  const bool mpi = !comm::mpi_absent();
  EXPECT_EQ(json["absent"].contains("mpi"), !mpi);
  EXPECT_EQ(json["options"]["KERF_MPI"]["value"] == "ON", mpi);
  EXPECT_EQ(json["groups"].size(), 1U + (mpi ? 1U : 0U) + (nccl ? 0U : 1U));
  EXPECT_EQ(json["absent"].contains("cuda") ? json["absent"]["cuda"].get<std::string>() : "", why_no_gpu());
  EXPECT_EQ(json["variables"].size(), env_table.size());
  EXPECT_EQ(json["variables"]["KERF_THREADS"]["value"], "3");
  EXPECT_TRUE(json["variables"]["KERF_ISA"]["value"].is_null());
  EXPECT_LE(json["options"].size(), 8U);
  EXPECT_TRUE(json["options"].contains("KERF_SANITIZE"));

  const Ran text = run_program({"env"}, {"KERF_THREADS=3"});
  EXPECT_EQ(text.code, 0);
  for (const EnvVariable& v : env_table) EXPECT_TRUE(contains(text.out, v.name));
  for (const std::string& b : op::backend_names()) EXPECT_TRUE(contains(text.out, b));
}

TEST(Program, BadVariablesAreUsageErrors) {
  const TempDir dir;
  const std::string c = (dir.path() / "c").string();
  for (const char* value : {"KERF_THREADS=0", "KERF_THREADS=-1", "KERF_THREADS=many"})
    expect_refusal(run_program({"synth", c, "--model", "tiny"}, {value}), 2, {"KERF_THREADS"});
}

// A shell that limits or redirects, then the program: sh -c 'words' with $0 as the program and $@ after it.
Ran run_shell(const std::string& words, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"-c", words, program_path});
  return run_executable("/bin/sh", arguments);
}

TEST(Program, AClosedOutputIsAnError) {
  for (const char* words : {"\"$0\" --version >&-", "\"$0\" --help >&-", "\"$0\" env >&-"}) {
    const Ran ran = run_shell(words, {});
    EXPECT_EQ(ran.code, 1) << words;
    EXPECT_TRUE(contains(ran.err, "cannot write to standard output"));
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need terabytes of addresses
TEST(Program, TooLittleMemoryIsCodeSeven) {
  const TempDir dir;
  const std::string c = (dir.path() / "c").string();
  ASSERT_EQ(run_program({"synth", c, "--model", "tiny"}).code, 0);
  int failed = 0;
  for (const char* kib : {"40000", "60000", "80000", "120000", "200000", "400000", "1000000"})
    for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
             {"decode", c, "--ranks", "2", "--threads", "16", "--seconds", "0"}, {"verify", c}}) {
      const Ran ran =
          run_shell("ulimit -v " + std::string(kib) + "; KERF_THREADS=16 exec \"$0\" \"$@\"", arguments);
      if (ran.code == 127) continue;  // not even its libraries could be mapped
      EXPECT_TRUE(ran.code == 0 || ran.code == 7) << kib << ": " << ran.code << " " << ran.err;
      failed += ran.code == 7 ? 1 : 0;
    }
  EXPECT_GT(failed, 0) << "no limit was low enough to test anything";
}
#endif

TEST(Program, NamesFromFilesDoNotSteerTheTerminal) {
  const TempDir dir;
  Onehot checkpoint;
  checkpoint.write(dir.path());
  const auto config = dir.path() / "config.json";
  std::string text = read_text(config);
  const std::string was = "\"architectures\": [\"";
  const auto at = text.find(was);
  ASSERT_NE(at, std::string::npos) << text;
  text.insert(at + was.size(), "\\u001b]0;title\\u0007\\u009b31m\\u202e");
  std::ofstream(config) << text;
  for (const char* command : {"inspect", "verify", "decode"}) {
    const Ran ran = run_program({command, dir.path().string()});
    for (const char* control : {"\x1B", "\x07", "\xC2\x9B", "\xE2\x80\xAE"}) {
      EXPECT_EQ(ran.out.find(control), std::string::npos) << command;
      EXPECT_EQ(ran.err.find(control), std::string::npos) << command;
    }
  }
  const Ran shown = run_program({"inspect", dir.path().string()});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_TRUE(contains(shown.out, "\\x1B]0;title\\x07\\xC2\\x9B31m\\xE2\\x80\\xAE"));
  const Ran refused = run_program({"inspect", "no\x1B[31m\xFF\xC3\xA9"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_TRUE(contains(refused.err, "no\\x1B[31m\\xFF\xC3\xA9"));
}

// A configuration's values in --json: no raw character that a terminal acts on, no name without end; and the
// value that the file has for whoever reads the JSON.
TEST(Program, JsonDoesNotSteerTheTerminalEither) {
  const TempDir dir;
  Onehot checkpoint;
  checkpoint.write(dir.path());
  const auto config = dir.path() / "config.json";
  auto json = nlohmann::json::parse(read_text(config));
  const std::string name = "a\x7F\xC2\x9B\xE2\x80\xA8\xE2\x80\xAE\xE2\x81\xA6z";
  json["architectures"][0] = name;
  std::ofstream(config) << json.dump();
  const Ran ran = run_program({"inspect", dir.path().string(), "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(json_of(ran)["architecture"], name);
  EXPECT_TRUE(contains(ran.out, "\"a\\u007f\\u009b\\u2028\\u202e\\u2066z\""));
  json["architectures"][0] = std::string(100'000, 'n');
  std::ofstream(config) << json.dump();
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"inspect", dir.path().string()},
                                                    {"inspect", dir.path().string(), "--json"}}) {
    const Ran longer = run_program(arguments);
    ASSERT_EQ(longer.code, 0) << longer.err;
    EXPECT_LT(longer.out.size(), 20'000U);
    EXPECT_TRUE(contains(longer.out, std::string(200, 'n') + "... (100000 bytes)"));
  }
}

// A message is one line, whatever was typed.
TEST(Program, ArgumentsDoNotBreakLines) {
  const std::string forged = "x\nkerf: error: forged\r\x1B[2K\xE2\x80\xA8y";
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"inspect", forged},
           {forged},
           {"inspect", "--" + forged},
           {"decode", "x", "--batch", forged},
           {"decode", "x", "--mode", forged},
           {"decode", "x", "--ranks", forged},
           {"decode", "x", "--backend", forged},
           {"synth", "/proc/" + forged + "/m"},
           {"check", forged},
           {"run", forged, "--layer", "0", "--in", forged, "--out", forged}}) {
    const Ran ran = run_program(arguments);
    EXPECT_NE(ran.code, 0);
    EXPECT_EQ(ran.err.find("\nkerf: error: forged"), std::string::npos) << ran.err;
    for (const char* raw : {"\r", "\x1B", "\xE2\x80\xA8"})
      EXPECT_EQ(ran.err.find(raw), std::string::npos) << ran.err;
  }
}

// The file is cut off while the program is stopped with the file open.
TEST(Program, AFileThatBecomesShorterIsCodeThree) {
  const TempDir dir;
  const std::string c = (dir.path() / "c").string();
  const std::vector<std::string> made = {"synth",    c,     "--model",        "tiny", "--experts",     "64",
                                         "--hidden", "512", "--intermediate", "512",  "--bf16-layers", "0",
                                         "--layers", "1"};
  const std::string shard = c + "/model-00001-of-00001.safetensors";
  for (int attempt = 0; attempt < 5; ++attempt) {
    ASSERT_EQ(run_program(made).code, 0);
    bool cut = false;
    Ran ran;
    {
      std::atomic<bool> ended{false};
      const std::jthread cutter([&] {
        while (!ended && !cut) cut = truncate_while_open(shard);
      });
      ran = run_program({"verify", c}, {"KERF_THREADS=1"});
      ended = true;
    }
    if (!cut || ran.code == 0) continue;  // it was done before it could be stopped
    EXPECT_EQ(ran.code, 3) << ran.err;
    EXPECT_TRUE(contains(ran.err, shard));
    if (ran.err.find("while it was read") == std::string::npos) continue;  // it had only the header yet
    return;
  }
  FAIL() << "the program was never stopped in time";
}

}  // namespace
}  // namespace kerf::test
