// Which experts a measured step or read may take so that no cache still holds them: always those that were
// touched longest ago. A last-level cache of a few hundred MiB holds all experts of a step with one token; a
// step or read that took random experts would find some of the ones before it there, and one that took the
// same ones would find all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kerf::tools::internal {

// The experts [0, E) in blocks of equal size, the ones that one rank holds together; each block has an order
// of its own, so that taking experts in turn never moves work from one rank to another.
class ColdExperts {
 public:
  ColdExperts(std::int64_t experts, std::int64_t blocks);

  // Renames the experts of routes [T, K] inside their blocks: the n that a block has of them become the n
  // that were touched longest ago, which now count as touched, in ascending order (the one a step runs them
  // in). What decides a step's work stays: how many experts each block has, and which tokens share one.
  void rename(std::span<std::int32_t> ids);

  // As many experts of each block as the last rename() met there, touched longest ago and now, first touched
  // first: what a read of as many bytes takes. Other experts than those of that step, while a block has
  // enough of them, and others than the next rename() takes.
  std::vector<std::int32_t> as_many();

  // Experts that the last rename() met.
  [[nodiscard]] std::int64_t met() const;

 private:
  std::vector<std::int32_t> take(std::size_t block, std::int64_t count);

  std::int64_t block_;                             // experts of one
  std::vector<std::vector<std::int32_t>> oldest_;  // of each block, touched longest ago first
  std::vector<std::int64_t> met_;                  // of each block
};

}  // namespace kerf::tools::internal
