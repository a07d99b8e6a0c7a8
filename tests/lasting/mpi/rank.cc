// A rank of an MPI program that runs steps and says what they made of it: rank CHECKPOINT STEPS
#include <cstdio>
#include <cstdlib>

#include "kerf/comm/mpi.h"
#include "tests/lasting/steps.h"

int main(int argc, char** argv) {
  using namespace kerf;
  if (argc != 3) return 2;
  const auto mpi = comm::start_mpi({});
  const int rank = mpi->group().rank();
  const Verdict mine = attempt([&] {
    const auto from = checkpoint::Checkpoint::open(argv[1]);
    const test::Lasted l = test::last(mpi->group(), from, std::atoll(argv[2]));
    std::printf("rank %d: %lld differ, %lld to %lld KiB, %lld to %lld descriptors, %.1f s\n", rank,
                static_cast<long long>(l.differing), static_cast<long long>(l.before.resident_kib),
                static_cast<long long>(l.after.resident_kib), static_cast<long long>(l.before.descriptors),
                static_cast<long long>(l.after.descriptors), l.seconds);
  });
  const Verdict cause = mpi->settle(mine, false);
  if (cause) std::fprintf(stderr, "[rank %d] %s\n", rank, cause->text.c_str());
  const int code = cause ? static_cast<int>(cause->kind) : 0;
  mpi->end(code);
  return code;
}
