// SHA-256 over a stream of bytes: what `output_sha256` is made with. The arithmetic is libcrypto's, or plain
// code in a build without it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#pragma GCC visibility push(default)
namespace kerf::decode {

// A SHA-256 (FIPS 180-4) that is given its bytes little by little. All but moving: Error{memory} where there
// is none.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  // Takes over what the other was given.
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  // Gives it more bytes.
  void update(std::span<const std::byte> bytes);
  // The digest of everything given so far, 64 lower-case hexadecimal digits. More may follow.
  [[nodiscard]] std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kerf::decode
#pragma GCC visibility pop
