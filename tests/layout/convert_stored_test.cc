// Experts that are read piece by piece come out as those in memory do.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/layout/convert.h"

namespace kerf::layout {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::int64_t count, std::mt19937_64& random) {
  Bytes out(static_cast<std::size_t>(count));
  std::generate(out.begin(), out.end(), [&] { return static_cast<std::byte>(random()); });
  return out;
}

tensor::Source stored(const Bytes& bytes) { return tensor::Source::of_memory(bytes, nullptr); }

struct Case {
  std::int64_t experts, hidden, intermediate, width;
};

// Pieces of 256 KiB: the first shape has experts of one piece a GEMM, the others of several.
const std::vector<Case> cases = {{3, 256, 128, 128},  {2, 1024, 512, 512}, {1, 4096, 1024, 1024},
                                 {2, 1024, 176, 192}, {2, 2048, 80, 1024}, {1, 4096, 1008, 1024}};

TEST(ConvertStored, Nvfp4AsInMemory) {
  std::mt19937_64 random(1);
  for (const Case& c : cases) {
    const std::int64_t matrix = c.hidden * c.intermediate;
    std::vector<std::array<Bytes, 6>> experts;
    std::vector<LogicalNvfp4<const std::byte>> memory;
    std::vector<StoredNvfp4> files;
    for (std::int64_t e = 0; e < c.experts; ++e) {
      auto& x = experts.emplace_back();
      for (std::size_t i = 0; i < 6; ++i) x[i] = random_bytes(i % 2 == 0 ? matrix / 2 : matrix / 16, random);
    }
    for (const auto& x : experts) {
      memory.push_back({x[0], x[1], x[2], x[3], x[4], x[5]});
      files.push_back({stored(x[0]), stored(x[1]), stored(x[2]), stored(x[3]), stored(x[4]), stored(x[5])});
    }
    const auto size = [&](std::int64_t per) {
      return static_cast<std::size_t>(c.experts * c.hidden * c.width / per);
    };
    for (const int threads : {1, 3}) {
      std::array<Bytes, 4> wanted = {Bytes(size(1)), Bytes(size(8)), Bytes(size(2)), Bytes(size(16))};
      std::array<Bytes, 4> got = {Bytes(size(1), std::byte{0xEE}), Bytes(size(8), std::byte{0xEE}),
                                  Bytes(size(2), std::byte{0xEE}), Bytes(size(16), std::byte{0xEE})};
      convert_all(memory, c.hidden, c.intermediate, c.width, {wanted[0], wanted[1], wanted[2], wanted[3]},
                  Workers(threads));
      convert_all(files, c.hidden, c.intermediate, c.width, {got[0], got[1], got[2], got[3]},
                  Workers(threads));
      // One whole expert at a time, which the other tests of this folder compare with the oracle.
      for (std::size_t e = 0; e < memory.size(); ++e) {
        const auto part = [&](Bytes& all) {
          return std::span(all).subspan(all.size() / memory.size() * e, all.size() / memory.size());
        };
        std::array<Bytes, 4> whole = {Bytes(part(wanted[0]).size()), Bytes(part(wanted[1]).size()),
                                      Bytes(part(wanted[2]).size()), Bytes(part(wanted[3]).size())};
        convert_padded(memory[e], c.hidden, c.intermediate, c.width,
                       {whole[0], whole[1], whole[2], whole[3]});
        for (std::size_t t = 0; t < 4; ++t) {
          EXPECT_TRUE(std::ranges::equal(part(wanted[t]), whole[t]))
              << c.hidden << " " << c.width << " " << t;
          EXPECT_TRUE(std::ranges::equal(part(got[t]), whole[t])) << c.hidden << " " << c.width << " " << t;
        }
      }
    }
  }
}

TEST(ConvertStored, Bf16AsInMemory) {
  std::mt19937_64 random(2);
  for (const Case& c : cases) {
    const std::int64_t matrix = c.hidden * c.intermediate * 2;
    std::vector<std::array<Bytes, 3>> experts;
    for (std::int64_t e = 0; e < c.experts; ++e) {
      auto& x = experts.emplace_back();
      for (Bytes& b : x) b = random_bytes(matrix, random);
    }
    std::vector<StoredBf16> files;
    for (const auto& x : experts) files.push_back({stored(x[0]), stored(x[1]), stored(x[2])});
    const auto size = static_cast<std::size_t>(c.experts * c.hidden * c.width * 2);
    Bytes w13(2 * size, std::byte{0xEE});
    Bytes w2(size, std::byte{0xEE});
    convert_all(files, c.hidden, c.intermediate, c.width, ConvertedBf16<std::byte>{w13, w2}, Workers(2));
    for (std::size_t e = 0; e < experts.size(); ++e) {
      const std::size_t one = size / experts.size();
      Bytes whole13(2 * one);
      Bytes whole2(one);
      const auto& x = experts[e];
      convert_padded(LogicalBf16<const std::byte>{x[0], x[1], x[2]}, c.hidden, c.intermediate, c.width,
                     ConvertedBf16<std::byte>{whole13, whole2});
      EXPECT_TRUE(std::ranges::equal(std::span(w13).subspan(2 * one * e, 2 * one), whole13)) << c.width;
      EXPECT_TRUE(std::ranges::equal(std::span(w2).subspan(one * e, one), whole2)) << c.width;
    }
  }
}

class Failing final : public tensor::Reader {
 public:
  void read(std::int64_t /*offset*/, std::span<std::byte> /*to*/) const override {
    throw Error(ErrorKind::checkpoint, "gone");
  }
  void will_need(std::int64_t /*offset*/, std::int64_t /*bytes*/) const noexcept override {}
};

TEST(ConvertStored, WhatCannotBeReadIsTheReadersError) {
  const auto source = [&](std::int64_t bytes) {
    return tensor::Source(std::make_shared<Failing>(), 0, bytes);
  };
  const StoredNvfp4 expert{source(16384), source(2048),  source(16384),
                           source(2048),  source(16384), source(2048)};
  Bytes w13(32768);
  Bytes w13_sf(4096);
  Bytes w2(16384);
  Bytes w2_sf(2048);
  EXPECT_THROW(convert_all(std::span(&expert, 1), 256, 128, 128, {w13, w13_sf, w2, w2_sf}, Workers(2)),
               Error);
  // Sizes are checked before anything is read.
  const StoredNvfp4 small{source(16383), source(2048),  source(16384),
                          source(2048),  source(16384), source(2048)};
  try {
    convert_all(std::span(&small, 1), 256, 128, 128, {w13, w13_sf, w2, w2_sf}, Workers(2));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::bug) << e.what();
  }
}

TEST(Source, ReadsInsideItsBytesOnly) {
  const Bytes bytes = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  const tensor::Source source = stored(bytes).part(1, 2);
  EXPECT_EQ(source.bytes(), 2);
  Bytes two(2);
  source.read(0, two);
  EXPECT_EQ(two, (Bytes{std::byte{2}, std::byte{3}}));
  EXPECT_THROW(source.read(1, two), Error);
  EXPECT_THROW(source.read(-1, std::span(two).first(1)), Error);
  EXPECT_THROW((void)source.part(0, 3), Error);
  const tensor::TensorView view = tensor::StoredTensor{tensor::Dtype::u8, {2}, source}.read();
  EXPECT_TRUE(std::ranges::equal(view.bytes, two));
  const tensor::TensorView copy = view;  // keeps the bytes as well
  EXPECT_EQ(copy.owner, view.owner);
  EXPECT_TRUE(tensor::StoredTensor{}.read().bytes.empty());
}

}  // namespace
}  // namespace kerf::layout
