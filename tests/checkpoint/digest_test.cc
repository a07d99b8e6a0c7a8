// Digests of tensors against those of xxHash's own program (xxh128sum 0.8.1).
#include "kerf/checkpoint/digest.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string_view>
#include <vector>

namespace kerf::test {
namespace {

using checkpoint::digest_of;
using checkpoint::Pieces;
using checkpoint::text_of;
using tensor::Dtype;
using tensor::Shape;

TEST(Digest, IsXxh3sOf128Bits) {
  EXPECT_EQ(text_of(digest_of(std::span<const std::byte>())), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(text_of(digest_of(std::as_bytes(std::span(std::string_view("kerf"))))),
            "3fda577bb133d7a5d2f2cf38c121d237");
}

// Two MiB and a byte: the digest of three digests.
TEST(Digest, OfATensorIsThatOfItsPieces) {
  const std::vector<std::byte> bytes((std::size_t{2} << 20) + 1, std::byte{'k'});
  const tensor::TensorView view{Dtype::u8, {std::ssize(bytes)}, bytes};
  for (const int threads : {1, 2})
    EXPECT_EQ(text_of(digest_of(view, Workers(threads))), "a262ef3050fe777c34dbbfbf0300d5b5");
}

TEST(Digest, PartsOfThreeDimensionsAreDigestedAlone) {
  std::vector<std::uint8_t> values(200);
  std::iota(values.begin(), values.end(), std::uint8_t{0});
  const auto bytes = std::as_bytes(std::span(values));
  const Workers workers(1);
  EXPECT_EQ(text_of(digest_of({Dtype::u8, {2, 1, 100}, bytes}, workers)), "6ae42295d3db0df69eda247d7b88c21f");
  EXPECT_EQ(text_of(digest_of({Dtype::u8, {2, 100}, bytes}, workers)), "5985cde7fa77b682c72048d4f9271c1e");
  EXPECT_EQ(Pieces(Dtype::u8, {200, 1, 1}).parts(), 1);  // too little for a part of its own
}

TEST(Pieces, CoverATensorOnce) {
  for (const Shape& shape :
       {Shape{3, 2, 700'000}, Shape{3, 1 << 20}, Shape{7}, Shape{2, 8, 8}, Shape{0, 4, 4}}) {
    const Pieces pieces(Dtype::u8, shape);
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < pieces.count(); ++i) {
      const Pieces::Range range = pieces.range(i);
      EXPECT_EQ(range.begin, at);
      EXPECT_GT(range.bytes, 0);
      EXPECT_LE(range.bytes, Pieces::most);
      at += range.bytes;
    }
    EXPECT_EQ(at, shape.elements());
  }
}

}  // namespace
}  // namespace kerf::test
