// What kerf bench --busiest-rank reports.
#pragma once

#include <vector>

#include "cli/context.h"

namespace kerf::cli {

Json busiest_json(const std::vector<tools::BusiestStep>& steps);
void print_busiest(const std::vector<tools::BusiestStep>& steps, int ranks, Output& out);

}  // namespace kerf::cli
