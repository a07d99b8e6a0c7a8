// The tests of one rank: mpirun starts as many of this program, all of which run the same tests in the same
// order. Rank 0 alone tells how they went, others only what failed.
#include <gtest/gtest.h>

#include <memory>

#include "tests/comm/mpi/world.h"

namespace kerf::test {

comm::MpiProgram*& program() {
  static comm::MpiProgram* started = nullptr;
  return started;
}

}  // namespace kerf::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto mpi = kerf::comm::start_mpi({.timeout = std::chrono::seconds{60}});
  kerf::test::program() = mpi.get();
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (mpi->group().rank() != 0 && argc < 2) delete listeners.Release(listeners.default_result_printer());
  const int code = RUN_ALL_TESTS();
  const kerf::Verdict mine = code == 0 ? kerf::Verdict() : kerf::Reason{kerf::ErrorKind::bug, "tests failed"};
  const kerf::Verdict cause = mpi->settle(mine, false);
  if (cause) std::fprintf(stderr, "rank %d: %s\n", mpi->group().rank(), cause->text.c_str());
  mpi->end(cause ? 1 : 0);
  return cause ? 1 : 0;
}
