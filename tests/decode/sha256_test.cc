#include "kerf/decode/sha256.h"

#include <gtest/gtest.h>

#include <string_view>
#include <utility>

namespace kerf::decode {
namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// Vectors of FIPS 180-2.
TEST(Sha256, KnowsThePublishedDigests) {
  Sha256 sha;
  EXPECT_EQ(sha.hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  sha.update(bytes("abc"));
  EXPECT_EQ(sha.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 longer;
  longer.update(bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"));
  EXPECT_EQ(longer.hex(), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, TakesBytesInAnyPieces) {
  Sha256 sha;
  sha.update(bytes("a"));
  EXPECT_NE(sha.hex(), "");  // looking does not end it
  sha.update({});
  sha.update(bytes("bc"));
  Sha256 moved = std::move(sha);
  EXPECT_EQ(moved.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace kerf::decode
