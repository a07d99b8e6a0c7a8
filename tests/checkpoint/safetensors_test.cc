#include "kerf/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <fstream>
#include <random>

#include "kerf/base/error.h"
#include "tests/support/test_env.h"

namespace kerf::checkpoint {
namespace {

using test::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::span<const std::byte> raw(const std::string& text) { return std::as_bytes(std::span(text)); }

void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string length_bytes(std::uint64_t length) {
  const auto bytes = std::bit_cast<std::array<char, 8>>(length);
  return {bytes.data(), bytes.size()};
}

// A file of this header text and `data` zero bytes.
std::string file_of(const std::string& header, std::size_t data) {
  return length_bytes(header.size()) + header + std::string(data, '\0');
}

// What read_header says about a file of these bytes.
std::string refusal(const std::string& bytes) {
  const TempDir dir;
  write_bytes(dir.path() / "t.safetensors", bytes);
  try {
    read_header(dir.path() / "t.safetensors");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::checkpoint) << e.what();
    EXPECT_THAT(e.what(), HasSubstr("t.safetensors"));
    return e.what();
  }
  return "accepted";
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return '"' + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}";
}

TEST(Safetensors, RoundTrip) {
  const TempDir dir;
  const std::string codes = "0123456789abcdef";
  const std::string scalar = "wxyz";
  const std::vector<std::pair<std::string, tensor::TensorView>> tensors = {
      {"b.weight", {tensor::Dtype::u8, {2, 8}, raw(codes)}},
      {"a \"quoted\" \xC3\xA4", {tensor::Dtype::f32, {}, raw(scalar)}},
      {"empty", {tensor::Dtype::bf16, {0, 7}, {}}},
      {"fp4", {tensor::Dtype::f4, {2, 4}, raw(scalar)}}};
  write_safetensors(dir.path() / "x.safetensors", tensors);
  const SafetensorsFile file = SafetensorsFile::open(dir.path() / "x.safetensors");
  EXPECT_EQ(file.header().tensors.size(), 4U);
  EXPECT_EQ(file.header().stray_bytes, 0);
  for (const auto& [name, view] : tensors) {
    const tensor::TensorView got = file.at(name);
    EXPECT_EQ(got.dtype, view.dtype);
    EXPECT_EQ(got.shape, view.shape);
    EXPECT_TRUE(std::equal(got.bytes.begin(), got.bytes.end(), view.bytes.begin(), view.bytes.end())) << name;
  }
  EXPECT_FALSE(file.find("b.weigh"));
  EXPECT_EQ(file.header().tensors.at("b.weight").begin % 8, 0);
  try {
    (void)file.at("absent");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("absent"), HasSubstr("x.safetensors")));
  }
}

TEST(Safetensors, HeaderLength) {
  EXPECT_THAT(refusal(""), AllOf(HasSubstr("0 bytes"), HasSubstr("at least 8")));
  EXPECT_THAT(refusal("1234567"), HasSubstr("7 bytes"));
  EXPECT_THAT(refusal(length_bytes(std::uint64_t{1} << 63) + "{}"),
              AllOf(HasSubstr("9223372036854775808"), HasSubstr("100000000")));
  EXPECT_THAT(refusal(length_bytes(~std::uint64_t{0}) + "{}"), HasSubstr("18446744073709551615"));
  EXPECT_THAT(refusal(length_bytes(100'000'001) + "{}"), HasSubstr("wanted at most 100000000"));
  EXPECT_THAT(refusal(length_bytes(100'000'000) + "{}"),
              AllOf(HasSubstr("10 bytes"), HasSubstr("100000008")));
  EXPECT_THAT(refusal(length_bytes(3) + "{}"), AllOf(HasSubstr("10 bytes"), HasSubstr("11")));
  EXPECT_THAT(refusal(length_bytes(0)), HasSubstr("does not begin with '{'"));
  EXPECT_EQ(refusal(file_of("{}", 0)), "accepted");
  EXPECT_EQ(refusal(file_of("{}   ", 0)), "accepted");
}

TEST(Safetensors, HeaderGrammar) {
  EXPECT_EQ(refusal(file_of("{" + entry("a", "U8", "[2,3]", "[0,6]") + "}", 6)), "accepted");
  EXPECT_EQ(refusal(file_of(R"({"__metadata__":{"a":"[1.5,{\"b\":null}]","c":""},)" +
                                entry("a", "U8", "[]", "[0,1]") + "}",
                            1)),
            "accepted");
  struct Case {
    std::string header;
    std::string says;
  };
  const std::vector<Case> cases = {
      {"{", "not valid JSON"},
      {"[]", "does not begin"},
      {"{}x", "not valid JSON"},
      {std::string("{}\0", 3), "not valid JSON"},
      {"{\"\xFF\":1}", "not valid JSON"},
      {R"({"a":1})", "'a': got 1, wanted an object"},
      {R"({"a":[]})", "'a': got an array"},
      {R"({"__metadata__":"x"})", "'__metadata__': got the string 'x'"},
      {R"({"__metadata__":{},"__metadata__":{}})", "comes twice"},
      {R"({"__metadata__":{"a":1}})", "'__metadata__': got 1 for 'a', wanted strings"},
      {R"({"__metadata__":{"a":"b","c":null}})", "'__metadata__': got null for 'c', wanted strings"},
      {R"({"__metadata__":{"a":{}}})", "'__metadata__': got an object for 'a', wanted strings"},
      {R"({"__metadata__":{"a":["b"]}})", "'__metadata__': got an array for 'a', wanted strings"},
      {"{" + entry("a", "U8", "[1]", "[0,1]") + "," + entry("a", "U8", "[1]", "[1,2]") + "}",
       "'a': the name comes twice"},
      {"{" + entry("a", "U9", "[1]", "[0,1]") + "}", "unknown dtype 'U9'"},
      {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,1]}})", "got 7 for dtype"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "field 'dtype' comes twice"},
      {R"({"a":{"shape":[1],"data_offsets":[0,1]}})", "no dtype"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", "no shape"},
      {R"({"a":{"dtype":"U8","shape":[1]}})", "no data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", "unknown field 'x'"},
      {R"({"a":{"dtype":"U8","shape":{},"data_offsets":[0,1]}})", "got an object for shape"},
      {"{" + entry("a", "U8", "[1.0]", "[0,1]") + "}", "got 1.0 in shape"},
      {"{" + entry("a", "U8", "[-1]", "[0,1]") + "}", "got -1 in shape"},
      {"{" + entry("a", "U8", "[-0]", "[0,0]") + "}", "got -0 in shape"},
      {"{" + entry("a", "U8", "[true]", "[0,1]") + "}", "got true in shape"},
      {"{" + entry("a", "U8", "[[1]]", "[0,1]") + "}", "got an array in shape"},
      {"{" + entry("a", "U8", "[\"1\"]", "[0,1]") + "}", "got the string '1' in shape"},
      {"{" + entry("a", "U8", "[1e2]", "[0,100]") + "}", "got 1e2 in shape"},
      {"{" + entry("a", "U8", "[99999999999999999999999]", "[0,1]") + "}",
       "got 99999999999999999999999 in shape"},
      {"{" + entry("a", "U8", "[18446744073709551615]", "[0,1]") + "}", "dimension 18446744073709551615"},
      {"{" + entry("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") + "}", "more than 8 dimensions"},
      {"{" + entry("a", "U8", "[1099511627776,1099511627776]", "[0,1]") + "}", "too many elements"},
      {"{" + entry("a", "F64", "[2305843009213693951]", "[0,1]") + "}", "too many bytes"},
      {"{" + entry("a", "U8", "[1]", "[0,-1]") + "}", "got -1 in data_offsets"},
      {"{" + entry("a", "U8", "[1]", "[0]") + "}", "1 data_offsets, wanted 2"},
      {"{" + entry("a", "U8", "[1]", "[0,1,2]") + "}", "more than 2 data_offsets"},
      {"{" + entry("a", "U8", "[1]", "[1,0]") + "}", "wanted begin <= end"},
      {"{" + entry("a", "U8", "[1]", "[0,18446744073709551615]") + "}", "data offset 18446744073709551615"},
      {"{" + entry("a", "BF16", "[2,3]", "[0,11]") + "}", "hold 11 bytes, wanted 12 for BF16 [2, 3]"},
      {"{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[3,7]") + "}",
       "'a' and 'b' overlap"},
      {"{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[0,4]") + "}", "overlap"},
      {"{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[0]", "[2,2]") + "}",
       "'a' and 'b' overlap: the first ends at byte"},
      {"{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[0]", "[17,17]") + "}",
       "('b' ends there): truncated"},
  };
  for (const Case& c : cases) EXPECT_THAT(refusal(file_of(c.header, 16)), HasSubstr(c.says)) << c.header;
}

TEST(Safetensors, DeepNestingEndsInARefusal) {
  const std::string deep = R"({"__metadata__":{"a":)" + std::string(1'000'000, '[');
  EXPECT_THAT(refusal(file_of(deep, 0)), HasSubstr("got an array for 'a'"));
}

TEST(Safetensors, LongNamesAreCutInMessages) {
  const std::string name(100'000, 'n');
  EXPECT_LT(refusal(file_of("{" + entry(name, "U9", "[1]", "[0,1]") + "}", 1)).size(), 1000U);
}

TEST(Safetensors, TruncationGivesBothSizes) {
  const std::string header = "{" + entry("a", "U8", "[64]", "[0,64]") + "}";
  const std::string whole = file_of(header, 64);
  const std::string says = refusal(whole.substr(0, whole.size() - 10));
  EXPECT_THAT(says, AllOf(HasSubstr(std::to_string(whole.size() - 10) + " bytes"),
                          HasSubstr(std::to_string(whole.size())), HasSubstr("'a'"), HasSubstr("truncated")));
}

TEST(Safetensors, StrayBytesAreCounted) {
  const TempDir dir;
  write_bytes(dir.path() / "t.safetensors",
              file_of("{" + entry("a", "U8", "[2]", "[1,3]") + "," + entry("y", "U8", "[0]", "[1,1]") + "," +
                          entry("z", "U8", "[0]", "[3,3]") + "}",
                      10));
  EXPECT_EQ(read_header(dir.path() / "t.safetensors").stray_bytes, 8);
}

TEST(Safetensors, RefusesWhatIsNoFile) {
  const TempDir dir;
  EXPECT_THROW(read_header(dir.path()), Error);
  EXPECT_THROW(read_header(dir.path() / "absent"), Error);
  EXPECT_THROW(DataFile::open(dir.path() / "absent"), Error);
  write_bytes(dir.path() / "empty", "");
  EXPECT_EQ(DataFile::open(dir.path() / "empty")->bytes(), 0);
}

// Whatever is done to the header of a sound file, reading ends in success or in an Error.
RC_GTEST_PROP(SafetensorsFuzz, DamagedHeaders, ()) {
  const TempDir dir;
  const std::filesystem::path path = dir.path() / "t.safetensors";
  const std::string sound =
      file_of(R"({"__metadata__":{"format":"pt"},)" + entry("a.weight", "U8", "[2,8]", "[0,16]") + "," +
                  entry("b", "F8_E4M3", "[4]", "[16,20]") + "," + entry("c", "F32", "[]", "[20,24]") + "}",
              24);
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  for (int round = 0; round < 30; ++round) {
    std::string bytes = sound;
    const std::size_t edits = 1 + random() % 4;
    for (std::size_t i = 0; i < edits && !bytes.empty(); ++i) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 5) {
        case 0:
          bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1U << (random() % 8)));
          break;
        case 1:
          bytes[at] = "0123456789[]{},:\"-.e"[random() % 20];
          break;
        case 2:
          bytes.erase(at, 1 + random() % 8);
          break;
        case 3:
          bytes.insert(at, bytes.substr(random() % bytes.size(), 1 + random() % 40));
          break;
        default:
          bytes.resize(at + 1);
          break;
      }
    }
    write_bytes(path, bytes);
    try {
      const SafetensorsFile file = SafetensorsFile::open(path);
      std::int64_t sum = 0;
      for (const auto& [name, where] : file.header().tensors)
        for (const std::byte b : file.at(name).bytes) sum += static_cast<int>(b);
      RC_ASSERT(sum >= 0);
    } catch (const Error& e) {
      RC_ASSERT(e.kind() == ErrorKind::checkpoint);
    }
  }
}

std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& item : std::filesystem::directory_iterator(directory))
    names.push_back(item.path().filename().string());
  return names;
}

// A tensor without elements has no bytes that could lie outside, but its view would begin there.
TEST(Header, EmptyTensorsLieInsideTheFile) {
  const std::string far = std::to_string(std::uint64_t{1} << 60);
  for (const std::string& at : {far, std::string("9")})
    for (const std::string& other : {std::string(), entry("b", "U8", "[8]", "[0,8]") + ","})
      EXPECT_THAT(
          refusal(file_of("{" + other + entry("a", "U8", "[0,256]", "[" + at + "," + at + "]") + "}", 8)),
          ::testing::AllOf(HasSubstr("'a' ends there"), HasSubstr("truncated")));
  const TempDir dir;
  write_bytes(
      dir.path() / "t",
      file_of("{" + entry("a", "U8", "[0,256]", "[8,8]") + "," + entry("b", "U8", "[8]", "[0,8]") + "}", 8));
  EXPECT_TRUE(SafetensorsFile::open(dir.path() / "t").at("a").bytes.empty());
}

TEST(SafetensorsWriter, AppearsOnlyWhenFinished) {
  const TempDir dir;
  const std::filesystem::path path = dir.path() / "x.safetensors";
  write_bytes(path, "old");
  const std::vector<NamedShape> shapes = {{"a", tensor::Dtype::u8, {4}},
                                          {"b", tensor::Dtype::u8, {3'000'000}}};
  {
    SafetensorsWriter writer(path, shapes);
    writer.append(raw("abcd"));
    EXPECT_EQ(read_bytes(path), "old");
    EXPECT_EQ(names_in(dir.path()).size(), 2U);
  }
  EXPECT_THAT(names_in(dir.path()), ::testing::ElementsAre("x.safetensors"));
  EXPECT_EQ(read_bytes(path), "old");

  SafetensorsWriter writer(path, shapes);
  writer.append(raw("abcd"));
  writer.append(raw(std::string(3'000'000, 'z')));
  writer.finish();
  EXPECT_THAT(names_in(dir.path()), ::testing::ElementsAre("x.safetensors"));
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(static_cast<char>(file.at("a").bytes[3]), 'd');
  EXPECT_EQ(static_cast<char>(file.at("b").bytes[2'999'999]), 'z');
}

TEST(SafetensorsWriter, HoldsItsPromise) {
  const TempDir dir;
  const std::filesystem::path path = dir.path() / "x.safetensors";
  const std::vector<NamedShape> shapes = {{"a", tensor::Dtype::u8, {4}}};
  {
    SafetensorsWriter writer(path, shapes);
    EXPECT_THROW(writer.append(raw("abcde")), Error);
    writer.append(raw("abc"));
    EXPECT_THROW(writer.finish(), Error);
  }
  EXPECT_TRUE(names_in(dir.path()).empty());
  const std::vector<NamedShape> twice = {{"a", tensor::Dtype::u8, {4}}, {"a", tensor::Dtype::u8, {4}}};
  EXPECT_THROW(SafetensorsWriter(path, twice), Error);
  EXPECT_THROW(SafetensorsWriter(dir.path() / "no" / "x", shapes), Error);
  // The rename fails (a directory came in the way): the temporary goes all the same.
  {
    SafetensorsWriter writer(dir.path() / "d", shapes);
    std::filesystem::create_directories(dir.path() / "d" / "full");
    writer.append(raw("abcd"));
    EXPECT_THROW(writer.finish(), Error);
  }
  EXPECT_THAT(names_in(dir.path()), ::testing::ElementsAre("d"));
}

// A path that cannot be written is the caller's mistake, found before anything is computed for it.
TEST(SafetensorsWriter, RefusesAPathAtOnce) {
  const TempDir dir;
  std::filesystem::create_directory(dir.path() / "d");
  write_bytes(dir.path() / "file", "x");
  const std::vector<NamedShape> shapes = {{"a", tensor::Dtype::u8, {4}}};
  for (const auto& path : {dir.path() / "no" / "x", dir.path() / "file" / "x", dir.path() / "d"}) {
    const auto writer = [&] { SafetensorsWriter(path, shapes); };
    const auto check = [&] { check_writable(path); };
    for (const std::function<void()>& step : {std::function<void()>(writer), std::function<void()>(check)}) {
      try {
        step();
        ADD_FAILURE() << path;
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::usage);
        EXPECT_THAT(e.what(), HasSubstr(path.string()));
      }
    }
  }
  EXPECT_NO_THROW(check_writable(dir.path() / "file"));
  EXPECT_NO_THROW(check_writable(dir.path() / "new"));
  EXPECT_EQ(read_bytes(dir.path() / "file"), "x");
  EXPECT_THAT(names_in(dir.path()), ::testing::UnorderedElementsAre("d", "file"));
}

}  // namespace
}  // namespace kerf::checkpoint
