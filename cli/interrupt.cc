#include "cli/interrupt.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <string_view>

namespace kerf::cli {

namespace {

constexpr std::array signals = {SIGINT, SIGTERM, SIGHUP};

constexpr std::string_view text_of(int signal) {
  switch (signal) {
    case SIGINT:
      return "kerf: error: interrupted (SIGINT)\n";
    case SIGTERM:
      return "kerf: error: ended from outside (SIGTERM)\n";
    default:
      return "kerf: error: its terminal is gone (SIGHUP)\n";
  }
}

// Nothing but what a signal handler may call. The signal was reset to its own action, and takes it on return.
extern "C" void kerf_tell_of_interrupt(int signal) {
  const std::string_view text = text_of(signal);
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) {
    // There is nobody to tell.
  }
  (void)std::raise(signal);
}

}  // namespace

void tell_of_interrupts() {
  for (const int signal : signals) {
    struct sigaction before {};
    if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = kerf_tell_of_interrupt;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    (void)::sigaction(signal, &action, nullptr);
  }
}

}  // namespace kerf::cli
