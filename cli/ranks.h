// Options and start of the commands that run on several ranks: which group, how many ranks, on what device
// and backend, with how many threads.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
// environment says wrong (usage). With --group mpi or nccl this process becomes a rank: context.program;
// ranks are as many as there are processes (usage: --ranks says something else), and all but rank 0 fall
// silent.
void check_rank_options(RankOptions& options, Context& context);

// Where ranks are processes, each with a command line of its own: Error{usage}, the same in all of them,
// where a command or option that all must share differs, with the ranks and what each was told. Before files
// are opened; threads and paths may differ. `more`: the command's own options, by their names.
void require_same_options(const RankOptions& options, const Context& context, const std::string& command,
                          const std::vector<std::pair<std::string, std::string>>& more);

// Error{usage} where --load-from-rank names no rank.
void refuse_rank(int reading_rank, int ranks);
// The model directory. With --load-from-rank and ranks that are processes it is opened on that rank alone,
// and by what that rank sends elsewhere.
checkpoint::Checkpoint opened(const std::string& path, std::optional<int> reading_rank,
                              const RankOptions& options, const Context& context);
// The same as a rank of run_ranks() uses it: where ranks are threads, what one of them reads goes over the
// group from here on.
checkpoint::Checkpoint for_rank(const checkpoint::Checkpoint& from, std::optional<int> reading_rank,
                                const Context& context, const decode::Rank& rank);

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
