// Parts of reports that several commands write.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cli/context.h"

namespace kerf::cli {

// "1 fault", "2 faults".
std::string counted(std::int64_t n, std::string_view noun);
// [{"kind", "total", "first": [...]}]
Json faults_json(const checkpoint::Faults& faults);
// One line a kind with its total, and the first places below it.
void print_faults(const checkpoint::Faults& faults, Output& out);

}  // namespace kerf::cli
