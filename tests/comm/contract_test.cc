// The contract of every group, kept by the local one. (By the MPI group: mpi/group_test.cc; by those of
// engines: engine_group_test.cc.)
#include "tests/comm/contract.h"

#include <gtest/gtest.h>

#include <tuple>

#include "kerf/comm/local.h"

namespace kerf::test {
namespace {

class LocalContract : public testing::TestWithParam<std::tuple<Contract, int>> {};
INSTANTIATE_TEST_SUITE_P(Group, LocalContract,
                         testing::Combine(testing::ValuesIn(contracts().begin(), contracts().end()),
                                          testing::Values(1, 2, 3, 4, 5, 8)),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param).name) + "_" +
                                  std::to_string(std::get<1>(one.param));
                         });

TEST_P(LocalContract, Holds) {
  const auto& [contract, ranks] = GetParam();
  const auto check = contract.check;
  comm::run_local(ranks, {}, [&](comm::Group& group) { check(group); });
}

}  // namespace
}  // namespace kerf::test
