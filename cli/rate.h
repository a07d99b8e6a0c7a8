// What a progress bar says after its percentage.
#pragma once

#include <cstdint>
#include <string>

namespace kerf::cli {

// "3.10 GiB/s, 0:12 left": the rate so far where bytes are counted, and the time left at that rate where
// there is something left, as minutes and seconds. `seconds` is the time that `done` of `total` took. Empty
// where that says nothing yet.
std::string rate_text(bool bytes, std::int64_t done, std::int64_t total, double seconds);

}  // namespace kerf::cli
