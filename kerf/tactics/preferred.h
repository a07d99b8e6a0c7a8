// Preferred tactics: lists, best first, that were measured once and are only looked up when a decode starts.
// Some are built in (kerf/tactics/measured.json); `kerf tune` writes more of them, in the same form.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "kerf/tactics/setting.h"

#pragma GCC visibility push(default)
namespace kerf::tactics {

// Microseconds of a step at one number of tokens, one for each of the list's tactics.
struct MeasuredAt {
  std::int64_t tokens = 0;
  std::vector<double> us;

  friend bool operator==(const MeasuredAt&, const MeasuredAt&) = default;
};

// Preferred tactics, best first, of what was measured in one setting.
struct PreferredList {
  Setting setting;
  op::Arithmetic arithmetic = op::Arithmetic::w4a4;
  std::vector<op::Tactic> tactics;   // best first
  std::vector<MeasuredAt> measured;  // what the order rests on; may be empty

  friend bool operator==(const PreferredList&, const PreferredList&) = default;
};

// The lists that this library carries. They live as long as the program.
const std::vector<PreferredList>& measured_lists();

// Those of a file. Error{usage}, led by the path, for one that is not there, not of lists or above 16 MiB.
std::vector<PreferredList> read_lists(const std::filesystem::path& path);

// Writes lists, whole or not at all. Those of the file that is replaced stay, as long as none of the new ones
// is for the same setting and arithmetic. Error{usage}: a place that cannot be written, or a file there that
// holds something else.
void write_lists(const std::filesystem::path& path, std::vector<PreferredList> lists);

// Error{usage} where write_lists() could not write there now. Leaves everything as it is.
void check_lists_writable(const std::filesystem::path& path);

// The list for a setting and arithmetic, one of `lists`. Nothing found: null, and `why` names the first part
// that no list shares ("for kernel package 'x'", "on device 'y'", "for" the sizes).
const PreferredList* find_list(std::span<const PreferredList> lists, const Setting& wanted,
                               op::Arithmetic arithmetic, std::string* why = nullptr);

}  // namespace kerf::tactics
#pragma GCC visibility pop
