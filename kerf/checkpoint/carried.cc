#include "kerf/checkpoint/carried.h"

#include <cstring>

#include "kerf/base/format.h"

namespace kerf::checkpoint {

namespace {

// Every piece is its length and its bytes.
void put(std::string& out, std::string_view piece) {
  const std::uint64_t length = piece.size();
  out.append(reinterpret_cast<const char*>(&length), sizeof(length));
  out += piece;
}

class Pieces {
 public:
  explicit Pieces(std::string_view text) : left_(text) {}
  std::string next() {
    std::uint64_t length = 0;
    if (left_.size() < sizeof(length)) damaged();
    std::memcpy(&length, left_.data(), sizeof(length));
    left_.remove_prefix(sizeof(length));
    if (length > left_.size()) damaged();
    std::string out(left_.substr(0, length));
    left_.remove_prefix(length);
    return out;
  }
  [[nodiscard]] bool done() const { return left_.empty(); }
  [[noreturn]] static void damaged() {
    fail(ErrorKind::checkpoint,
         "what a rank sent of its checkpoint's headers ends early or is no such thing");
  }

 private:
  std::string_view left_;
};

void put(std::string& out, const std::optional<std::string>& piece) {
  put(out, std::string_view(piece ? "+" : "-"));
  put(out, std::string_view(piece ? *piece : std::string()));
}

std::optional<std::string> optional_of(Pieces& pieces) {
  const bool there = pieces.next() == "+";
  std::string text = pieces.next();
  if (!there) return std::nullopt;
  return text;
}

}  // namespace

std::string CarriedFiles::to_text() const {
  std::string out;
  put(out, std::string_view(configs.config));
  put(out, configs.quant);
  put(out, index);
  for (const File& file : files) {
    put(out, std::string_view(file.name));
    put(out, std::string_view(fmt::format("{}", file.bytes)));
    put(out, std::string_view(file.head));
  }
  return out;
}

CarriedFiles CarriedFiles::from_text(std::string_view text) {
  Pieces pieces(text);
  CarriedFiles out;
  out.configs.config = pieces.next();
  out.configs.quant = optional_of(pieces);
  out.index = optional_of(pieces);
  while (!pieces.done()) {
    File file;
    file.name = pieces.next();
    for (const char c : pieces.next()) {
      if (c < '0' || c > '9' || file.bytes > (std::int64_t{1} << 58)) Pieces::damaged();
      file.bytes = file.bytes * 10 + (c - '0');
    }
    file.head = pieces.next();
    out.files.push_back(std::move(file));
  }
  return out;
}

}  // namespace kerf::checkpoint
