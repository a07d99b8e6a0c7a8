// Parts of reports that several commands write.
#pragma once

#include "cli/context.h"

namespace kerf::cli {

// [{"kind", "total", "first": [...]}]
Json faults_json(const checkpoint::Faults& faults);
// One line a kind with its total, and the first places below it.
void print_faults(const checkpoint::Faults& faults, Output& out);

}  // namespace kerf::cli
