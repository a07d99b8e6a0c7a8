// Who started this process, and as which of how many: read from the variables that launchers set, by one
// table. A pure function of an environment; nothing here reads the process's own but launch_environment().
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace kerf {

// The variables that one launcher sets. Empty names: it has none of that kind.
struct Launcher {
  std::string_view name;
  std::string_view rank, size, local_rank, local_size;
  // What else it sets, shown only.
  std::string_view host, port;
  // Where only this says that processes were started, since the others are set without that too.
  std::string_view started;
  // What tells this start from all others, for all of its processes the same; both, where there are two.
  std::string_view job, job_part;
};

// In the order of precedence: of a launcher inside another's allocation the inner one counts.
std::span<const Launcher> launchers();

// Variables by name.
using Environment = std::map<std::string, std::string, std::less<>>;

// What a launcher says of this process.
struct Launch {
  std::string launcher;  // of the table; empty: none is found
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank, local_size;
  std::string host, port;              // of a rendezvous, as they stand
  std::string job;                     // the same in all processes of this start, another in others; or empty
  bool started = false;                // the launcher has started this process as one of `size`
  std::vector<std::string> variables;  // NAME=VALUE of all that were looked at and are set, in table order
};

// The first launcher of the table that has set anything that says this process's rank; a Launch without a
// launcher where none has. Error{usage} that names variable and value for half a set (a rank without a number
// of ranks, or the other way round where one launcher alone sets it), for what is no whole number, and for a
// rank that is not below its number.
Launch find_launch(const Environment& environment);

// The variables of the table that this process has. Reads the process's environment: at start, not while
// another thread changes it.
Environment launch_environment();

}  // namespace kerf
#pragma GCC visibility pop
