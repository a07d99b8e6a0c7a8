#include "kerf/decode/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "kerf/base/format.h"

namespace kerf::decode {

namespace {

// These calls have no input that could be wrong: what fails is an allocation within.
void check(int returned) {
  if (returned != 1) fail(ErrorKind::memory, "libcrypto could not do a SHA-256 operation");
}

struct Free {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_MD_CTX, Free>;

Context make_context() {
  Context context(EVP_MD_CTX_new());
  if (!context) fail(ErrorKind::memory, "no memory for a SHA-256 context");
  return context;
}

}  // namespace

struct Sha256::State {
  Context context = make_context();
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  check(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr));
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()));
}

std::string Sha256::hex() const {
  const Context copy = make_context();  // finishing ends a context, and more bytes may follow here
  check(EVP_MD_CTX_copy_ex(copy.get(), state_->context.get()));
  std::array<unsigned char, 32> digest{};
  check(EVP_DigestFinal_ex(copy.get(), digest.data(), nullptr));
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

}  // namespace kerf::decode
