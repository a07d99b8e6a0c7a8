// Options and start of the commands that run on several ranks: which group, how many ranks, on what device
// and backend, with how many threads.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>

#include "cli/context.h"

namespace kerf::cli {

// The most ranks that a command starts.
inline constexpr int most_ranks = 4096;

struct RankOptions {
  int ranks = 1;
  bool ranks_given = false;  // else what an export was made for
  std::string group = "local";
  std::string device = "cpu";
  std::string act = "nvfp4";
  std::string backend;  // empty: KERF_ISA's, else the best of this CPU
  int threads = 0;      // of all ranks together, 0: Context::threads()
  std::optional<std::int64_t> ep, tp;
  layout::Fit fit;
  std::optional<comm::MpiHost> host;  // of one process a rank: who else is on this host
};

void add_rank_options(CLI::App& command, RankOptions& options);
// --group for a command that knows the local one alone; `why`, for whoever asks for another.
void add_one_process_group(CLI::App& command, const std::string& why);
void add_device_option(CLI::App& command, RankOptions& options);
// Of them, those that a plan has too: --act and --backend, how the op runs; --ep and --tp, the grid; --uneven
// and --pad, what may be done about a width.
void add_op_options(CLI::App& command, RankOptions& options);
void add_grid_options(CLI::App& command, RankOptions& options);

// Before any work: what this program lacks (unsupported for a group, device for a device), and what the
// environment says wrong (usage). With --group mpi this process becomes a rank: context.mpi; ranks are as
// many as there are processes (usage: --ranks says something else), and all but rank 0 fall silent.
void check_rank_options(RankOptions& options, Context& context);

// Error{usage} where a launcher started this command as one of several processes: each would do all of the
// work. `what`: the command, or option, that knows one process alone.
void refuse_copies(std::string_view what);

// Worker threads of one rank.
int rank_threads(const RankOptions& options);

// Of a start from an export, what was not given follows from it: ranks, grid, and what was done about the
// width.
void settle_for_export(RankOptions& options, const checkpoint::Checkpoint& from);

// What the words mean. Error{usage} for numbers of ranks that do not multiply, and for an instruction set in
// KERF_ISA that this CPU lacks.
decode::GridShape grid_of(const RankOptions& options);
op::Input input_of(const RankOptions& options);
std::string backend_of(const RankOptions& options);

// Calls body once a rank of this process, each with memory and workers of its own, and with the grid where it
// has several rows of several ranks; rethrows what the ranks agreed on. Returns when all ranks are through,
// of all processes. Whether rank 0 is in this process, which reports.
[[nodiscard]] bool run_ranks(const RankOptions& options, const Context& context,
                             const std::function<void(const decode::Rank&)>& body);

}  // namespace kerf::cli
