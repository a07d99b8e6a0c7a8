// The file in which rank 0 says how it is reached.
#pragma once

#include <string>
#include <vector>

#include "kerf/comm/tcp/hello.h"
#include "kerf/comm/tcp/socket.h"

namespace kerf::comm::tcp {

struct Place {
  std::vector<Address> addresses;  // any of them, in this order
  Token token{};
};

// Appears whole or not at all. Error{usage} where it cannot be written.
void write_place(const std::string& path, const Place& place);
// What stands there, or why not in `why`.
bool read_place(const std::string& path, Place& place, std::string& why);
// Takes the file away where it still is this run's.
void remove_place(const std::string& path, const Token& token) noexcept;

}  // namespace kerf::comm::tcp
