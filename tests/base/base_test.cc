// Errors, verdicts, environment and the floating point mode.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <chrono>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "kerf/base/env.h"
#include "kerf/base/error.h"
#include "kerf/base/fp_guard.h"
#include "kerf/base/function_ref.h"
#include "kerf/base/json.h"
#include "kerf/base/log.h"
#include "kerf/base/threads.h"
#include "tests/support/flushing.h"

namespace kerf {
namespace {

TEST(Error, KindsAreExitCodes) {
  EXPECT_EQ(Error(ErrorKind::usage, "").exit_code(), 2);
  EXPECT_EQ(Error(ErrorKind::checkpoint, "").exit_code(), 3);
  EXPECT_EQ(Error(ErrorKind::unsupported, "").exit_code(), 4);
  EXPECT_EQ(Error(ErrorKind::peer, "").exit_code(), 5);
  EXPECT_EQ(Error(ErrorKind::probe, "").exit_code(), 6);
  EXPECT_EQ(Error(ErrorKind::memory, "").exit_code(), 7);
  EXPECT_EQ(Error(ErrorKind::device, "").exit_code(), 8);
  EXPECT_EQ(Error(ErrorKind::bug, "").exit_code(), 70);
}

TEST(Attempt, KeepsKindAndText) {
  EXPECT_EQ(attempt([] {}), std::nullopt);
  EXPECT_EQ(attempt([] { throw Error(ErrorKind::peer, "gone"); }), (Reason{ErrorKind::peer, "gone"}));
  EXPECT_EQ(attempt([] { throw std::bad_alloc(); })->kind, ErrorKind::memory);
  EXPECT_EQ(attempt([] { throw std::runtime_error("odd"); }), (Reason{ErrorKind::bug, "odd"}));
  EXPECT_EQ(attempt([] { throw 3; })->kind, ErrorKind::bug);
  EXPECT_THROW(require(Reason{ErrorKind::probe, "x"}), Error);
  EXPECT_NO_THROW(require(std::nullopt));
}

// A thread that cannot be made is memory that is not there, however it is said.
TEST(Attempt, ThreadsAreMemory) {
  const auto kind = [](std::errc code) {
    return attempt([&] { throw std::system_error(std::make_error_code(code)); })->kind;
  };
  EXPECT_EQ(kind(std::errc::resource_unavailable_try_again), ErrorKind::memory);
  EXPECT_EQ(kind(std::errc::not_enough_memory), ErrorKind::memory);
  EXPECT_EQ(kind(std::errc::permission_denied), ErrorKind::bug);
}

TEST(Env, ReadsOnlyWhatTheTableNames) {
  setenv("KERF_THREADS", "3", 1);  // NOLINT(concurrency-mt-unsafe)
  EXPECT_EQ(env_positive("KERF_THREADS", 8), 3);
  for (const char* bad : {"0", "9", "-2", "3x", "99999999999", " "}) {
    setenv("KERF_THREADS", bad, 1);  // NOLINT(concurrency-mt-unsafe)
    try {
      (void)env_positive("KERF_THREADS", 8);
      FAIL() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage);
      EXPECT_NE(std::string(e.what()).find("KERF_THREADS"), std::string::npos);
    }
  }
  setenv("KERF_THREADS", "", 1);  // NOLINT(concurrency-mt-unsafe)
  EXPECT_EQ(env_positive("KERF_THREADS", 8), std::nullopt);
  unsetenv("KERF_THREADS");  // NOLINT(concurrency-mt-unsafe)
  EXPECT_EQ(env_value("KERF_THREADS"), std::nullopt);
  EXPECT_THROW((void)env_value("HOME"), Error);
}

TEST(FpGuard, UndoesFlushToZeroForAScopeAlone) {
  volatile float tiny = 0x1p-126F;
  const int rounding = std::fegetround();
  const test::Flushing flushing;
  ASSERT_EQ(std::fesetround(FE_DOWNWARD), 0);
  EXPECT_EQ(tiny * 0.5F, 0.0F);
  {
    const FpGuard guard;
    EXPECT_EQ(tiny * 0.5F, 0x1p-127F);
    volatile float one = 1.0F;
    EXPECT_EQ(one + 0x1.8p-24F, 1.0F + 0x1p-23F);  // to nearest: up
  }
  EXPECT_EQ(tiny * 0.5F, 0.0F);
  EXPECT_EQ(std::fegetround(), FE_DOWNWARD);
  // Workers guard every task, on the caller's thread too.
  Workers(2).for_each(8, [&](std::size_t, int) { EXPECT_EQ(tiny * 0.5F, 0x1p-127F); });
  std::fesetround(rounding);
}

TEST(FunctionRef, CallsWhatItRefersTo) {
  int total = 0;
  const auto add = [&](int v) { return total += v; };
  const FunctionRef<int(int)> ref = add;
  EXPECT_EQ(ref(2), 2);
  EXPECT_EQ(ref(3), 5);
}

TEST(Log, AnEmptyLogSwallows) {
  Log().info("nothing");
  std::string got;
  Log([&](LogLevel, const std::string& line) { got += line; }).warning("something");
  EXPECT_EQ(got, "something");
}

// In a time that grows with the text, not with its square: as many objects as a large model's list of
// quantised layers has, and more. The square took minutes.
TEST(Json, ManyObjectsAreReadInLinearTime) {
  std::string text = "{\"a\": [";
  for (int i = 0; i < 200'000; ++i) text += i == 0 ? "{}" : ",{}";
  text += "], \"b\": {";
  for (int i = 0; i < 60'000; ++i) text += fmt::format("{}\"{}\": {{}}", i == 0 ? "" : ",", i);
  text += "}}";
  const auto start = std::chrono::steady_clock::now();
  const auto json = parse_json(text, "many.json");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(json["a"].size(), 200'000U);
  EXPECT_EQ(json["b"].size(), 60'000U);
}

TEST(Json, LooksForKeysThatComeTwiceAndDepth) {
  EXPECT_THROW(parse_json(R"({"a": {"b": 1, "c": {"b": 1}, "b": 2}})", "x"), Error);
  EXPECT_NO_THROW(parse_json(R"({"a": {"b": 1}, "c": {"b": 1}})", "x"));
  EXPECT_NO_THROW(parse_json(std::string(64, '[') + std::string(64, ']'), "x"));
  EXPECT_THROW(parse_json(std::string(66, '[') + std::string(66, ']'), "x"), Error);
  EXPECT_THROW(parse_json("[1", "x"), Error);
  EXPECT_THROW(parse_json("[1e999]", "x"), Error);
}

}  // namespace
}  // namespace kerf
