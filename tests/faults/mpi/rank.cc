// A rank of an MPI program that starts and steps like kerf decode, and of which one does what the command
// line says:
//
//     rank CHECKPOINT TIMEOUT_MS ODD FAULT
//
// FAULT: none; allocation, nan, probe: what it meets; sleep:S before the first vote; then DO@WHEN: kill,
// exit, throw or return at the collective called WHEN, or before step N where WHEN is a number.
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "kerf/comm/mpi.h"
#include "tests/decode/watched_group.h"
#include "tests/faults/faulty.h"

namespace kerf::test {
namespace {

struct Returned {};

int number(std::string_view text) {
  int out = 0;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

[[noreturn]] void act(std::string_view what) {
  if (what == "kill") (void)::kill(::getpid(), SIGKILL);
  if (what == "exit") std::_Exit(3);
  if (what == "throw") throw std::runtime_error("it breaks here");
  throw Returned();
}

struct Plan {
  std::string_view fault;
  std::string_view act, when;  // of DO@WHEN
};

Plan plan_of(std::string_view fault) {
  const std::size_t at = fault.find('@');
  if (at == std::string_view::npos) return {fault, {}, {}};
  return {{}, fault.substr(0, at), fault.substr(at + 1)};
}

void work(comm::Group& group, const std::string& checkpoint, int odd, const Plan& plan) {
  const bool mine = group.rank() == odd;
  if (mine && plan.fault.starts_with("sleep:"))
    std::this_thread::sleep_for(std::chrono::seconds(number(plan.fault.substr(6))));
  Watched watched(group, [&](std::string_view what) {
    if (mine && !plan.when.empty() && what == plan.when) act(plan.act);
  });
  tensor::HostMemory memory;
  Scarce scarce(memory);
  decode::RuntimeOptions options = expert_tp();
  if (mine && plan.fault == "probe") options.probe.limit = 1e-9;
  tensor::Memory& used = mine && plan.fault == "allocation" ? static_cast<tensor::Memory&>(scarce) : memory;
  try {
    start(
        watched, used, options,
        [&] {
          const auto from = checkpoint::Checkpoint::open(checkpoint);
          return mine && plan.fault == "nan" ? Corrupt::in(from) : from;
        },
        20,
        [&](int step) {
          if (mine && !plan.when.empty() && fmt::format("{}", step) == plan.when) act(plan.act);
        });
  } catch (const Returned&) {
    return;
  }
  watched.barrier("the end of the test");
}

}  // namespace
}  // namespace kerf::test

int main(int argc, char** argv) {
  using namespace kerf;
  if (argc != 5) return 2;
  const auto mpi = comm::start_mpi({.timeout = std::chrono::milliseconds(test::number(argv[2]))});
  const int rank = mpi->group().rank();
  bool group_failed = false;
  const Verdict mine = attempt([&] {
    try {
      test::work(mpi->group(), argv[1], test::number(argv[3]), test::plan_of(argv[4]));
    } catch (const comm::GroupFailed&) {
      group_failed = true;
      throw;
    }
  });
  const Verdict cause = mpi->settle(mine, group_failed);
  if (cause) std::fprintf(stderr, "[rank %d] %s\n", rank, cause->text.c_str());
  const int code = cause ? static_cast<int>(cause->kind) : 0;
  mpi->end(code);
  return code;
}
