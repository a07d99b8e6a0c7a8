// The file in which rank 0 says how it is reached.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kerf/base/function_ref.h"
#include "kerf/comm/tcp/hello.h"
#include "kerf/comm/tcp/socket.h"

namespace kerf::comm::tcp {

struct Place {
  std::vector<Address> addresses;  // any of them, in this order
  Run run;
};

// What stands at a path: a place; nothing, or what a stopped run of another version left; what is no file of
// a rendezvous and not empty, so that it is somebody else's.
enum class Found : std::uint8_t { place, nothing, foreign };

// Looks once, and waits for nothing (a pipe is foreign). But for a place, `why` says what is there.
Found read_place(const std::string& path, Place& place, std::string& why);

// Appears whole or not at all. What is foreign is left as it is, and a place of which `alive` says that its
// ranks are still meeting: Error{usage}, as where it cannot be written.
void write_place(const std::string& path, const Place& place, FunctionRef<bool(const Place&)> alive);

// Takes the file away where it still is this run's.
void remove_place(const std::string& path, const Token& token) noexcept;

}  // namespace kerf::comm::tcp
