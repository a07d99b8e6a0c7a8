// SHA-256 as FIPS 180-4 defines it, for builds without libcrypto. No processor's instructions for it: what is
// hashed here are outputs, never weights.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "kerf/base/format.h"
#include "kerf/decode/sha256.h"

namespace kerf::decode {

namespace {

using Words = std::array<std::uint32_t, 8>;
constexpr std::size_t block_bytes = 64;
using Block = std::array<std::byte, block_bytes>;

// First 32 bits of the fractional parts of the square roots of the first 8 primes.
constexpr Words initial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// The same of the cube roots of the first 64.
constexpr std::array<std::uint32_t, 64> round_constants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr std::uint32_t word_at(const std::byte* p) {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = (word << 8) | std::to_integer<std::uint32_t>(p[i]);
  return word;
}

// One block of 64 bytes into the state.
constexpr void compress(Words& state, const std::byte* block) {
  using std::rotr;
  std::array<std::uint32_t, 64> w{};
  for (std::size_t t = 0; t < 16; ++t) w[t] = word_at(block + 4 * t);
  for (std::size_t t = 16; t < 64; ++t) {
    const std::uint32_t near = w[t - 2];
    const std::uint32_t far = w[t - 15];
    w[t] = (rotr(near, 17) ^ rotr(near, 19) ^ (near >> 10)) + w[t - 7] +
           (rotr(far, 7) ^ rotr(far, 18) ^ (far >> 3)) + w[t - 16];
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t t = 0; t < 64; ++t) {
    const std::uint32_t first =
        h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & f) ^ (~e & g)) + round_constants[t] + w[t];
    const std::uint32_t second = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const Words after = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < after.size(); ++i) state[i] += after[i];
}

}  // namespace

struct Sha256::State {
  Words words = initial;
  std::uint64_t bytes = 0;  // in all
  Block rest{};             // bytes % 64 of them: what does not fill a block yet

  void update(std::span<const std::byte> more) {
    const std::size_t held = bytes % block_bytes;
    bytes += more.size();
    if (held > 0) {
      const std::size_t taken = std::min(block_bytes - held, more.size());
      std::copy_n(more.begin(), taken, rest.begin() + held);
      if (held + taken < block_bytes) return;
      compress(words, rest.data());
      more = more.subspan(taken);
    }
    for (; more.size() >= block_bytes; more = more.subspan(block_bytes)) compress(words, more.data());
    std::copy(more.begin(), more.end(), rest.begin());
  }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) { state_->update(bytes); }

std::string Sha256::hex() const {
  State last = *state_;  // more bytes may follow here
  // A one bit, zeros up to 8 bytes before the end of a block, and there the number of bits, big-endian.
  const std::uint64_t bits = 8 * last.bytes;
  Block padding{std::byte{0x80}};
  last.update(std::span(padding).first(1 + (2 * block_bytes - 9 - last.bytes % block_bytes) % block_bytes));
  std::array<std::byte, 8> length{};
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  last.update(length);
  return fmt::format("{:08x}", fmt::join(last.words, ""));
}

}  // namespace kerf::decode
