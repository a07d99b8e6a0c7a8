// Errors, verdicts, environment and the floating point mode.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
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

// Python's json module writes these three words, which are no JSON: numbers for who reads its files, and an
// error for everybody else.
TEST(Json, NumbersThatAreNotFiniteAsPythonWritesThem) {
  const auto json = parse_python_json(
      R"({"limit": [0.0, Infinity], "a": {"b": -Infinity , "c": NaN}, "d": "NaN, Infinity", "e\\": "\"NaN"})",
      "x");
  EXPECT_EQ(json["limit"][1].get<double>(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(json["a"]["b"].get<double>(), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(json["a"]["c"].get<double>()));
  EXPECT_EQ(json["d"], "NaN, Infinity");
  EXPECT_EQ(json["e\\"], "\"NaN");
  EXPECT_EQ(got(json["limit"][1]), "Infinity (number)");
  EXPECT_EQ(got(json["a"]["b"]), "-Infinity (number)");
  EXPECT_EQ(got(json["a"]["c"]), "NaN (number)");
  EXPECT_EQ(parse_python_json("NaN", "x").type(), nlohmann::json::value_t::number_float);
  for (const char* text : {"[NaN, 1]", "{\"a\": Infinity}", "[-Infinity]"})
    EXPECT_THROW(parse_json(text, "x"), Error) << text;
  for (const char* text :
       {"{NaN: 1}", "{\"a\": 1, Infinity : 2}", "[NaNNaN]", "[1NaN]", "[-NaN]", "[Nan]", "[+Infinity]",
        "[Infinit", "[--Infinity]", "[Infinity Infinity]", "[nan]", "[Infinity.0]", "\"NaN"})
    EXPECT_THROW(parse_python_json(text, "x"), Error) << text;
  const std::string text = "{\n  \"a\": NaN,\n  \"b\": -Infinity,\n  \"c\": \"d\\\"\x7f\"\n}";
  EXPECT_EQ(without_stand_ins(nlohmann::ordered_json::parse(with_stand_ins(text)).dump(2)), text);
  // Errors name the byte of the file.
  try {
    (void)parse_python_json("[NaN, Infinity, x]", "x");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("byte 17"));
  }
}

}  // namespace
}  // namespace kerf
