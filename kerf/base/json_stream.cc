#include "kerf/base/json_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kerf/base/format.h"

namespace kerf {

namespace {

constexpr std::int64_t piece_bytes = std::int64_t{1} << 16;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// What a number can begin with, and what it can go on with.
bool begins_number(char c) { return (c >= '0' && c <= '9') || c == '-'; }
bool in_number(char c) { return begins_number(c) || c == '+' || c == '.' || c == 'e' || c == 'E'; }

}  // namespace

JsonStream::JsonStream(Read read, std::int64_t bytes, std::int64_t most_token, Refuse refuse)
    : read_(std::move(read)), bytes_(bytes), most_token_(most_token), refuse_(std::move(refuse)) {
  next();
}

JsonStream::JsonStream(std::string_view text, std::int64_t most_token, Refuse refuse)
    : JsonStream([text](std::int64_t offset,
                        std::span<std::byte> to) { std::memcpy(to.data(), text.data() + offset, to.size()); },
                 std::ssize(text), most_token, std::move(refuse)) {}

void JsonStream::next() {
  at_ = 0;
  piece_.clear();
  from_.clear();
  while (piece_.empty() && read_to_ < bytes_) {
    raw_.resize(static_cast<std::size_t>(std::min(piece_bytes, bytes_ - read_to_)));
    read_(read_to_, std::as_writable_bytes(std::span(raw_)));
    for (std::size_t i = 0; i < raw_.size(); ++i) {
      const char c = raw_[i];
      const std::int64_t at = read_to_ + static_cast<std::int64_t>(i) + 1;
      // A parser would take a NUL for the end of the text and leave what follows it unread.
      if (c == '\0') refuse_("a zero byte in it", at);
      const bool between = !in_string_ && is_space(c);
      if (between && is_space(last_)) continue;
      if (in_string_) {
        if (!std::exchange(escaped_, !escaped_ && c == '\\') && c == '"') in_string_ = false;
      } else if (c == '"') {
        in_string_ = true;
        token_ = 0;
      } else if (begins_number(c) && !in_number(last_)) {
        token_ = 0;
      }
      if (++token_ > most_token_)
        refuse_(fmt::format("more than {} bytes of one value or of brackets around none", most_token_), at);
      last_ = in_string_ ? '"' : c;
      piece_.push_back(c);
      from_.push_back(static_cast<std::uint32_t>(i));
    }
    read_to_ += std::ssize(raw_);
  }
}

std::int64_t JsonStream::taken() const {
  if (piece_.empty()) return read_to_;
  return read_to_ - std::ssize(raw_) + (at_ == 0 ? 0 : from_[at_ - 1] + 1);
}

}  // namespace kerf
