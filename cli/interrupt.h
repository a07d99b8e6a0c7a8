// What happens to the program where somebody stops it.
#pragma once

namespace kerf::cli {

// From here on SIGINT, SIGTERM and SIGHUP (unless it is ignored: nohup) leave a line on standard error before
// they end the process in their own way: whoever waits for it sees the signal. Files that are written appear
// whole or not at all whenever that happens.
void tell_of_interrupts();

}  // namespace kerf::cli
