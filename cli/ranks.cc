#include "cli/ranks.h"

#include <chrono>

namespace kerf::cli {

namespace {

constexpr int most_ranks = 4096;

// Parts that this program could have and does not.
void check_built(const RankOptions& options) {
  if (options.group != "local")
    throw Error(
        ErrorKind::unsupported,
        fmt::format(
            "--group {}: not built; this build has the group 'local' (ranks are threads of one process)",
            options.group));
  if (options.device != "cpu")
    throw Error(ErrorKind::device,
                fmt::format("--device {}: not built; this build has the device 'cpu'", options.device));
}

}  // namespace

void add_op_options(CLI::App& command, RankOptions& options) {
  command
      .add_option("--act", options.act,
                  "What NVFP4 experts are given: nvfp4 (quantised rows, W4A4) or bf16 (W4A16)")
      ->capture_default_str()
      ->check(CLI::IsMember({"nvfp4", "bf16"}));
  command.add_option("--backend", options.backend,
                     fmt::format("Backend of the op: {} [cpu]", fmt::join(op::backend_names(), ", ")));
}

void add_rank_options(CLI::App& command, RankOptions& options) {
  command.add_option("--ranks", options.ranks, "Ranks")
      ->capture_default_str()
      ->check(CLI::Range(1, most_ranks));
  command.add_option("--group", options.group, "How ranks talk: local, mpi, nccl")
      ->capture_default_str()
      ->check(CLI::IsMember({"local", "mpi", "nccl"}));
  command.add_option("--device", options.device, "Where experts are: cpu, cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  add_op_options(command, options);
  command
      .add_option("--threads", options.threads,
                  "Worker threads of all ranks together [KERF_THREADS, or all cores]")
      ->check(CLI::Range(1, 1 << 16));
}

op::Input input_of(const RankOptions& options) {
  return options.act == "bf16" ? op::Input::bf16 : op::Input::nvfp4;
}

std::string backend_of(const RankOptions& options) {
  if (!options.backend.empty()) return options.backend;
  if (const auto isa = env_value("KERF_ISA")) return "cpu:" + *isa;
  return "cpu";
}

void run_ranks(const RankOptions& options, const Context& context,
               const std::function<void(const decode::Rank&)>& body) {
  check_built(options);
  comm::LocalOptions local;
  if (const auto seconds = env_positive("KERF_TIMEOUT")) local.timeout = std::chrono::seconds(*seconds);
  const int threads =
      threads_per_rank(options.threads > 0 ? options.threads : Context::threads(), options.ranks);
  comm::run_local(options.ranks, local, [&](comm::Group& group) {
    tensor::HostMemory memory;
    decode::Meter meter(memory);
    body(decode::Rank{group, meter, Workers(threads), context.log});
  });
}

}  // namespace kerf::cli
