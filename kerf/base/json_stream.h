// JSON text that comes in pieces, for a parser that reads it byte by byte: a large text is never in memory as
// a whole, and what the parser keeps of it is bounded. (nlohmann_json's keeps everything since the last
// string or number began, white space and brackets included.) For sources only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kerf {

class JsonStream {
 public:
  // Fills `to` from byte `offset` of the text.
  using Read = std::function<void(std::int64_t offset, std::span<std::byte> to)>;
  // Throws an error that says so; `what` is a sentence about the text up to byte `at`, which counts from 1.
  using Refuse = std::function<void(const std::string& what, std::int64_t at)>;

  // `most_token`: bytes of a string or number, and of what follows it up to the next one.
  JsonStream(Read read, std::int64_t bytes, std::int64_t most_token, Refuse refuse);
  // Of a text in memory.
  JsonStream(std::string_view text, std::int64_t most_token, Refuse refuse);

  // The whole text, for a parser. White space is handed on as one byte a run.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = char;

    Iterator() = default;
    explicit Iterator(JsonStream& stream) : stream_(&stream) {}
    char operator*() const { return stream_->piece_[stream_->at_]; }
    Iterator& operator++() {
      if (++stream_->at_ == stream_->piece_.size()) stream_->next();
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++*this;
      return before;
    }
    // Ends are equal to each other, and anything else to nothing.
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.ended() && b.ended(); }

   private:
    [[nodiscard]] bool ended() const { return stream_ == nullptr || stream_->piece_.empty(); }
    JsonStream* stream_ = nullptr;
  };
  Iterator begin() { return Iterator(*this); }
  static Iterator end() { return {}; }

  // How many bytes of the text have been handed on, or passed over.
  [[nodiscard]] std::int64_t taken() const;

  // Hands the text to `events`; false where those ended it. Errors are theirs and `refuse`'s.
  bool parse(nlohmann::json_sax<nlohmann::json>& events) {
    return nlohmann::json::sax_parse(begin(), end(), &events);
  }

 private:
  void next();

  Read read_;
  std::int64_t bytes_;
  std::int64_t most_token_;
  Refuse refuse_;
  std::int64_t read_to_ = 0;  // of the text
  std::vector<char> raw_;
  std::vector<char> piece_;          // what of it is handed on
  std::vector<std::uint32_t> from_;  // where in the raw bytes each came from
  std::size_t at_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  char last_ = ',';
  std::int64_t token_ = 0;
};

}  // namespace kerf
