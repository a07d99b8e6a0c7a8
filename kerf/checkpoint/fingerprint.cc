#include "kerf/checkpoint/fingerprint.h"

#include <string_view>

#include "kerf/base/format.h"
#include "kerf/checkpoint/digest.h"
#include "kerf/tensor/dtype.h"

namespace kerf::checkpoint {

namespace {

// Every piece by its length and its bytes: no two lists of pieces are one text.
void put(std::string& out, std::string_view piece) {
  fmt::format_to(std::back_inserter(out), "{}:", piece.size());
  out += piece;
}

std::string digest(std::string_view text) {
  return text_of(digest_of(std::as_bytes(std::span(text.data(), text.size()))));
}

}  // namespace

Fingerprint fingerprint_of(const ConfigTexts& texts, std::span<const std::string> files,
                           std::span<const Header> headers) {
  std::string config;
  put(config, texts.config);
  if (texts.quant) put(config, *texts.quant);
  std::string tensors;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const Header& header = headers[i];
    put(tensors, files[i]);
    fmt::format_to(std::back_inserter(tensors), "{} ", header.file_bytes);
    for (const auto& [name, entry] : header.tensors) {
      put(tensors, name);
      fmt::format_to(std::back_inserter(tensors), "{}{} {} {};", tensor::name(entry.dtype),
                     entry.shape.text(), entry.begin, entry.end);
    }
  }
  return {digest(config), digest(tensors)};
}

}  // namespace kerf::checkpoint
