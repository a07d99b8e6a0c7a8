// Where messages go. The library prints nothing: it hands lines to the sink that its caller passed in.
#pragma once

#include <functional>
#include <string>
#include <utility>

#pragma GCC visibility push(default)
namespace kerf {

// How much a line matters.
enum class LogLevel { debug, info, warning };

// A value that can be copied; an empty Log swallows everything. The sink may be called from any rank's
// thread, from several at once.
class Log {
 public:
  // Takes one line, without its end.
  using Sink = std::function<void(LogLevel, const std::string&)>;

  Log() = default;
  // Sends lines to `sink`; null: nowhere.
  explicit Log(Sink sink) : sink_(std::move(sink)) {}

  // Sends a line of that level. Throws what the sink throws.
  void debug(const std::string& line) const { send(LogLevel::debug, line); }
  void info(const std::string& line) const { send(LogLevel::info, line); }
  void warning(const std::string& line) const { send(LogLevel::warning, line); }

 private:
  void send(LogLevel level, const std::string& line) const {
    if (sink_) sink_(level, line);
  }
  Sink sink_;
};

}  // namespace kerf
#pragma GCC visibility pop
