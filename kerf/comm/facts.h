// What has to be equal on every rank before ranks act together: named values, compared in one collective.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/comm/group.h"

#pragma GCC visibility push(default)
namespace kerf::comm {

// Something that all ranks must have alike, and the kind of error where they do not.
struct Fact {
  std::string name;                   // for messages: "kernel package", "--batch"
  std::string value;                  // any length; compared byte for byte, and shown where it differs
  ErrorKind kind = ErrorKind::usage;  // of the refusal, where this is the first that differs

  friend bool operator==(const Fact&, const Fact&) = default;
};
// In the order in which they are compared.
using Facts = std::vector<Fact>;

// Collective. Nothing where all ranks bring the same facts; otherwise, the same on all of them, each fact
// that differs with the ranks (Group::number) and their values: "batch: rank 2: 1,8, others: 1,4" (the first
// 8 of them; values above 120 bytes from shortly before the first difference on). Facts are matched by name,
// so that ranks may bring lists of different programs; a rank that lacks one has "(none)". Where `mine`
// throws, all ranks get the reason of the lowest rank where it did, as by agree(). Throws what the group's
// collectives do.
Verdict compare_facts(Group& group, std::string_view what, const std::function<Facts()>& mine);

// The same, thrown, on all ranks.
void require_same(Group& group, std::string_view what, const std::function<Facts()>& mine);

// What compare_facts() says of these lists, those of ranks with these numbers, as many. Not collective.
Verdict differing(const std::vector<Facts>& of_ranks, const std::vector<int>& numbers);

}  // namespace kerf::comm
#pragma GCC visibility pop
