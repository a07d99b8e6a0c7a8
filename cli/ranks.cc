#include "cli/ranks.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/meeting.h"
#include "cli/options.h"

namespace kerf::cli {

namespace {

constexpr int most_timeout = 86'400;  // seconds

// Parts that this program could have and does not.
void check_built(const RankOptions& options) {
  for (const auto& [what, name] : {std::pair{"group", options.group}, {"device", options.device}})
    if (const Verdict why = deploy::lacking(what, name)) throw Error(why->kind, "--" + why->text);
}

// "scalar" for "cpu:scalar": what KERF_ISA may say here.
std::vector<std::string> instruction_sets() {
  constexpr std::string_view prefix = "cpu:";
  std::vector<std::string> out;
  for (const std::string& name : op::built_backend_names())
    if (name.starts_with(prefix)) out.push_back(name.substr(prefix.size()));
  return out;
}

std::optional<int> timeout() { return env_positive("KERF_TIMEOUT", most_timeout); }

// This process as a rank of the MPI program that was started.
void join_mpi(const RankOptions& options, Context& context) {
  if (options.device != "cpu")
    throw Error(ErrorKind::unsupported,
                fmt::format("--group mpi with --device {}: it moves data between hosts' memory alone",
                            options.device));
  comm::MpiOptions mpi;
  if (const auto seconds = timeout()) mpi.timeout = std::chrono::seconds(*seconds);
  context.program = comm::start_mpi(mpi);
  const comm::Group& group = context.program->group();
  context.rank = group.rank();
  // Where a launcher counts otherwise, it has not started what MPI knows.
  const Launch launch = find_launch(launch_environment());
  if (launch.started && (launch.size != group.size() || launch.rank != group.rank()))
    throw Error(
        ErrorKind::usage,
        fmt::format("MPI says rank {} of {}, {} says rank {} of {} ({}): start kerf with the mpirun of "
                    "the MPI library that it was built with{}",
                    group.rank(), group.size(), launch.launcher, launch.rank, launch.size,
                    fmt::join(launch.variables, " "),
                    launch.launcher == "Slurm" ? ", or srun --mpi=pmix" : ""));
}

// This process as one of those that a launcher started, with a device of its own.
void join_nccl(const RankOptions& options, Context& context) {
  if (options.device != "cuda")
    throw Error(
        ErrorKind::unsupported,
        fmt::format("--group nccl with --device {}: it moves data between devices, with --device cuda",
                    options.device));
  const Meeting meeting =
      find_meeting(find_launch(launch_environment()), launch_environment(), meeting_place());
  context.rank = meeting.tcp.rank;
  cuda::use_device(device_of(meeting, cuda::device_count()));
  comm::TcpOptions tcp = meeting.tcp;
  if (const auto seconds = timeout()) tcp.timeout = std::chrono::seconds(*seconds);
  context.program = comm::start_tcp(tcp);
}

// This process as a rank of several.
void join(RankOptions& options, Context& context) {
  if (options.group == "nccl")
    join_nccl(options, context);
  else
    join_mpi(options, context);
  const comm::Group& group = context.program->group();
  context.rank = group.rank();
  if (group.rank() != 0) {
    context.speaks = false;
    context.quiet = true;
  }
  if (options.ranks_given && options.ranks != group.size())
    throw Error(
        ErrorKind::usage,
        fmt::format("--ranks {}, but {} process{}: leave --ranks out, or start as many", options.ranks,
                    options.group == "mpi" ? fmt::format("MPI has {}", group.size())
                                           : fmt::format("the launcher started {}", group.size()),
                    group.size() == 1 ? "" : "es"));
  options.ranks = group.size();
  options.ranks_given = true;
  options.host = context.program->host();
}

// Of which a launcher's processes can be ranks: torchrun starts no MPI programs.
std::string group_of(const std::string& launcher) {
  return launcher == "torchrun" ? "--group nccl with --device cuda" : "--group mpi";
}

// The names of a list of parts of one kind, after `first`.
std::string names_of(const std::string& first, std::string_view what) {
  std::string text = first;
  for (const deploy::Part& part : deploy::optional_parts())
    if (part.what == what) text += fmt::format(", {}{}", part.name, part.built ? "" : " (not built)");
  return text;
}

}  // namespace

void add_op_options(CLI::App& command, RankOptions& options) {
  command
      .add_option("--act", options.act,
                  "What NVFP4 experts are given: nvfp4 (quantised rows, W4A4) or bf16 (W4A16)")
      ->capture_default_str()
      ->check(CLI::IsMember({"nvfp4", "bf16"}));
  command
      .add_option("--backend", options.backend,
                  fmt::format("Backend of the op: {} [cpu]", fmt::join(op::built_backend_names(), ", ")))
      ->check(not_empty());
}

void add_grid_options(CLI::App& command, RankOptions& options) {
  command
      .add_option("--ep", options.ep, "Rows of ranks that share the experts between them [ranks / tp, or 1]")
      ->transform(whole_number(1, most_count));
  command
      .add_option("--tp", options.tp, "Ranks of a row, that share each of its experts as slices [ranks / ep]")
      ->transform(whole_number(1, most_count));
  command.add_flag("--uneven", options.fit.uneven,
                   "Let slices differ by 64 of I where tp does not divide its tiles");
  command.add_flag("--pad", options.fit.pad,
                   "Add zeros to I, up to the next width that fits the layout and tp");
}

void add_one_process_group(CLI::App& command, const std::string& why) {
  command.add_option_function<std::string>(
      "--group",
      [why](const std::string& group) {
        if (group != "local")
          throw Error(ErrorKind::unsupported, fmt::format("--group {}: here it is local: {}", group, why));
      },
      "local: " + why);
}

void add_device_option(CLI::App& command, RankOptions& options) {
  command.add_option("--device", options.device, "Where experts are: " + names_of("cpu", "device"))
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
}

void add_rank_options(CLI::App& command, RankOptions& options) {
  command
      .add_option_function<int>(
          "--ranks",
          [&options](int ranks) {
            options.ranks = ranks;
            options.ranks_given = true;
          },
          "Ranks [1; of an export, as many as it was made for]")
      ->transform(whole_number(1, most_ranks));
  add_grid_options(command, options);
  command.add_option("--group", options.group, "How ranks talk: " + names_of("local", "group"))
      ->capture_default_str()
      ->check(CLI::IsMember({"local", "mpi", "nccl"}));
  add_device_option(command, options);
  add_op_options(command, options);
  command
      .add_option("--threads", options.threads,
                  "Worker threads of all ranks together [KERF_THREADS, or all cores]")
      ->transform(whole_number(1, most_threads));
}

void refuse_copies(std::string_view what) {
  const Launch launch = find_launch(launch_environment());
  if (!launch.started || launch.size == 1) return;
  throw Error(
      ErrorKind::usage,
      fmt::format("{} has all ranks in one process, and {} started {} ({}), each of which would do all "
                  "of the work: {}, or start one process",
                  what, launch.launcher, launch.size, fmt::join(launch.variables, " "),
                  what.starts_with("--group") ? group_of(launch.launcher) + " makes each of them a rank"
                                              : "run it by itself"));
}

int rank_threads(const RankOptions& options) {
  if (options.threads > 0 || !options.host)
    return threads_per_rank(options.threads > 0 ? options.threads : Context::threads(), options.ranks);
  if (const auto own = env_positive("KERF_THREADS", most_threads)) return *own;
  return threads_per_rank(available_cores(), options.host->sharers);
}

void check_rank_options(RankOptions& options, Context& context) {
  check_built(options);
  if (options.group != "local")
    join(options, context);
  else
    refuse_copies("--group " + options.group);
  (void)backend_of(options);
  (void)timeout();
  if (options.threads == 0) (void)Context::threads();
  // Of an export it may be a grid of more ranks: settle_for_export() looks again.
  if (options.ranks_given || (!options.ep && !options.tp)) (void)grid_of(options);
}

void require_same_options(const RankOptions& options, const Context& context, const std::string& command,
                          const std::vector<std::pair<std::string, std::string>>& more) {
  if (!context.program) return;
  comm::require_same(context.program->group(), "comparing the ranks' options", [&] {
    const auto number = [](const std::optional<std::int64_t>& n) {
      return n ? std::to_string(*n) : std::string("not given");
    };
    const auto flag = [](bool given) { return std::string(given ? "given" : "not given"); };
    comm::Facts facts = {{"kerf", std::string(version()), ErrorKind::unsupported}};
    const auto add = [&facts](const std::string& name, std::string value) {
      facts.push_back({name, std::move(value), ErrorKind::usage});
    };
    add("command", command);
    add("--act", options.act);
    add("backend (--backend, KERF_ISA)", backend_of(options));
    add("--ep", number(options.ep));
    add("--tp", number(options.tp));
    add("--uneven", flag(options.fit.uneven));
    add("--pad", flag(options.fit.pad));
    for (const auto& [name, value] : more) add(name, value);
    return facts;
  });
}

void refuse_rank(int reading_rank, int ranks) {
  if (reading_rank >= ranks)
    throw Error(ErrorKind::usage,
                fmt::format("--load-from-rank {}: there are ranks 0 to {}", reading_rank, ranks - 1));
}

checkpoint::Checkpoint opened(const std::string& path, std::optional<int> reading_rank,
                              const RankOptions& options, const Context& context) {
  if (reading_rank && options.device != "cpu")
    throw Error(ErrorKind::unsupported,
                "--load-from-rank: experts on a device are read from files, on every rank");
  if (!context.program || !reading_rank) return checkpoint::Checkpoint::open(path);
  refuse_rank(*reading_rank, options.ranks);
  return decode::fed_from(context.program->group(), *reading_rank,
                          [&] { return checkpoint::Checkpoint::open(path); });
}

checkpoint::Checkpoint for_rank(const checkpoint::Checkpoint& from, std::optional<int> reading_rank,
                                const Context& context, const decode::Rank& rank) {
  if (context.program || !reading_rank) return from;
  return decode::fed_from(rank.group, *reading_rank, [&] { return from; });
}

void settle_for_export(RankOptions& options, const checkpoint::Checkpoint& from) {
  if (from.exported() == nullptr) return (void)grid_of(options);
  const checkpoint::ExportPlacement& p = from.exported()->facts().placement;
  if (!options.ranks_given && p.ranks <= most_ranks) options.ranks = static_cast<int>(p.ranks);
  if (p.tp > 1 && !options.ep && !options.tp && options.ranks == p.ranks) options.tp = p.tp;
  options.fit = decode::fit_of(from, options.fit);
  (void)grid_of(options);
}

op::Input input_of(const RankOptions& options) {
  return options.act == "bf16" ? op::Input::bf16 : op::Input::nvfp4;
}

decode::GridShape grid_of(const RankOptions& options) {
  return decode::grid_shape(options.ranks, options.ep, options.tp);
}

std::string backend_of(const RankOptions& options) {
  // A device has one backend, and that backend no other device.
  constexpr std::string_view cuda = "cuda";
  if ((options.device == cuda) != (options.backend == cuda) &&
      !(options.device == cuda && options.backend.empty()))
    throw Error(ErrorKind::usage,
                fmt::format("--device {} with --backend {}: experts on a CUDA device run on the backend "
                            "'cuda', and nothing else does",
                            options.device, options.backend));
  if (options.device == cuda) return std::string(cuda);
  if (!options.backend.empty()) return options.backend;
  const auto isa = env_value("KERF_ISA");
  if (!isa) return "cpu";
  const std::vector<std::string> known = instruction_sets();
  if (std::find(known.begin(), known.end(), *isa) == known.end())
    throw Error(ErrorKind::usage, fmt::format("KERF_ISA is '{}', wanted one that this CPU has: {}", *isa,
                                              fmt::join(known, ", ")));
  return "cpu:" + *isa;
}

bool run_ranks(const RankOptions& options, const Context& context,
               const std::function<void(const decode::Rank&)>& body) {
  const int threads = rank_threads(options);
  const decode::GridShape shape = grid_of(options);
  const bool on_device = options.device == "cuda";
  const auto run = [&](comm::Group& group) {
    tensor::HostMemory memory;
    decode::Meter meter(memory);
    cuda::DeviceMemory device;
    decode::Meter device_meter(device);
    std::optional<comm::Grid> grid;  // only where it says more than the group
    if (shape.ep > 1 && shape.tp > 1)
      grid.emplace(group, static_cast<int>(shape.ep), static_cast<int>(shape.tp));
    body(decode::Rank{group, meter, Workers(threads), context.log, grid ? &*grid : nullptr, nullptr,
                      on_device ? &device_meter : nullptr});
  };
  if (context.program) {
    comm::Group& group = context.program->group();
    if (options.group == "nccl") {
      comm::NcclOptions nccl;
      nccl.library = nccl_file();
      if (const auto seconds = timeout()) nccl.timeout = std::chrono::seconds(*seconds);
      const auto devices = comm::make_nccl_group(group, nccl);
      run(*devices);
    } else {
      run(group);
    }
    group.barrier("the end of all ranks' work");  // nobody reports what another rank failed at
    return group.rank() == 0;
  }
  comm::LocalOptions local;
  if (const auto seconds = timeout()) local.timeout = std::chrono::seconds(*seconds);
  if (on_device) local.copier = &cuda::copier();
  comm::run_local(options.ranks, local, run);
  return true;
}

}  // namespace kerf::cli
