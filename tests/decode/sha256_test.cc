#include "kerf/decode/sha256.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
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
  Sha256 two_blocks;
  two_blocks.update(
      bytes("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
            "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"));
  EXPECT_EQ(two_blocks.hex(), "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  Sha256 million;
  for (int i = 0; i < 1000; ++i) million.update(bytes(std::string(1000, 'a')));
  EXPECT_EQ(million.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Every place where a message can end in a block: the digest of the digests, as Python's hashlib has it.
TEST(Sha256, EveryLengthUpToSomeBlocks) {
  Sha256 all;
  for (std::size_t length = 0; length < 300; ++length) {
    std::string message;
    for (std::size_t i = 0; i < length; ++i) message += static_cast<char>((7 * i + length) % 256);
    Sha256 whole;
    whole.update(bytes(message));
    Sha256 in_pieces;
    for (std::size_t at = 0, piece = 1; at < length; at += piece, piece = 3 * piece % 101)
      in_pieces.update(bytes(message).subspan(at, std::min(piece, length - at)));
    EXPECT_EQ(in_pieces.hex(), whole.hex()) << length;
    all.update(bytes(whole.hex()));
  }
  EXPECT_EQ(all.hex(), "def85da8f53f8ad58eda585dce61c0d7bfbb3da6924badae49d32d11288c576f");
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
